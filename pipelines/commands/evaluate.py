"""`finery evaluate`: scores models that lie on disk, as an evaluate stage would, and writes a GLUE submission."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelines.commands.trained_models import (
    TrainedModel,
    WarningLog,
    context_of,
    find_all,
    recipe_of,
    refuse_mistakes,
    tuples,
)
from pipelines.core.config import flatten, key_path
from pipelines.core.errors import CommandError
from pipelines.core.files import JSONObject
from pipelines.core.registry import TASKS, nearest
from pipelines.core.task_files import names_file
from pipelines.evaluation.evaluate import Evaluate
from pipelines.evaluation.official.glue import lines, possible, write_submission
from pipelines.evaluation.outcomes import BASELINES
from pipelines.tasks.benchmarks import read_file
from pipelines.tasks.evaluation import SplitRequest, evaluation_of

FILES = ("metrics.json", "details.json", "predictions.parquet")


@dataclass(frozen=True)
class EvaluateRequest:
    """What `finery evaluate` was asked."""

    models: Sequence[str]
    benchmarks: Sequence[str] = ()
    out: str | None = None
    submission: str | None = None
    partial: bool = False
    settings: JSONObject | None = None
    """Further keys of an evaluate stage: `max_eval_samples`, `baselines` and so on."""


def answer(fields: JSONObject) -> JSONObject:
    """Scores, details and warnings, as plain data; files where they were asked for. Raises FineryError."""
    request = EvaluateRequest(**fields)
    models = find_all(request.models)
    result: dict[str, Any] = {
        "models": [each.id for each in models],
        "metrics": {},
        "details": {},
        "warnings": [],
        "files": [],
    }
    if request.benchmarks or request.submission is None:
        result |= scored(models, request)
    if request.submission is not None:
        result |= submitted(models, request)
    return result


def stage_for(models: Sequence[TrainedModel], benchmarks: Sequence[str], settings: JSONObject) -> Evaluate:
    """The evaluate stage that asks these models. Raises CommandError."""
    names = tuple(Path(name).stem if names_file(name) else name for name in benchmarks)
    own = {Path(name).stem: read_file(name) for name in benchmarks if names_file(name)}
    words: dict[str, Any] = {"id": "evaluate", "benchmarks": names or None, "tasks": own, **settings}
    if len(models) == 1 and models[0].subject is not None:
        words["from"] = models[0].id
    try:
        return Evaluate.model_validate(tuples(words))
    except ValidationError as error:
        raise CommandError("; ".join(f"{key_path(place)} {message}" for place, message in flatten(error))) from None


def named(models: Sequence[TrainedModel], benchmarks: Sequence[str]) -> list[str]:
    """What is scored: as asked, else what the models say they were trained on. Raises CommandError."""
    task_of = {each.id: each.task for each in models if each.task is not None}
    if not benchmarks:
        if not task_of:
            which = "the checkpoint does" if len(models) == 1 else "the checkpoints do"
            raise CommandError(
                f"{which} not say what task it was trained on; name the benchmarks: --benchmarks glue/mrpc,squad"
            )
        return [task if task in TASKS else name for name, task in task_of.items()]
    if (twice := next((name for name in benchmarks if list(benchmarks).count(name) > 1), None)) is not None:
        raise CommandError(f"the benchmark '{twice}' is named twice")
    for name in benchmarks:
        if name not in TASKS and name not in task_of and not names_file(name):
            every = [*task_of, *TASKS]
            raise CommandError(f"unknown benchmark '{name}'.{nearest(name, every)} Available: {', '.join(every)}")
        needed = (getattr(TASKS.load(name), "trained_by", None) if name in TASKS else None) or name
        if len(models) > 1 and not {name, needed} & {*task_of, *task_of.values()}:
            others = ", ".join(f"{each.id} ({each.task or 'unknown'})" for each in models)
            raise CommandError(f"none of the models was trained on '{needed}': {others}; give one that was")
    return list(benchmarks)


def scored(models: Sequence[TrainedModel], request: EvaluateRequest) -> JSONObject:
    """What an evaluate stage finds out and leaves behind."""
    stage = stage_for(models, named(models, request.benchmarks), request.settings or {})
    recipe = recipe_of(models, stage)
    refuse_mistakes(recipe, stage)
    with ExitStack() as stack:
        folder = (
            Path(stack.enter_context(tempfile.TemporaryDirectory())) if request.out is None else _folder(request.out)
        )
        context = context_of(models, recipe, stage, folder)
        stage.run(context)
        metrics, details = (json.loads((folder / name).read_text(encoding="utf-8")) for name in FILES[:2])
        files = [] if request.out is None else sorted(str(path) for path in folder.rglob("*") if path.is_file())
    events = context.events
    assert isinstance(events, WarningLog)
    return {"metrics": metrics, "details": details, "warnings": events.warnings, "files": files}


def _folder(name: str) -> Path:
    folder = Path(name).expanduser()
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"--out '{name}' is a file; give a folder")
    strange = (
        [
            path.name
            for path in folder.iterdir()
            if path.name not in (*FILES, BASELINES) and path.suffix not in (".json", ".jsonl", ".parquet", ".zip")
        ]
        if folder.is_dir()
        else []
    )
    if strange:
        raise CommandError(
            f"--out '{name}' holds something else ({strange[0]}); give a folder that is new, or has scores in it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def submitted(models: Sequence[TrainedModel], request: EvaluateRequest) -> JSONObject:
    """Write the submission; says which files are in it, and what is missing."""
    assert request.submission is not None
    path = Path(request.submission).expanduser()
    if path.suffix != ".zip":
        raise CommandError(f"--submission '{request.submission}' must end with .zip")
    if (request.settings or {}).get("max_eval_samples") is not None:
        raise CommandError(
            "--limit leaves out rows of the test sets, which a submission must have; leave it out, or --submission"
        )
    parts, missing = possible([each.task for each in models if each.task is not None], request.partial)
    texts = {}
    for part in parts:
        texts[part.file] = lines(part, logits_of(models, part.task, part.split, request.settings or {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_submission(path, texts)
    return {"submission": {"file": str(path), "files": list(texts), "missing": missing}}


def logits_of(models: Sequence[TrainedModel], task_name: str, split: str, settings: JSONObject) -> Any:
    """(rows, outputs) of a split, by the model that was trained on the task, its columns in the task's order of
    classes."""
    import numpy as np

    predicted, task = ask_split(models, task_name, split, settings)
    if hasattr(predicted, "logits"):
        return predicted.logits
    # a model that writes its answers: each is the class, or the number, that its text stands for; what is no answer,
    # the second class
    predictions = np.asarray(task.read(list(predicted.texts), [task.answer(0)] * len(predicted.texts))[0])
    if not (classes := len(task.task.head.labels)):
        return predictions.astype(np.float64)[:, None]
    return np.eye(classes)[predictions.astype(np.int64)]


def ask_split(models: Sequence[TrainedModel], task_name: str, split: str, settings: JSONObject) -> tuple[Any, Any]:
    """(what the model that was trained on the task says about a split, the task). Raises FineryError."""
    stage = stage_for(models, [task_name], settings)
    recipe = recipe_of(models, stage)
    refuse_mistakes(recipe, stage)
    choice = stage.choices(recipe)[0][0]
    with tempfile.TemporaryDirectory() as folder:
        context = context_of(models, recipe, stage, Path(folder))
        task = choice.open_task()
        model = context.open_model(task.head, stage_id=choice.model, trained_head=True)
        request = SplitRequest(stage, choice, task, context, model, context.open_tokenizer(), split)
        answers = evaluation_of(task.kind).ask(request)
    return answers.predicted[0], task

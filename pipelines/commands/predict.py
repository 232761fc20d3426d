"""`finery predict`: predictions of a model for a split of a task or for the rows of a user's own file."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.commands.evaluate import stage_for
from pipelines.commands.trained_models import (
    Opener,
    TrainedModel,
    WarningLog,
    context_of,
    find,
    recipe_of,
    refuse_mistakes,
)
from pipelines.core.errors import CommandError, DataError, ModelError
from pipelines.core.files import JSONObject, finite, whole_file
from pipelines.core.model_abilities import head_of
from pipelines.core.registry import TASK_KINDS, TASKS
from pipelines.core.task_files import names_file
from pipelines.data import chat_formats, chat_templates
from pipelines.data.reward_inputs import settings_in
from pipelines.data.tables import READERS
from pipelines.models import checkpoint
from pipelines.models.generate import continue_prompts, how
from pipelines.models.heads import saved_head
from pipelines.tasks.base import LabelledTask, SplitLocation, TaskKind, resolve
from pipelines.tasks.benchmarks import read_file
from pipelines.tasks.causal.evaluation import template_of
from pipelines.tasks.evaluation import BenchmarkChoice, SplitRequest, evaluation_of
from pipelines.tasks.text_to_text import AsText

OWN = "data"
"""The split that the rows of one's own file are."""
ENDINGS = (".parquet", ".jsonl", ".csv", ".tsv")
"""Of the file of predictions."""
SHOWN = 20
"""Different answers up to which they are counted."""


@dataclass(frozen=True)
class PredictRequest:
    """What `finery predict` was asked."""

    model: str
    out: str
    task: str | None = None
    data: str | None = None
    text: Sequence[str] = ()
    split: str | None = None
    limit: int | None = None
    max_length: int | None = None
    batch_size: int = 32
    plain: bool = False
    """Whether the rows of `data` were lines of plain text: each has one column, which `text` names."""


def answer(fields: JSONObject) -> JSONObject:
    """Where the predictions lie, how many they are and how often each answer occurs. Raises FineryError."""
    request = PredictRequest(**fields)
    out = Path(request.out).expanduser()
    check_ending(out)
    model = chosen(find(request.model), request)
    if request.data is not None:
        task, split = own_task(model, request), OWN
    else:
        task, split = split_of(model, request)
    warnings: list[str] = []
    predicted = ask(model, task, split, request, warnings)
    columns = predicted if isinstance(predicted, dict) else predicted.columns(task)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table(out, columns)
    answers = [each for each in columns["prediction"] if isinstance(each, str)]
    counts = Counter(answers)
    return {
        "file": str(out),
        "rows": len(columns["index"]),
        "split": split,
        "task": task.name,
        "model": model.id,
        "columns": list(columns),
        "counts": dict(counts.most_common()) if len(counts) <= SHOWN and len(answers) > SHOWN else {},
        "warnings": warnings,
    }


def write_table(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Write the columns as the path's ending says, whole or not at all. Lists in CSV and TSV are JSON. Raises
    CommandError."""
    check_ending(path)
    names = list(columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with whole_file(path) as temporary:
        if path.suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(
                pa.table({name: list(values) for name, values in columns.items()}), temporary, compression="zstd"
            )
        elif path.suffix == ".jsonl":
            lines = "".join(json.dumps(finite(row), ensure_ascii=False) + "\n" for row in rows)
            temporary.write_text(lines, encoding="utf-8")
        else:
            text = io.StringIO()
            writer = csv.writer(text, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
            writer.writerow(names)
            writer.writerows([[_cell(row[name]) for name in names] for row in rows])
            temporary.write_text(text.getvalue(), encoding="utf-8")


def _cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else "" if value is None else value


def check_ending(path: Path) -> None:
    """Raise CommandError for a file that cannot be written."""
    if path.suffix not in ENDINGS:
        raise CommandError(f"--out '{path}' must end with one of {', '.join(ENDINGS)}")


def chosen(models: Sequence[TrainedModel], request: PredictRequest) -> TrainedModel:
    """The one model that is asked. Raises CommandError."""
    if len(models) == 1:
        return models[0]
    needed = request.task
    if needed is not None and needed in TASKS:
        needed = getattr(TASKS.load(needed), "trained_by", None) or needed
    fitting = [each for each in models if needed in (each.task, each.id)]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(f"{each.id} ({each.task})" for each in models)
    what = (
        f"none of them was trained on '{request.task}'"
        if request.task
        else "name one with --task, or give the folder of its stage"
    )
    raise CommandError(f"'{request.model}' holds several models: {listed}; {what}")


def split_of(model: TrainedModel, request: PredictRequest) -> tuple[Any, str]:
    """(the task, its split that is predicted). Raises CommandError."""
    if names_file(request.task):
        task = read_file(str(request.task)).task(Path(str(request.task)).stem)
        split = request.split or ("test" if "test" in task.splits else next(iter(task.evaluation_splits.values())))
        return (AsText(task) if getattr(model.subject, "as_text", False) else task), split
    if request.task is not None and request.task not in (*TASKS, model.task, model.id):
        raise CommandError(TASKS.unknown(request.task))
    if request.task is None and model.subject is None:
        raise CommandError(
            "the checkpoint does not say what task it was trained on; give --task glue/mrpc, or your own rows "
            "with --data FILE --text COLUMN"
        )
    trained_on = request.task is None or request.task in (model.task, model.id)
    task = (
        resolve(model.subject.task, model.id)
        if trained_on and model.subject is not None
        else TASKS.load(str(request.task))
    )
    split = request.split or ("test" if "test" in task.splits else next(iter(task.evaluation_splits.values())))
    return (AsText(task) if getattr(model.subject, "as_text", False) else task), split


def own_task(model: TrainedModel, request: PredictRequest) -> Any:
    """The model's task with the rows of one's own file. Labels in it are not looked at. Raises CommandError."""
    path = Path(str(request.data)).expanduser().absolute()
    if not path.exists():
        raise CommandError(f"--data '{request.data}' does not exist")
    if path.is_file() and path.suffix.lower() not in READERS:
        raise CommandError(f"--data '{request.data}' has an unknown format; known file endings: {', '.join(READERS)}")
    places = {OWN: SplitLocation(str(path), None, None)}
    task = named_task(model, request) or foreign_task(model)
    words = {
        "places": places,
        "evaluation_splits": {},
        "label": "",
        "sorted_by_label": False,
        "hidden_label": None,
        "empty_texts": True,
    }
    kind: type[TaskKind] = TASK_KINDS.load(task.kind)
    if kind.prompt_form != "dialogues":
        refuse_plain_text(task, request)
        words["columns"] = columns_for(task, request)
    if kind.finds_labels and task.labels is None:
        words["labels"] = class_names(model)
    task_of_file = evaluation_of(task.kind).without_gold(replace(task, **words))
    return AsText(task_of_file) if getattr(model.subject, "as_text", False) else task_of_file


def named_task(model: TrainedModel, request: PredictRequest) -> Any:
    """The task that `--task` names, else the one the model was trained on, if that is known."""
    if names_file(request.task):
        return read_file(str(request.task)).task(Path(str(request.task)).stem)
    if request.task is not None and request.task in TASKS:
        return TASKS.load(request.task)
    if request.task is not None and request.task not in (model.id, model.task):
        raise CommandError(TASKS.unknown(request.task))
    return None if model.subject is None else resolve(model.subject.task, model.id)


def refuse_plain_text(task: LabelledTask, request: PredictRequest) -> None:
    """Raise DataError for lines of plain text where an input of the task is more than a text."""
    evaluation = evaluation_of(task.kind)
    fields = evaluation.form(task)
    if not request.plain or (len(fields) == 1 and fields[0].control == "text"):
        return
    names = [each.name for each in fields]
    example = next(iter(evaluation.examples(task)), ["…"] * len(fields))
    raise DataError(
        f"standard input holds one text a line, but an input of this model is {' and '.join(names)}; give JSONL, such "
        f"as {json.dumps(dict(zip(names, example, strict=True)), ensure_ascii=False)}"
    )


def columns_for(task: LabelledTask, request: PredictRequest) -> tuple[str, ...]:
    """The columns that are read. Raises CommandError where another number of them is needed."""
    given = tuple(request.text) or task.columns
    kind: type[TaskKind] = TASK_KINDS.load(task.kind)
    if request.text and not kind.column_counts:
        known = "; or ".join(", ".join(each) for each in evaluation_of(task.kind).ways(task))
        raise CommandError(f"--text cannot name the columns that this model reads; call them {known}")
    if kind.column_counts and len(given) not in kind.column_counts:
        raise CommandError(f"--text is given {len(given)} times, must name {kind.columns_needed}")
    return given


def foreign_task(model: TrainedModel) -> LabelledTask:
    """A task for a checkpoint that says nothing about its training, by the head that it has. Raises ModelError."""
    config = checkpoint.config_of(model.checkpoint)
    saved = saved_head(Path(model.checkpoint.source))
    names = [str(name) for name in (getattr(config, "architectures", None) or [])]
    if saved is not None:
        head: str | None = saved.kind
    else:
        head = "reward" if settings_in(model.checkpoint.source) is not None else head_of(names)
    for name in TASK_KINDS:
        kind: type[TaskKind] = TASK_KINDS.load(name)
        columns = kind.unnamed_columns if kind.read_as is None and kind.head_kind == head else None
        if columns is not None and kind.answers_with(int(getattr(config, "num_labels", 2))):
            return kind.task_class()(name=OWN, kind=name, columns=columns, label="", metrics=(), places={})
    has = ", ".join(names) or "no class"
    raise ModelError(
        f"'{model.checkpoint.given}' names {has} in its config, which has no head that predicts for a file of "
        "texts; fine-tune it on a task first"
    )


def class_names(model: TrainedModel) -> tuple[str, ...]:
    """The classes that the model tells apart, in the order of its outputs."""
    config = checkpoint.config_of(model.checkpoint)
    return tuple(str(config.id2label[at]) for at in range(int(config.num_labels)))


def ask(
    model: TrainedModel,
    task: Any,
    split: str,
    request: PredictRequest,
    warnings: list[str],
    opener: Opener | None = None,
) -> Any:
    """What the model says: its `SplitPredictions`, or the columns of written continuations. Raises FineryError.

    `opener` is one that has opened the model before.
    """
    given = {
        "max_eval_samples": request.limit,
        "max_length": request.max_length,
        "per_device_eval_batch_size": request.batch_size,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    stage = stage_for([model], [next(iter(TASKS))] if model.subject is None else [], settings | {"id": "predict"})
    recipe = recipe_of([model], stage)
    if request.task is not None and (request.task in TASKS or names_file(request.task)) and model.subject is not None:
        named = stage_for([model], [request.task], settings)
        refuse_mistakes(recipe_of([model], named), named)
    choice = BenchmarkChoice(task.name, task.name, model.id, model.id, model.subject)
    with tempfile.TemporaryDirectory() as folder:
        context = context_of([model], recipe, stage, Path(folder), opener=opener)
        opened = context.open_model(task.head, stage_id=model.id, trained_head=True)
        split_request = SplitRequest(stage, choice, task, context, opened, context.open_tokenizer(), split)
        events = context.events
        assert isinstance(events, WarningLog)
        if TASK_KINDS.load(task.kind).prompt_form == "dialogues":
            predicted: Any = continued(split_request, request)
        else:
            evaluation = evaluation_of(task.kind)
            predicted = evaluation.ask(split_request).predicted[0]
            if request.data is not None:
                cut = evaluation.unread(split_request.tokenizer, predicted.rows, split_request.length())
                warnings += [cut] if cut else []
        warnings += events.warnings
        length = split_request.length()
        if request.max_length is not None and length < request.max_length and not isinstance(predicted, dict):
            warnings.append(f"max_length is {request.max_length:,}, but the model reads {length:,} tokens at most")
    return predicted


def continued(split_request: SplitRequest, request: PredictRequest) -> dict[str, list[Any]]:
    """What a decoder goes on with, prompt by prompt."""
    rows = prompts(split_request, request)
    template = template_of(split_request)
    dialogues = [chat_formats.read("prompt_completion", {"prompt": text, "completion": "?"}) for text in rows]
    dialogues = [each.in_turns() for each in dialogues] if template else dialogues
    if template or any(each.templated for each in dialogues):
        chat_templates.adopt(split_request.tokenizer, template)
    settings = how(split_request.model, split_request.tokenizer, split_request.stage.generation)
    texts = continue_prompts(
        split_request.model, split_request.tokenizer, dialogues, settings, **split_request.running(split_request.split)
    )
    return {"index": list(range(len(rows))), "text": rows, "prediction": [str(text) for text in texts]}


def prompts(split_request: SplitRequest, request: PredictRequest) -> list[str]:
    """The prompts of one's own file, or of a split. Raises DataError."""
    if request.data is None:
        return [str(text) for text in split_request.task.rows(split_request.split, request.limit).texts]
    column = (request.text or TASK_KINDS.load(split_request.task.kind).unnamed_columns)[0]
    source, inner = split_request.task.places[OWN].open(OWN)  # type: ignore[attr-defined]
    data = source.load(inner)
    if column not in data.column_names:
        raise DataError(
            f"{source.describe()} has no column '{column}'; columns found: {', '.join(data.column_names)}; name "
            "the prompts' with --text"
        )
    cells = data[column][: request.limit] if request.limit is not None else data[column][:]
    for number, cell in enumerate(cells, start=1):
        if not isinstance(cell, str) or not cell.strip():
            raise DataError(
                f"{source.describe()}, row {number} (the first is 1), holds {json.dumps(cell, default=str)[:40]} "
                f"in '{column}', must be a text"
            )
    return [str(cell) for cell in cells]

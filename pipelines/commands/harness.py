"""`finery harness`: any task of the lm-evaluation-harness on a checkpoint, tasks and data of one's own included.

The harness (`pip install lm_eval`) finds the task, makes the prompts and computes the scores; the model answers through
`evaluation.harness_model`. A task's YAML file may name Python functions, which are run: use tasks that you trust.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError, DataError
from pipelines.core.files import JSONObject
from pipelines.core.registry import nearest
from pipelines.models import checkpoint as checkpoints
from pipelines.models import heads
from pipelines.models.tokenizer import open_tokenizer

MISSING = "the lm-evaluation-harness is not installed; install it beside Finery: pip install lm_eval"


@dataclass(frozen=True)
class HarnessRequest:
    """What `finery harness` was asked."""

    model: str
    tasks: tuple[str, ...]
    num_fewshot: int | None = None
    """Examples before a question. Default: what the task says."""
    limit: int | None = None
    """Ask the first N questions of each task only."""
    include_path: str | None = None
    """A folder with tasks of one's own."""
    batch_size: int = 32
    seed: int = 1234
    """Draws the examples."""


def answer(fields: JSONObject) -> JSONObject:
    """The scores of every task, as plain data. Raises FineryError."""
    request = HarnessRequest(**{**fields, "tasks": tuple(fields["tasks"])})
    if find_spec("lm_eval") is None:
        raise CommandError(MISSING)
    checkpoint = checkpoints.find(request.model)
    tasks, manager = _tasks(request)
    family = heads.family_of(checkpoints.config_of(checkpoint))
    from lm_eval import simple_evaluate

    from pipelines.evaluation.few_shot.evaluation import READERS
    from pipelines.evaluation.few_shot.harness import FineryLM

    head = heads.FAMILY_HEADS[family]
    model = checkpoints.open_checkpoint(checkpoint, head, trained_head=True)
    asker = FineryLM(READERS[head.kind](model, open_tokenizer(checkpoint.tokenizer)), request.batch_size)
    try:
        results: Any = simple_evaluate(
            model=asker,
            tasks=tasks,
            num_fewshot=request.num_fewshot,
            limit=request.limit,
            task_manager=manager,
            log_samples=False,
            random_seed=request.seed,
            numpy_random_seed=request.seed,
            torch_random_seed=request.seed,
            fewshot_random_seed=request.seed,
        )
    except (OSError, ValueError, KeyError, ConnectionError) as error:
        sentence = " ".join(str(error).split())
        raise DataError(
            f"the harness could not ask {', '.join(tasks)}: {type(error).__name__}: {sentence[:300]}"
        ) from error
    return {
        "model": request.model,
        "family": family,
        "reads": asker.reader.limit,
        "cut": asker.cut,
        "tasks": _scores(results),
    }


def _tasks(request: HarnessRequest) -> tuple[list[str], Any]:
    """The tasks' names and the manager that knows them: one's own folder first, without the harness' thousands."""
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if request.include_path is not None and not Path(request.include_path).is_dir():
        raise CommandError(
            f"there is no folder '{request.include_path}'; --include-path takes a folder with YAML files of tasks"
        )
    own = TaskManager(include_path=request.include_path, include_defaults=False) if request.include_path else None
    if own is not None and all(own.match_tasks([task]) for task in request.tasks):
        return list(own.match_tasks(list(request.tasks))), own
    manager = TaskManager(include_path=request.include_path)
    names: list[str] = []
    for task in request.tasks:
        matched = manager.match_tasks([task])
        if not matched:
            raise CommandError(
                f"the harness knows no task '{task}'.{nearest(task, manager.all_tasks)} List all of them with: "
                "lm_eval ls tasks"
            )
        names += matched
    return list(dict.fromkeys(names)), manager


def _scores(results: JSONObject) -> JSONObject:
    """By task: its scores with their standard errors, how many examples stood before a question, how many questions."""
    scores_by_task: dict[str, Any] = {}
    for task, values in results["results"].items():
        scores: dict[str, dict[str, float | None]] = {}
        for key, value in values.items():
            metric, comma, kind = key.partition(",")
            if not comma or not isinstance(value, int | float) or metric.endswith("_stderr"):
                continue
            error = values.get(f"{metric}_stderr,{kind}")
            name = metric if kind == "none" else f"{metric},{kind}"
            scores[name] = {"value": float(value), "stderr": float(error) if isinstance(error, int | float) else None}
        counts = results.get("n-samples", {}).get(task, {})
        scores_by_task[task] = {
            "scores": scores,
            "num_fewshot": results.get("n-shot", {}).get(task),
            "questions": counts.get("effective"),
            "version": results.get("versions", {}).get(task),
        }
    return scores_by_task

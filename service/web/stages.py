"""The stages of a job as its page shows them: what each reads, how far it is, what came out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pipelines.blocks import Mistakes
from pipelines.errors import FineryError
from pipelines.recipe import START, Recipe, stage_ids, validated
from service.jobs.job import Event, Job
from service.jobs.states import State
from service.safety.network_recipes import NOWHERE, read_network
from service.safety.references import references, replaced
from service.store.results import StageResult

KINDS = ("started", "stage_finished", "failed", "stopped")
"""Events that say how a stage is doing; there are few of them. How far the current one is stands in the job's progress."""
MEANING = {
    "waiting": "not started", "running": "running", "done": "done", "reused": "taken from an earlier run",
    "failed": "failed", "stopped": "stopped", "given": "given",
}  # fmt: skip


@dataclass(frozen=True)
class StageView:
    """One stage."""

    id: str
    kind: str
    reads: tuple[str, ...] = ()
    """Ids of the stages whose results it needs; `model` is the recipe's own."""
    detail: str = ""
    """Its task, objective, benchmarks or destination, and its tuner."""
    state: str = "waiting"
    """A key of MEANING."""
    step: int | None = None
    total: int | None = None
    what: str = ""
    seconds: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """How much of it is done, 0 to 1; None when nobody knows."""
        if self.state in ("done", "reused"):
            return 1.0
        return min(1.0, self.step / self.total) if self.step is not None and self.total else None


def stages_of(job: Job, events: Iterable[Event], results: Sequence[StageResult]) -> list[StageView]:
    """The recipe's model and stages in order, each with its state. Stages that only events know, such as `tokenizer`, come too."""
    found = {view.id: view for view in planned(job.request.recipe, job.request.overrides)}
    current: str | None = None
    for event in events:
        if event.stage is None:
            if event.event in ("failed", "stopped") and current in found:
                found[current] = replace(found[current], state=event.event)
            continue
        before = found.get(event.stage) or StageView(event.stage, event.stage, (START,) if START in found else ())
        current = event.stage
        found[event.stage] = _after(before, event)
    found = _with_progress(found, job)
    for result in results:
        if "/" in result.stage:  # of a study's cell
            continue
        before = found.get(result.stage) or StageView(result.stage, result.stage)
        state = "reused" if result.reused else "done"
        found[result.stage] = replace(before, state=state, seconds=result.seconds, metrics=result.metrics, what="")
    ended = {State.FAILED: "failed", State.CANCELLED: "stopped", State.PAUSED: "stopped", State.QUEUED: "waiting"}.get(job.state)
    if ended is not None:
        found = {key: replace(view, state=ended) if view.state == "running" else view for key, view in found.items()}
    return list(found.values())


def _after(view: StageView, event: Event) -> StageView:
    fields = event.fields
    if event.event == "started":
        return replace(view, state="running", what="")
    if event.event == "stage_finished":
        metrics = fields.get("metrics")
        return replace(
            view, state="reused" if fields.get("reused") else "done", seconds=_number(fields.get("seconds")), what="",
            metrics=metrics if isinstance(metrics, Mapping) else {},
        )  # fmt: skip
    if event.event in ("failed", "stopped"):
        return replace(view, state=event.event)
    return view


def _with_progress(found: dict[str, StageView], job: Job) -> dict[str, StageView]:
    """The current stage with its step, and with what it is doing."""
    progress = job.progress
    view = found.get(str(progress.get("stage")))
    if view is None or view.state != "running":
        return found
    now = replace(view, step=_whole(progress.get("step")), total=_whole(progress.get("total")), what=str(progress.get("what") or ""))
    return {**found, view.id: now}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@lru_cache(maxsize=256)
def planned(text: str, overrides: tuple[str, ...] = ()) -> tuple[StageView, ...]:
    """The model and the stages that a recipe names; nothing when it cannot be read."""
    try:
        data = read_network(text, overrides).data
    except FineryError:
        return ()
    reads = _reads(data)
    views = [StageView(START, "model", (), _start(data.get("model")), "given")]
    before = START
    for place, stage in enumerate(data.get("stages") or ()):
        identifier = stage_ids(data)[place]
        if identifier is None or not isinstance(stage, Mapping):
            continue
        kind = str(stage.get("stage", ""))
        views.append(StageView(identifier, kind, reads.get(identifier, (before,)), _detail(stage)))
        before = identifier if kind in ("pretrain", "supervised", "multi_task") else before
    return tuple(views)


def _reads(data: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What every stage reads; nothing when the recipe is not valid (any more)."""
    stand_ins = {reference.place: "pending/reference" for reference in references(data)}
    try:
        recipe: Recipe = validated(replaced(data, stand_ins), NOWHERE, stages_fit=False)
        return {stage.id: tuple(dict.fromkeys(each.partition("/")[0] for each in stage.reads(recipe))) for stage in recipe.stages}
    except (Mistakes, FineryError, KeyError, ValueError, TypeError):
        return {}


def _start(model: Any) -> str:
    if not isinstance(model, Mapping):
        return ""
    architecture = model.get("architecture")
    if isinstance(architecture, Mapping):
        return str(architecture.get("preset") or architecture.get("model_type") or "from scratch")
    return str(model.get("checkpoint") or "")


def _detail(stage: Mapping[str, Any]) -> str:
    parts = []
    for key in ("task", "tasks", "objective", "benchmarks", "to"):
        value = stage.get(key)
        if isinstance(value, str):
            parts.append(value)
        elif isinstance(value, Mapping):
            parts.append(str(value.get("kind") or value.get("name") or ""))
        elif isinstance(value, list | tuple):
            parts.append(", ".join(str(each.get("task", "")) if isinstance(each, Mapping) else str(each) for each in value))
    tuner = stage.get("tuner")
    name = tuner.get("name") if isinstance(tuner, Mapping) else tuner
    if isinstance(name, str) and name != "full":
        parts.append(name)
    return " · ".join(part for part in parts if part)

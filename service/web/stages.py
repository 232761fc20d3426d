"""The stages of a job as its page shows them: what each reads, how far it is, and the drawing of their graph.

The drawing has columns by how far stages are from the model, and curves from what is read to what reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pipelines.core.config import ConfigIssues
from pipelines.core.errors import FineryError
from pipelines.core.recipe import START, Recipe, stage_ids, validated
from service.jobs.job import Event, Job
from service.jobs.states import State
from service.safety.network_recipes import NOWHERE, read_network
from service.safety.references import references, replaced
from service.store.results import StageResult

KINDS = ("started", "stage_finished", "failed", "stopped")
"""Events that say how a stage is doing; there are few of them. How far the current one is stands in the job's
progress."""
MEANING = {
    "waiting": "not started",
    "running": "running",
    "done": "done",
    "reused": "taken from an earlier run",
    "failed": "failed",
    "stopped": "stopped",
    "given": "given",
}


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
    """The recipe's model and stages in order, each with its state. Stages that only events know, such as
    `tokenizer`, come too."""
    views = {view.id: view for view in planned(job.request.recipe, job.request.overrides)}
    current: str | None = None
    for event in events:
        if event.stage is None:
            if event.event in ("failed", "stopped") and current in views:
                views[current] = replace(views[current], state=event.event)
            continue
        before = views.get(event.stage) or StageView(event.stage, event.stage, (START,) if START in views else ())
        current = event.stage
        views[event.stage] = _after(before, event)
    views = _with_progress(views, job)
    for result in results:
        if "/" in result.stage:  # of a study's cell
            continue
        before = views.get(result.stage) or StageView(result.stage, result.stage)
        state = "reused" if result.reused else "done"
        views[result.stage] = replace(before, state=state, seconds=result.seconds, metrics=result.metrics, what="")
    ended = {State.FAILED: "failed", State.CANCELLED: "stopped", State.PAUSED: "stopped", State.QUEUED: "waiting"}.get(
        job.state
    )
    if ended is not None:
        views = {key: replace(view, state=ended) if view.state == "running" else view for key, view in views.items()}
    return list(views.values())


def _after(view: StageView, event: Event) -> StageView:
    fields = event.fields
    if event.event == "started":
        return replace(view, state="running", what="")
    if event.event == "stage_finished":
        metrics = fields.get("metrics")
        return replace(
            view,
            state="reused" if fields.get("reused") else "done",
            seconds=_number(fields.get("seconds")),
            what="",
            metrics=metrics if isinstance(metrics, Mapping) else {},
        )
    if event.event in ("failed", "stopped"):
        return replace(view, state=event.event)
    return view


def _with_progress(views: dict[str, StageView], job: Job) -> dict[str, StageView]:
    """The current stage with its step, and with what it is doing."""
    progress = job.progress
    view = views.get(str(progress.get("stage")))
    if view is None or view.state != "running":
        return views
    now = replace(
        view,
        step=_whole(progress.get("step")),
        total=_whole(progress.get("total")),
        what=str(progress.get("what") or ""),
    )
    return {**views, view.id: now}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
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


def _reads(data: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """What every stage reads; nothing when the recipe is not valid (any more)."""
    stand_ins = {reference.place: "pending/reference" for reference in references(data)}
    try:
        recipe: Recipe = validated(replaced(data, stand_ins), NOWHERE, stages_fit=False)
        return {
            stage.id: tuple(dict.fromkeys(each.partition("/")[0] for each in stage.reads(recipe)))
            for stage in recipe.stages
        }
    except (ConfigIssues, FineryError, KeyError, ValueError, TypeError):
        return {}


def _start(model: object) -> str:
    if not isinstance(model, Mapping):
        return ""
    architecture = model.get("architecture")
    if isinstance(architecture, Mapping):
        return str(architecture.get("preset") or architecture.get("model_type") or "from scratch")
    return str(model.get("checkpoint") or "")


def _detail(stage: Mapping[str, object]) -> str:
    parts = []
    for key in ("task", "tasks", "objective", "benchmarks", "to"):
        value = stage.get(key)
        if isinstance(value, str):
            parts.append(value)
        elif isinstance(value, Mapping):
            parts.append(str(value.get("kind") or value.get("name") or ""))
        elif isinstance(value, list | tuple):
            parts.append(
                ", ".join(str(each.get("task", "")) if isinstance(each, Mapping) else str(each) for each in value)
            )
    tuner = stage.get("tuner")
    name = tuner.get("name") if isinstance(tuner, Mapping) else tuner
    if isinstance(name, str) and name != "full":
        parts.append(name)
    return " · ".join(part for part in parts if part)


WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 184, 54, 44, 16, 4
"""Of a box, the gaps between boxes, and the space around all, in the drawing's own units."""
LETTERS = 24


@dataclass(frozen=True)
class StageNode:
    """A stage at its place."""

    view: StageView
    x: int
    y: int

    @property
    def bar(self) -> int:
        """Length of its progress bar."""
        return round(WIDTH * (self.view.share or 0))

    @property
    def name(self) -> str:
        return clipped(self.view.id)

    @property
    def detail(self) -> str:
        return clipped(self.view.detail or self.view.kind, LETTERS + 5)


@dataclass(frozen=True)
class StageGraph:
    """All nodes, the edges as SVG paths, and the size of the whole."""

    nodes: tuple[StageNode, ...]
    edges: tuple[str, ...]
    width: int
    height: int


def clipped(text: str, letters: int = LETTERS) -> str:
    """The text, or its start and an ellipsis."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def graph_of(views: Sequence[StageView], late: bool = False) -> StageGraph:
    """A layered drawing of a directed graph without cycles; a stage that names a later or unknown one is drawn
    without that edge. With `late` what reads nothing stands beside the first that reads it."""
    depth: dict[str, int] = {}
    for view in views:
        depth[view.id] = 1 + max((depth[source] for source in view.reads if source in depth), default=-1)
    for view in views if late else ():
        readers = [depth[each.id] for each in views if view.id in each.reads]
        if not view.reads and readers:
            depth[view.id] = max(0, min(readers) - 1)
    columns: dict[int, int] = {}
    nodes: dict[str, StageNode] = {}
    edges = []
    reached: dict[str, set[str]] = {}
    for view in views:
        reached[view.id] = {source for direct in view.reads for source in (direct, *reached.get(direct, ()))}
        column = depth[view.id]
        row = columns.get(column, 0)
        columns[column] = row + 1
        node = StageNode(view, MARGIN + column * (WIDTH + ACROSS), MARGIN + row * (HEIGHT + DOWN))
        edges += [_edge(nodes[source], node) for source in _direct(view, reached) if source in nodes]
        nodes[view.id] = node
    width = (max(columns, default=0) + 1) * (WIDTH + ACROSS) - ACROSS + 2 * MARGIN
    height = max(columns.values(), default=1) * (HEIGHT + DOWN) - DOWN + 2 * MARGIN
    return StageGraph(tuple(nodes.values()), tuple(edges), width, height)


def _direct(view: StageView, reached: Mapping[str, set[str]]) -> list[str]:
    """What it reads, without what it reads by way of another one too: that edge would only cross the others."""
    return [
        source
        for source in view.reads
        if not any(source in reached.get(other, ()) for other in view.reads if other != source)
    ]


def _edge(source: StageNode, target: StageNode) -> str:
    x1, y1 = source.x + WIDTH, source.y + HEIGHT // 2
    x2, y2 = target.x, target.y + HEIGHT // 2
    bend = max(12, (x2 - x1) // 2)
    return f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"

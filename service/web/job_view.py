"""Everything that the page of one job shows, read from the store in one go, and its metrics as curves.

Curves are drawn for charts, and told as the lines of a table for whoever does not see charts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.core.scores import COUNTS, PEERS, smaller_is_better
from service.api.context import Service
from service.api.watching import CellDocument, Series, cells, curves
from service.jobs.job import Attempt, Event, Job
from service.jobs.states import Move, allowed
from service.store.errors import NotFound
from service.store.models import PublishedModel
from service.store.results import StageResult, flat_scores
from service.web.sessions import Visitor
from service.web.stages import KINDS, StageGraph, StageView, graph_of, stages_of

MOST_POINTS = 1_500
"""Points of one curve on a page; more than a screen has columns are not seen."""
LEFT_OUT = ("epoch", "total_flos", "train_runtime")
"""Metrics that say nothing as a curve."""
FIRST = ("loss", "eval_loss")
MOST_KEPT = 32
_kept: OrderedDict[tuple[str, int], list[Series]] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True)
class Summary:
    """One curve in words."""

    stage: str
    metric: str
    points: int
    first: float
    last: float
    least: float
    most: float
    step: int
    """The last one."""


def series_of(service: Service, visitor: Visitor, job: Job) -> list[Series]:
    """Every curve of a job with two points and more: stages as they came, losses first.

    Of a long run that is a second's work, so the newest answers are kept for as long as the job has no later event.
    """
    key = (job.id, job.last_event)
    with _lock:
        series = _kept.get(key)
    if series is None:
        series = _series_of(service, visitor, job)
        with _lock:
            _kept[key] = series
            while len(_kept) > MOST_KEPT:
                _kept.popitem(last=False)
    return series


def _series_of(service: Service, visitor: Visitor, job: Job) -> list[Series]:
    series = [
        each
        for each in curves(service, visitor.caller, job, MOST_POINTS)
        if each.name not in LEFT_OUT and len(each.points) > 1
    ]
    order = list(dict.fromkeys(each.stage for each in series))
    return sorted(series, key=lambda each: (order.index(each.stage), _rank(each.name)))


def _rank(metric: str) -> tuple[int, str]:
    return (FIRST.index(metric) if metric in FIRST else len(FIRST), metric.removeprefix("eval_"))


def points_of(events: Iterable[Event]) -> Iterator[tuple[str, str, int, float]]:
    """(stage, metric, step, value) of every number in metric events."""
    for event in events:
        metrics = event.fields.get("metrics")
        for metric, value in metrics.items() if isinstance(metrics, Mapping) else ():
            if metric not in LEFT_OUT and isinstance(value, int | float) and not isinstance(value, bool):
                yield event.stage or "", str(metric), int(event.step or 0), float(value)


def as_json(series: Sequence[Series]) -> list[dict[str, Any]]:
    """What the page's script draws: stages in order, each with its curves as `[steps, values]`."""
    stages: dict[str, dict[str, Any]] = {}
    for each in series:
        steps, values = zip(*each.points, strict=True)
        stages.setdefault(each.stage or "", {})[each.name] = [steps, values]
    return [{"stage": stage, "curves": by_name} for stage, by_name in stages.items()]


def summaries(series: Sequence[Series]) -> list[Summary]:
    """Every curve as one line of a table."""
    lines = []
    for each in series:
        values = [value for _, value in each.points]
        lines.append(
            Summary(
                each.stage or "",
                each.name,
                len(values),
                values[0],
                values[-1],
                min(values),
                max(values),
                each.points[-1][0],
            )
        )
    return lines


BUTTONS = (Move.PAUSE, Move.RESUME, Move.RETRY, Move.CANCEL)
"""Moves that a user may ask for, in the order of the buttons."""
HAPPENED = ("state", "started", "checkpoint", "stage_finished", "failed", "stopped", "finished")
SHOWN = (*HAPPENED, "sample", "warning")
MOST_EVENTS = 5_000
MOST_HAPPENED = 80
MOST_SAMPLES = 40
MOST_COLUMNS = 8
TRAINING = (
    "train_loss",
    "train_runtime",
    "train_samples_per_second",
    "train_tokens_per_second",
    "train_utilisation",
    "trainable_parameters",
    "all_parameters",
    "peak_memory_bytes",
    "energy_joules",
)


@dataclass(frozen=True)
class JobView:
    """One job as its page shows it."""

    job: Job
    stages: list[StageView]
    graph: StageGraph
    attempts: list[Attempt]
    results: list[StageResult]
    scores: list[tuple[str, str, Mapping[str, Any]]]
    """(stage, benchmark, {metric: value})."""
    costs: list[tuple[str, Mapping[str, Any]]]
    """(stage, what its training took)."""
    samples: list[Event]
    warnings: list[Event]
    happened: list[Event]
    """The newest of the events that mark a step on the way, oldest first."""
    cells: list[CellDocument]
    """Of a study."""
    columns: list[tuple[str, str]]
    """(benchmark, metric) of every score that a cell has."""
    cell_scores: Mapping[str, Mapping[tuple[str, str], float]]
    """Cell -> its scores by column."""
    best: Mapping[tuple[str, str], float]
    """The best value of each column that has several."""
    models: list[PublishedModel]
    moves: tuple[Move, ...]
    """What this visitor may do to it now."""
    depends_on: list[tuple[str, Job | None]]

    @property
    def study(self) -> bool:
        """Whether it is a recipe with a matrix."""
        return is_study(self.job)


def is_study(job: Job) -> bool:
    """Whether a job's recipe has a matrix."""
    return any(line.startswith("matrix:") for line in job.request.recipe.splitlines())


def job_view(service: Service, visitor: Visitor, job_id: str) -> JobView:
    """Read a job. Raises NotFound, also for another project's."""
    store, project = service.store, visitor.project
    job = without_secrets(service, store.job(job_id, project))
    results = store.stage_results(job_id, project)
    happened = [
        replace(event, fields=service.redactor.plain(event.fields))
        for event in store.events_after(job_id, limit=MOST_EVENTS, project=project, kinds=SHOWN)
    ]
    stages = stages_of(job, [event for event in happened if event.event in KINDS], results)
    scores, costs = _figures(stages)
    of_cells = _scores_of_cells(results)
    columns = list(dict.fromkeys(column for cell_scores in of_cells.values() for column in cell_scores))[:MOST_COLUMNS]
    return JobView(
        job,
        stages,
        graph_of(stages),
        store.attempts(job_id, project),
        results,
        scores,
        costs,
        [event for event in happened if event.event == "sample"][-MOST_SAMPLES:],
        [event for event in happened if event.event == "warning"],
        [event for event in happened if event.event in HAPPENED][-MOST_HAPPENED:],
        cells(job_id, service, visitor.caller) if is_study(job) else [],
        columns,
        of_cells,
        _best(columns, of_cells),
        store.models(project, job=job_id),
        tuple(move for move in BUTTONS if move in allowed(job.state)) if visitor.may_submit else (),
        [(other, _other(service, visitor, other)) for other in job.request.depends_on],
    )


def _other(service: Service, visitor: Visitor, job_id: str) -> Job | None:
    try:
        return service.store.job(job_id, visitor.project)
    except NotFound:
        return None


def without_secrets(service: Service, job: Job) -> Job:
    """The job with what looks like a secret taken out of its texts."""
    redacted = service.redactor.text
    request = replace(
        job.request, recipe=redacted(job.request.recipe), overrides=tuple(map(redacted, job.request.overrides))
    )
    # what a run says it is doing may name a place on the server
    home = f"{service.settings.home}/"
    progress = {
        key: redacted(value.replace(home, "")) if isinstance(value, str) else value
        for key, value in job.progress.items()
    }
    return replace(job, request=request, message=redacted(job.message.replace(home, "")), progress=progress)


def _scores_of_cells(results: list[StageResult]) -> dict[str, dict[tuple[str, str], float]]:
    """The scores of a study's cells, whose stages are kept as `cells/01/evaluate`."""
    scores: dict[str, dict[tuple[str, str], float]] = {}
    for result in results:
        cell, slash, _ = result.stage.rpartition("/")
        if not slash:
            continue
        for benchmark, metric, value in flat_scores(result.metrics):
            if metric not in COUNTS and not metric.startswith(tuple(f"{peer}_" for peer in PEERS)):
                scores.setdefault(cell, {})[benchmark, metric] = value
    return scores


def _best(
    columns: list[tuple[str, str]], scores: Mapping[str, Mapping[tuple[str, str], float]]
) -> dict[tuple[str, str], float]:
    best = {}
    for column in columns:
        values = {each[column] for each in scores.values() if column in each}
        if len(values) > 1:
            best[column] = min(values) if smaller_is_better(column[1]) else max(values)
    return best


def _figures(
    stages: list[StageView],
) -> tuple[list[tuple[str, str, Mapping[str, Any]]], list[tuple[str, Mapping[str, Any]]]]:
    """Scores of evaluate stages, and costs of training stages."""
    scores: list[tuple[str, str, Mapping[str, Any]]] = []
    costs: list[tuple[str, Mapping[str, Any]]] = []
    for view in stages:
        nested = {name: values for name, values in view.metrics.items() if isinstance(values, Mapping)}
        figures = {
            name: {key: value for key, value in values.items() if isinstance(value, int | float)}
            for name, values in nested.items()
        }
        scores += [(view.id, name, numbers) for name, numbers in figures.items() if numbers]
        mine = {key: view.metrics[key] for key in TRAINING if isinstance(view.metrics.get(key), int | float)}
        if mine:
            costs.append((view.id, mine))
    return scores, costs

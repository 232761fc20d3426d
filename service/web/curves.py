"""The metrics of a job as curves for charts, and as the lines of a table for whoever does not see charts."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.api.context import Service
from service.api.routes.watching import Series, curves
from service.jobs.job import Event, Job
from service.web.sessions import Visitor

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
        kept = _kept.get(key)
    if kept is None:
        kept = _series_of(service, visitor, job)
        with _lock:
            _kept[key] = kept
            while len(_kept) > MOST_KEPT:
                _kept.popitem(last=False)
    return kept


def _series_of(service: Service, visitor: Visitor, job: Job) -> list[Series]:
    found = [each for each in curves(service, visitor.caller, job, MOST_POINTS) if each.name not in LEFT_OUT and len(each.points) > 1]
    order = list(dict.fromkeys(each.stage for each in found))
    return sorted(found, key=lambda each: (order.index(each.stage), _rank(each.name)))


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
    return [{"stage": stage, "curves": found} for stage, found in stages.items()]


def summaries(series: Sequence[Series]) -> list[Summary]:
    """Every curve as one line of a table."""
    found = []
    for each in series:
        values = [value for _, value in each.points]
        found.append(Summary(each.stage or "", each.name, len(values), values[0], values[-1], min(values), max(values), each.points[-1][0]))
    return found

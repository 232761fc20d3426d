"""The leaderboard: the scores on one benchmark, best first."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from pipelines.fields.scores import COUNTS, PEERS, smaller_is_better
from service.web.rendering import page
from service.web.visiting import Seen, new_router, service_of

router = new_router()
FIRST = ("f1", "accuracy", "matthews_correlation", "exact_match", "pearson", "perplexity")
"""Which metric is shown when none was chosen."""


@router.get("/leaderboard")
def leaderboard(
    request: Request, visitor: Seen, benchmark: Annotated[str, Query(max_length=200)] = "", metric: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """All scores on a benchmark; without a name, on the one with the most."""
    store = service_of(request).store
    found: dict[str, dict[str, int]] = {}
    for name, measure, count in store.benchmarks(visitor.project):
        if measure not in COUNTS and not measure.startswith(tuple(f"{peer}_" for peer in PEERS)):
            found.setdefault(name, {})[measure] = count
    if not benchmark and found:
        benchmark = max(found, key=lambda name: max(found[name].values()))
    metrics = found.get(benchmark, {})
    if metric not in metrics:
        metric = next((each for each in FIRST if each in metrics), next(iter(metrics), ""))
    rows = store.leaderboard(visitor.project, benchmark, metric) if metric else []
    values = [row.value for row in rows]
    return page(
        request, "leaderboard.html.jinja", visitor, benchmarks=found, benchmark=benchmark, metric=metric, metrics=metrics, rows=rows,
        lower=smaller_is_better(metric), low=min([0.0, *values]), high=max([*values, 0.0]),
    )  # fmt: skip

"""What a model must score before it may be published: `{"glue/mrpc.f1": ">= 0.80"}`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipelines.blocks import show
from pipelines.fields.scores import POLICY_SCORES, SMALLER_IS_BETTER, score_names
from pipelines.registry import METRICS, nearest

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
EXAMPLE = "write an operator and a number, such as '>= 0.80'"
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_COMPARISON = re.compile(r"\s*(?P<operator>[^\s\d.+\-\w]*)\s*(?P<number>.*?)\s*", re.DOTALL)
FRACTIONS = ("glue/", "race/")
"""Benchmarks under these names score between -1 and 1, so that a threshold of 80 can never have been meant."""

PERCENT = ("squad", "squad_v2")
"""Benchmarks that score between 0 and 100, so that a threshold of 0.8 can never have been meant."""


@dataclass(frozen=True)
class Requirement:
    """One comparison that a score must pass."""

    benchmark: str
    """`glue/mrpc`, or the id of a stage with an inline task."""
    metric: str
    """`f1`, with the suffix of its split where a benchmark has several: `accuracy_mm`."""
    operator: str
    threshold: float
    written: str
    """The comparison as it stands in the recipe."""

    @property
    def path(self) -> str:
        """The key in the recipe: `glue/mrpc.f1`."""
        return f"{self.benchmark}.{self.metric}"

    def met_by(self, score: float) -> bool:
        """Whether the score passes. Not-a-number passes nothing."""
        return OPERATORS[self.operator](score, self.threshold)

    def unmet(self, scores: Mapping[str, Mapping[str, float]]) -> str | None:
        """What is wrong with the scores, or None when the requirement is met."""
        found = scores.get(self.benchmark, {}).get(self.metric)
        if found is None:
            scored = ", ".join(f"{name}.{metric}" for name, metrics in scores.items() for metric in metrics)
            return f"{self.path} must be {self.written} but was not scored (scored: {scored or 'nothing'})"
        if self.met_by(found):
            return None
        return f"{self.path} is {found:.6g}, must be {self.written}"


def parse(path: str, comparison: object) -> Requirement:
    """Read one entry of `require`. Raises ValueError with a sentence that names what is allowed."""
    benchmark, dot, metric = path.rpartition(".")
    if not dot or not benchmark or not metric or path != path.strip():
        raise ValueError(f"'{path}' is no metric; write BENCHMARK.METRIC, such as glue/mrpc.f1")
    known = sorted({*score_names(METRICS), *SMALLER_IS_BETTER, *POLICY_SCORES, "pair_accuracy", "acc"})
    if not any(metric == name or metric.startswith(f"{name}_") for name in known):
        raise ValueError(f"unknown metric '{metric}'.{nearest(metric, known)} Available: {', '.join(known)}")
    if not isinstance(comparison, str):
        raise ValueError(f"is {show(comparison)}, must be a comparison; {EXAMPLE}")
    match = _COMPARISON.fullmatch(comparison)
    symbol = match["operator"] if match else ""
    if match is None or symbol not in OPERATORS:
        given = f"operator '{symbol}'" if symbol else "no operator"
        raise ValueError(f"is {show(comparison)} with {given}; allowed: {', '.join(OPERATORS)}; {EXAMPLE}")
    if not _NUMBER.fullmatch(match["number"]):
        raise ValueError(f"is {show(comparison)}, but '{match['number']}' is not a number; {EXAMPLE}")
    threshold = float(match["number"])
    if threshold in (float("inf"), float("-inf")):
        raise ValueError(f"is {show(comparison)}, but '{match['number']}' is too large a number; {EXAMPLE}")
    if benchmark.startswith(FRACTIONS) and abs(threshold) > 1:
        raise ValueError(
            f"is {show(comparison)}, but the scores of {benchmark} lie between -1 and 1; "
            f"write {threshold / 100:g} for {threshold:g} %"
        )
    if benchmark.partition("/")[0] in PERCENT and 0 < abs(threshold) < 1:
        raise ValueError(f"is {show(comparison)}, but the scores of {benchmark} lie between 0 and 100; write {threshold * 100:g}")
    return Requirement(benchmark, metric, symbol, threshold, f"{symbol} {match['number']}")

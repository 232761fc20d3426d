"""Whether one model is better than another on the same examples: the tests, each with its p-value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pipelines.evaluation.significance.bootstrap import p_of_draws
from pipelines.evaluation.significance.mcnemar import McNemar, mcnemar
from pipelines.evaluation.significance.randomisation import ROUNDS, randomisation
from pipelines.study_results import SEED, Result
from pipelines.study_statistics import Estimate, paired_difference

Test = Literal["bootstrap", "randomisation", "mcnemar"]
TESTS: tuple[Test, ...] = ("bootstrap", "randomisation", "mcnemar")
NAMES = {"bootstrap": "paired bootstrap", "randomisation": "approximate randomisation", "mcnemar": "McNemar (exact)"}
"""How they are called where people read."""
BUSY = 2e6
"""Examples times rounds beyond which an answer in words is shuffled less often: each round counts all of them."""


@dataclass
class Tested:
    """What the tests say about two models on one benchmark."""

    differences: dict[str, Estimate] = field(default_factory=dict)
    """By score: the first model's minus the second's, with its bootstrap interval."""
    p_values: dict[str, dict[str, float]] = field(default_factory=dict)
    """By score, then by test."""
    mcnemar: McNemar | None = None
    """Of the answers that are simply right or wrong."""


def held_against(one: Result, other: Result, tests: tuple[Test, ...]) -> Tested:
    """The tests on every score of two models that were scored on the same examples."""
    found = Tested()
    for metric in one.metrics:
        if metric not in one.draws or metric not in other.draws or metric not in other.metrics:
            continue
        drawn = one.draws[metric], other.draws[metric]
        estimate = paired_difference([one.metrics[metric]], [other.metrics[metric]], [drawn[0]], [drawn[1]], SEED)
        if estimate is None:
            continue
        found.differences[metric] = estimate
        if "bootstrap" in tests:
            found.p_values.setdefault(metric, {})["bootstrap"] = p_of_draws(drawn[0] - drawn[1], estimate.value)
    if "randomisation" in tests:
        for metric, p_value in _shuffled(one, other).items():
            if metric in found.differences:
                found.p_values.setdefault(metric, {})["randomisation"] = p_value
    if "mcnemar" in tests:
        found.mcnemar = _judged(one, other)
        if found.mcnemar is not None and one.main in found.differences:
            found.p_values.setdefault(one.main, {})["mcnemar"] = found.mcnemar.exact
    return found


def _shuffled(one: Result, other: Result) -> dict[str, float]:
    """Approximate randomisation, split by split."""
    found: dict[str, float] = {}
    for suffix, part in one.parts.items():
        against: Any = other.parts.get(suffix)
        if against is None or type(against) is not type(part):
            continue
        scored = _swapper(part, against)
        rounds = max(199, min(ROUNDS, int(BUSY / len(part))))
        found |= {f"{name}{suffix}": value for name, value in randomisation(len(part), scored, SEED, rounds).items()}
    return found


def _swapper(part: Any, against: Any) -> Any:
    return lambda swapped: (part.mixed(against, swapped), against.mixed(part, swapped))


def _judged(one: Result, other: Result) -> McNemar | None:
    """McNemar's test on the split of the main score."""
    for suffix, part in one.parts.items():
        against = other.parts.get(suffix)
        if one.main.endswith(suffix) and against is not None and part.right is not None and against.right is not None:
            return mcnemar(part.right, against.right)
    return None

"""What a study expected of its methods, and what came out: confirmed, refuted or undecided.

A hypothesis is about two entries of the matrix on one benchmark, at equal entries of all other keys, or about one and
a baseline that its evaluate stages fit on the same rows. Their difference is tested as rows are, paired by examples and
seeds, and its p-values are corrected for all hypotheses of the study. Without three seeds of both, or without a search
of their settings, nothing is confirmed or refuted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.core.files import JSONObject
from pipelines.core.scores import smaller_is_better
from pipelines.core.study_cells import named
from pipelines.core.study_options import Hypothesis
from pipelines.evaluation.resampling import Estimate
from pipelines.metrics.statistics import SIGNIFICANCE_LEVEL, Correction, corrected, shown
from pipelines.studies.table import Blocks, StudyRow, held_against, row_of

Outcome = Literal["confirmed", "refuted", "undecided"]


@dataclass
class TestedHypothesis:
    """One hypothesis on one benchmark."""

    hypothesis: Hypothesis
    labels: Mapping[str, str]
    """The entries of the other keys."""
    benchmark: str
    metric: str
    difference: Estimate
    """The first entry's score minus the second's."""
    margin: float | None
    lacks: Sequence[str]
    """What is missing for a claim."""
    p: float | None = None
    """That there is a difference, corrected for all hypotheses."""
    p_equivalent: float | None = None
    """That it lies within the margin, corrected alike."""

    @property
    def outcome(self) -> Outcome:
        """What the tests say of it."""
        if self.lacks:
            return "undecided"
        differs = self.difference.clear and self.p is not None and self.p <= SIGNIFICANCE_LEVEL
        alike = self.p_equivalent is not None and self.p_equivalent <= SIGNIFICANCE_LEVEL
        if self.hypothesis.equal is not None:
            beyond = self.margin is not None and abs(self.difference.value) > self.margin
            return "confirmed" if alike else "refuted" if differs and beyond else "undecided"
        as_expected = (self.difference.value > 0) != smaller_is_better(self.metric)
        if alike:
            return "refuted"
        return "undecided" if not differs else "confirmed" if as_expected else "refuted"

    @property
    def claim(self) -> str:
        """In words."""
        one, other = self.hypothesis.names
        return self.hypothesis.claim or (f"{one} = {other}" if self.hypothesis.equal else f"{one} > {other}")

    def cells(self) -> list[str]:
        """As a line of a table: claim, where, the difference, p-values, outcome."""
        one, other = self.hypothesis.names
        size = f"{self.difference.value:+.3f} ({self.difference.low:+.3f} to {self.difference.high:+.3f})"
        p_values = [] if self.p is None else [shown(self.p)]
        p_values += [] if self.p_equivalent is None else [f"within {self.margin:g}: {shown(self.p_equivalent)}"]
        where = self.benchmark + (f" ({rest})" if (rest := named(self.labels)) else "")
        outcome = self.outcome + (f": {' and '.join(self.lacks)}" if self.lacks else "")
        return [self.claim, where, f"{one} less {other}: {self.metric} {size}", "; ".join(p_values), outcome]

    def to_json(self) -> JSONObject:
        """As plain data."""
        return {
            "claim": self.claim,
            "names": list(self.hypothesis.names),
            "expected": "equal" if self.hypothesis.equal else "better",
            "labels": dict(self.labels),
            "benchmark": self.benchmark,
            "metric": self.metric,
            "difference": self.difference.value,
            "interval": [self.difference.low, self.difference.high],
            "p_corrected": self.p,
            "p_equivalent": self.p_equivalent,
            "margin": self.margin,
            "lacks": list(self.lacks),
            "outcome": self.outcome,
        }


HEAD = ("expected", "where", "difference, 95 %", "p, corrected", "outcome")
"""Of the table of hypotheses."""


def tested(hypotheses: Sequence[Hypothesis], blocks: Blocks, correction: Correction) -> list[TestedHypothesis]:
    """Every hypothesis wherever both of its entries have results."""
    found: list[TestedHypothesis] = []
    for hypothesis in hypotheses:
        for labels, benchmark, rows in blocks:
            if hypothesis.benchmark not in (None, benchmark):
                continue
            one, other = (next((row for row in rows if row.name == name), None) for name in hypothesis.names)
            one, other = one or _guesser(hypothesis.names[0], other), other or _guesser(hypothesis.names[1], one)
            if one is not None and other is not None and (each := _tested(hypothesis, labels, one, other)) is not None:
                found.append(each)
    for test in found:
        test.p, test.p_equivalent = test.difference.p, test.difference.p_equivalent
    for name in ("p", "p_equivalent"):
        able = [test for test in found if getattr(test, name) is not None]
        for test, p_value in zip(able, corrected([getattr(each, name) for each in able], correction), strict=True):
            setattr(test, name, p_value)
    return found


def _guesser(name: str, beside: StudyRow | None) -> StudyRow | None:
    """The row of a baseline, as the cells of another row fitted and scored it; None where one did not."""
    if beside is None or not beside.results:
        return None
    found = {seeds: result.of_baseline(name) for seeds, result in beside.results.items()}
    reached = {seeds: result for seeds, result in found.items() if result is not None}
    if len(reached) < len(found):
        return None
    row = row_of(dict(beside.labels), beside.stage, beside.benchmark, reached, name=name)
    row.margin, row.searched = beside.margin, True  # a baseline has no settings to search for
    return row


def _tested(
    hypothesis: Hypothesis, labels: Mapping[str, str], one: StudyRow, other: StudyRow
) -> TestedHypothesis | None:
    if not one.results or not other.results:
        return None
    row = row_of(dict(labels), one.stage, one.benchmark, one.results, name=one.name)
    row.margin = one.margin
    held_against(row, one.results, other.results)
    difference = row.figures[row.main].difference if row.main else None
    if difference is None:
        return None
    lacks = list(dict.fromkeys(each for side in (one, other) for each in side.lacks))
    return TestedHypothesis(hypothesis, labels, one.benchmark, str(row.main), difference, one.margin, lacks)

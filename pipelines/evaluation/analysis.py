"""What stands behind a score: parts of the benchmark, calibration, confusions, the worst mistakes, and overlap with training.

Everything here explains a score that is there already: where a part of it cannot be had for a kind of answer it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipelines.evaluation import overlap_report
from pipelines.evaluation.calibration import calibration, expected_error, reliability
from pipelines.evaluation.completed import Continued
from pipelines.evaluation.mistakes import mistakes
from pipelines.evaluation.outcomes import Outcomes, outcomes_of
from pipelines.evaluation.predictions import Said
from pipelines.evaluation.slices import classes, slices
from pipelines.protocols import Context, Score, Task

KEYS = ("slices", "classes", "calibration", "mistakes", "overlap")
"""What is added to a benchmark's `details.json`, each by split."""


@dataclass
class Analysis:
    """What was found about one benchmark."""

    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By KEYS, then by split."""
    mistakes: list[dict[str, Any]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def put(self, key: str, split: str, value: Any) -> None:
        """Keep what was found, if anything was."""
        if value:
            self.details.setdefault(key, {})[split] = value


def analysed(
    context: Context, model: str, task: Task, predicted: Sequence[Said], score: Score, columns: Mapping[str, Mapping[str, Sequence[Any]]]
) -> Analysis:
    """Look behind the scores of a benchmark. `columns` are the cells to slice by, by split and column."""
    found = Analysis()
    for said in predicted:
        if said.labels is not None:
            found.put("slices", said.split, slices(said, task, score, columns.get(said.split, {}), context.seed))
            outcomes = outcomes_of(said, task)
            if outcomes is not None:
                _explain(found, said, outcomes)
        _overlap(found, context, model, said, score)
    return found


def _explain(found: Analysis, said: Said, outcomes: Outcomes) -> None:
    found.put("classes", said.split, classes(outcomes))
    if outcomes.logits is not None and outcomes.labels is not None and len(outcomes.labels):
        found.put("calibration", said.split, calibration(outcomes.logits, outcomes.labels))
    elif outcomes.confidence is not None:
        found.put("calibration", said.split, _without_logits(outcomes))
    worst = mistakes(said, outcomes)
    found.mistakes += worst
    found.put("mistakes", said.split, {"wrong": int(outcomes.wrong.sum()), "kept": len(worst), "by": outcomes.order})


def _without_logits(outcomes: Outcomes) -> dict[str, Any]:
    """Answers that are chosen among candidates of their own: the bins and the error, no temperature."""
    assert outcomes.confidence is not None
    right = ~outcomes.wrong
    return {
        "temperature": 1.0, "ece": expected_error(outcomes.confidence, right), "confidence": float(outcomes.confidence.mean()),
        "accuracy": float(right.mean()), "bins": reliability(outcomes.confidence, right),
    }  # fmt: skip


def _overlap(found: Analysis, context: Context, model: str, said: Said, score: Score) -> None:
    answers: Any = said.said
    if isinstance(answers, Continued):
        answers = answers.texts
    told = overlap_report.checked(context, model, said.rows, score, answers if isinstance(answers, np.ndarray) else None, said.labels)
    found.put("overlap", said.split, told)
    if told and (doubt := overlap_report.doubt(said.benchmark, said.split, told)) is not None:
        found.doubts.append(doubt)


def look_for_overlap(context: Context, predicted: Sequence[Said], details: dict[str, dict[str, Any]]) -> list[str]:
    """The overlap check for what was scored in another way than `analysed` sees, zero-shot questions for one.

    Puts it into the details of these benchmarks; returns the sentences to warn with.
    """
    doubts = []
    for said in predicted:
        about = details.get(said.benchmark, {})
        if said.split in about.get("overlap", {}) or "model" not in about:
            continue
        told = overlap_report.checked(context, about["model"], said.rows)
        if told is None:
            continue
        about.setdefault("overlap", {})[said.split] = told
        if (doubt := overlap_report.doubt(said.benchmark, said.split, told)) is not None:
            doubts.append(doubt)
    return doubts

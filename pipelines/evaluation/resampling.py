"""Scores on resampled examples and seeds: intervals of means over seeds, and paired differences.

Two things could have come out otherwise: which examples were in the test, and which seeds the training had. Examples
are drawn again with replacement, the same ones for both methods (the paired bootstrap of Efron and Tibshirani 1993,
chapter 8, and of Koehn 2004, aclanthology.org/W04-3250). Seeds are too few to draw from: three of them drawn with
replacement give intervals that are much too narrow. The mean over S seeds is instead moved by draws from Student's t
with S - 1 degrees of freedom times its standard error, sd / sqrt(S), which for a test without chance of its own is
exactly Student's interval. With a single seed the interval knows only of the examples.

Predictions on the disk are scored again on drawn examples, or with the answers of two models mixed. Where a score is
computed from sums over the examples (accuracy of answers, BLEU, entities), each example is counted once and only the
sums are taken again; other scores are computed anew each time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.interfaces import Score
from pipelines.metrics.base import Column, CountedMetric, counted_metric, load_metric
from pipelines.metrics.seqeval import Seqeval
from pipelines.metrics.statistics import LEVEL, RESAMPLES, p_of_draws, percentile_interval
from pipelines.tasks.scoring import decide, score

Floats = NDArray[np.float64]
SplitColumns = Mapping[str, Any]
"""What `read_predictions` finds of a split."""
FINE = 100
"""Draws of the seeds' noise for each resample where a p-value is counted: none is below 2 / (RESAMPLES * FINE)."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval."""

    value: float
    low: float
    high: float
    p: float | None = None
    """Of a difference: the two-sided p-value that goes with the interval, not corrected for other comparisons."""
    p_equivalent: float | None = None
    """Of a difference with a margin: the p-value of two one-sided tests that it lies within (Schuirmann 1987)."""

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero: a difference outside the noise."""
        return self.low > 0 or self.high < 0


def mean_interval(
    scores: Sequence[float], draws: Sequence[Floats] | None, seed: int, level: float = LEVEL
) -> Estimate | None:
    """The mean of one score a training seed, with its interval.

    `draws` holds for each seed its score on resampled examples (resamples,), the same examples for every seed; None
    where scores could not be resampled. Returns None when there is nothing that could vary: one seed and no draws.
    """
    values = np.asarray(scores, dtype=np.float64)
    if draws is None and len(values) < 2:
        return None
    resampled = np.full(RESAMPLES, values.mean()) if draws is None else np.mean(np.stack(list(draws)), axis=0)
    moved = resampled + _seed_noise(values, len(resampled), seed)
    return Estimate(float(values.mean()), *percentile_interval(moved, level))


def paired_difference(
    scores: Sequence[float],
    reference: Sequence[float],
    draws: Sequence[Floats] | None,
    reference_draws: Sequence[Floats] | None,
    seed: int,
    paired_seeds: bool = True,
    level: float = LEVEL,
    margin: float | None = None,
) -> Estimate | None:
    """Mean of `scores` minus mean of `reference`, one each a training seed, with its interval.

    Draws as in `mean_interval`, on the same resampled examples for both. With `paired_seeds` entry s of both had the
    same training seed, and the spread is that of their differences; otherwise both spreads count. With a `margin` it is
    tested too whether the difference is smaller.
    """
    one, two = np.asarray(scores, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    examples = draws is not None and reference_draws is not None
    if not examples and min(len(one), len(two)) < 2:
        return None
    value = float(one.mean() - two.mean())
    if examples:
        assert draws is not None
        assert reference_draws is not None
        resampled = np.mean(np.stack(list(draws)), axis=0) - np.mean(np.stack(list(reference_draws)), axis=0)
    else:
        resampled = np.full(RESAMPLES, value)

    def noise(count: int) -> Floats:
        if paired_seeds and len(one) == len(two):
            return _seed_noise(one - two, count, seed)
        return _seed_noise(one, count, seed) - _seed_noise(two, count, seed + 1)

    low, high = percentile_interval(resampled + noise(len(resampled)), level)
    if min(len(one), len(two)) < 2:
        moved = resampled
        p_value = p_of_draws(resampled, value)
    else:  # the tails of Student's t are counted, for they are no normal ones
        moved = np.repeat(resampled, FINE) + noise(FINE * len(resampled))
        beyond = min((moved <= 0).sum(), (moved >= 0).sum())
        p_value = min(1.0, 2 * (int(beyond) + 1) / (len(moved) + 1))
    p_equivalent = None
    if margin is not None:  # of both one-sided tests the one that is harder to pass
        outside = max((moved <= -margin).sum(), (moved >= margin).sum())
        p_equivalent = (int(outside) + 1) / (len(moved) + 1)
    return Estimate(value, low, high, p_value, p_equivalent)


def _seed_noise(values: Floats, count: int, seed: int) -> Floats:
    """What another set of training seeds might have added to the mean of `values` (count,)."""
    seeds = len(values)
    if seeds < 2:
        return np.zeros(count)
    error = float(values.std(ddof=1)) / np.sqrt(seeds)
    noise: Floats = np.random.default_rng([seed, 0x5EED]).standard_t(seeds - 1, size=count) * error
    return noise


def resamples(examples: int, seed: int, count: int = RESAMPLES) -> NDArray[np.int64]:
    """Which examples each resample takes (count, examples), the same for the same seed."""
    return np.random.default_rng([seed, examples]).integers(examples, size=(count, examples))


CLOSE = 1e-6
"""How near a score that is computed again must come to the one that was reported."""


@dataclass(frozen=True)
class ScoredCounts:
    """Answers whose scores follow from sums: one table of counts a metric."""

    tables: Mapping[str, NDArray[Any]]
    """By metric: what each example adds (examples, counts)."""
    right: NDArray[np.bool_] | None = None
    """Which examples are answered rightly (examples,); None where an answer is not simply right or wrong."""

    def __len__(self) -> int:
        return len(next(iter(self.tables.values())))

    def resampled(self, draws: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """By score, its values on each draw of examples (draws, examples)."""
        times = np.stack([np.bincount(taken, minlength=len(self)) for taken in draws])
        return _stacked(
            [self._of(sums) for sums in zip(*(times @ table for table in self.tables.values()), strict=True)]
        )

    def mixed(self, other: ScoredCounts, swapped: NDArray[np.bool_]) -> dict[str, float]:
        """The scores with the other's answers where `swapped` (examples,)."""
        return self._of(
            [
                table[~swapped].sum(axis=0) + other.tables[name][swapped].sum(axis=0)
                for name, table in self.tables.items()
            ]
        )

    def _of(self, sums: Sequence[NDArray[np.generic]]) -> dict[str, float]:
        return {
            name: value
            for metric, each in zip(self.tables, sums, strict=True)
            for name, value in counted_metric(metric).of_counts(each).items()
        }


@dataclass(frozen=True)
class ScoredLogits:
    """Answers that are classes, options or numbers: scored by a function of logits and labels."""

    scored: Any
    logits: NDArray[Any]
    labels: NDArray[Any]
    right: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.labels)

    def resampled(self, draws: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """By score, its values on each draw of examples (draws, examples)."""
        return _stacked([self.scored(self.logits[taken], self.labels[taken]) for taken in draws])

    def mixed(self, other: ScoredLogits, swapped: NDArray[np.bool_]) -> dict[str, float]:
        """The scores with the other's answers where `swapped` (examples,)."""
        answers, outputs = other.logits, self.logits.shape[1]
        if answers.shape[1] != outputs:  # one model wrote the classes that the other has logits of
            answers = decide(answers)[:, None] if outputs == 1 else np.eye(outputs)[answers[:, 0].astype(int)]
        scores: dict[str, float] = self.scored(np.where(swapped[:, None], answers, self.logits), self.labels)
        return scores


Rescored = ScoredCounts | ScoredLogits


def rescored(task: Any, part: SplitColumns, reported: Mapping[str, float]) -> Rescored | None:
    """What was predicted about a split, ready to be scored again; None where that does not give the `reported` scores.

    `part` is what `read_predictions` found. Scores that were computed in another way than example by example, or from
    labels that are not public, cannot be had again.
    """
    predictions = _of_texts(task, part) or _of_spans(task, part) or _of_tags(task, part) or _of_logits(task, part)
    if predictions is None:
        return None
    nothing = np.zeros(len(predictions), dtype=bool)
    again = predictions.mixed(predictions, nothing)  # type: ignore[arg-type]
    agrees = [math.isclose(value, reported[name], abs_tol=CLOSE) for name, value in again.items() if name in reported]
    return predictions if agrees and all(agrees) else None


def _counted(metrics: Sequence[str], texts: Column, references: Column) -> ScoredCounts | None:
    loaded = {name: load_metric(name) for name in metrics}
    counted = {name: metric for name, metric in loaded.items() if isinstance(metric, CountedMetric)}
    if not counted or len(counted) < len(loaded):
        return None
    return ScoredCounts({name: metric.counts(texts, references) for name, metric in counted.items()})


def _of_texts(task: Any, part: SplitColumns) -> Rescored | None:
    if "hypothesis" not in part or any(text is None for text in part["reference"]):
        return None
    if hasattr(task, "read"):  # classes and numbers that were written
        predictions, labels, _ = task.read(part["hypothesis"], part["reference"])
        return _read_as_classes(task, np.asarray(predictions), np.asarray(labels))
    choose = getattr(task, "graded", list)
    counted = _counted(task.metrics, choose(part["hypothesis"]), choose(part["reference"]))
    exact = counted.tables.get("exact_match") if counted is not None else None
    return counted if counted is None or exact is None else replace(counted, right=exact[:, 0] > 0)


def _read_as_classes(task: Any, predicted: NDArray[np.generic], labels: NDArray[np.generic]) -> Rescored:
    classes = task.task.head.labels
    scored = score_answers(task.metrics, len(classes))
    return ScoredLogits(scored, predicted[:, None], labels, predicted == labels if classes else None)


def score_answers(metrics: Sequence[str], classes: int) -> Score:
    """The metrics as one function of answers (examples, 1) and labels (examples,): numbers of classes, or numbers
    where there are no classes."""
    settings = {"classes": classes} if classes else {}
    loaded = [load_metric(name) for name in metrics]

    def scored(answers: NDArray[np.generic], truth: NDArray[np.generic]) -> dict[str, float]:
        return {
            name: value for metric in loaded for name, value in metric.compute(answers[:, 0], truth, **settings).items()
        }

    return scored


def _of_spans(task: Any, part: SplitColumns) -> Rescored | None:
    if "answer" not in part or any(answers is None for answers in part["answers"]):
        return None
    counted = _counted(task.metrics, part["answer"], part["answers"])
    return None if counted is None else replace(counted, right=next(iter(counted.tables.values()))[:, 0] > 0)


def _of_tags(task: Any, part: SplitColumns) -> Rescored | None:
    if "tokens" not in part or any(tags is None for tags in part["tags"]):
        return None
    return ScoredCounts({"seqeval": Seqeval().counts(part["predicted_tags"], part["tags"])})


def _of_logits(task: Any, part: SplitColumns) -> Rescored | None:
    if part.get("label") is None:
        return None
    logits, labels = part["logits"], part["label"]
    classes = logits.shape[1] > 1
    return ScoredLogits(score(task), logits, labels, decide(logits) == labels if classes else None)


def _stacked(rows: Sequence[Mapping[str, float]]) -> dict[str, NDArray[np.float64]]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}

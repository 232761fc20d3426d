"""The guessers without a network that a model's scores are held against, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipelines.protocols import Rows, Score
from pipelines.registry import BASELINES


class NotDefined(ValueError):
    """A guesser that makes no sense for this task; the message says why."""


def score_baselines(
    names: Iterable[str], score: Score, outputs: int, train: Rows, splits: Mapping[str, Rows]
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Each guesser's scores on the splits (by the suffix of their metric names), and why others have none."""
    scores: dict[str, dict[str, float]] = {}
    skipped: dict[str, str] = {}
    for name in names:
        guess = BASELINES.load(name)
        try:
            scores[name] = {
                f"{metric}{suffix}": value
                for suffix, rows in splits.items()
                for metric, value in score(guess(train, rows, outputs), rows.labels).items()
            }
        except NotDefined as reason:
            skipped[name] = str(reason)
    return scores, skipped

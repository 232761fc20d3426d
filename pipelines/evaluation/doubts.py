"""What a reader should be told before believing a score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from pipelines.evaluation.scoring import decide


def constant_prediction(benchmark: str, split: str, logits: NDArray[Any], classes: tuple[str, ...]) -> str | None:
    """A sentence where the model says the same about every example."""
    predictions = decide(logits)
    if len(predictions) < 2 or predictions.min() != predictions.max():
        return None
    what = f"the class '{classes[int(predictions[0])]}'" if classes else f"{float(predictions[0]):g}"
    return (
        f"{benchmark}: the model predicts {what} for every one of the {len(predictions)} examples of '{split}'; "
        "it has not learnt to tell them apart (try more steps, another learning rate, or a pretrained model)"
    )


def no_better_than_majority(
    benchmark: str,
    scores: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    majority: Mapping[str, float],
) -> str | None:
    """A sentence where a score's interval contains, or lies below, what always guessing one class scores."""
    within = [name for name in scores if name in majority and intervals[name][0] <= majority[name]]
    if not within:
        return None
    listed = ", ".join(
        f"{name} {scores[name]:.3f} [{intervals[name][0]:.3f}, {intervals[name][1]:.3f}] against {majority[name]:.3f}"
        for name in within
    )
    return f"{benchmark}: not shown to be better than always guessing the most frequent class: {listed}"

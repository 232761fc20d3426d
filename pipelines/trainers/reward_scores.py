"""What a trained reward model's scores are like: their mean and spread, and how well they tell the better of two answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from pipelines.data import pair_scores
from pipelines.data.scored_texts import Reading, Settings

if TYPE_CHECKING:
    from pipelines.protocols import Context

SAMPLE = 256
"""Training pairs whose scores are looked at, drawn by the seed."""
BESIDE = ("labels", "margin", "probability")
"""What a batch says of its pairs, which the model does not read."""
BATCH = 32
"""Pairs at a time."""


@dataclass(frozen=True)
class Told:
    """What was found."""

    mean: float
    """Of the scores of training answers, chosen and rejected together."""
    std: float
    """Their standard deviation."""
    train: dict[str, Any]
    held_out: dict[str, Any] | None
    """The same of the pairs set aside; None where there are none."""

    @property
    def metrics(self) -> dict[str, float]:
        """What `metrics.json` says."""
        found = {"reward_mean": self.mean, "reward_std": self.std, "train_accuracy": self.train["accuracy"]}
        if self.held_out is not None:
            found |= {f"eval_{name}": self.held_out[name] for name in ("accuracy", "nll", "calibration_error")}
        return found

    def write(self, folder: Path, reading: Reading) -> None:
        """Put `reward.json` beside the weights."""
        Settings(reading, self.mean, self.std).write(folder, {"train": self.train, **({"held_out": self.held_out} if self.held_out else {})})


def describe(context: Context, model: Any, collate: Any, examples: Any, selection: Any) -> Told:
    """Score a sample of the training pairs, and the pairs set aside, in fp32. Every process sees the same."""
    drawn = np.sort(np.random.default_rng([context.seed, 0x5C03E]).permutation(len(examples))[:SAMPLE])
    train = scores_of(model, examples.select(drawn), collate)
    held_out = None if selection is None else figures(scores_of(model, selection, collate))
    std = float(train.std())
    return Told(float(train.mean()), std if std > 0 else 1.0, figures(train), held_out)


def figures(scores: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Accuracy, calibration and histogram of scores (pairs, 2)."""
    return {
        "pairs": len(scores), "accuracy": pair_scores.accuracy(scores), "nll": pair_scores.negative_log_likelihood(scores),
        "calibration_error": pair_scores.calibration_error(scores), "histogram": pair_scores.histogram(scores),
    }  # fmt: skip


def scores_of(model: Any, examples: Any, collate: Any) -> npt.NDArray[np.float64]:
    """Scores (pairs, 2) of every pair, chosen first, in the order of the examples."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    scores = np.empty((len(examples), 2))
    order = np.argsort(-examples.lengths, kind="stable")
    with torch.no_grad():
        for start in range(0, len(order), BATCH):
            places: Sequence[int] = order[start : start + BATCH].tolist()
            batch = {name: value.to(device) for name, value in collate([examples[at] for at in places]).items() if name not in BESIDE}
            scores[places] = model(**batch).logits.float().squeeze(-1).cpu().numpy().reshape(2, -1).T
    model.train(was_training)
    return scores

"""From what a reward says of a completion to the score that PPO learns from: normalised, clipped, and less the penalties."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pipelines.errors import StageError
from pipelines.trainers.ppo_settings import PPOSettings


class RunningMoments:
    """Mean and variance of every score so far, over all processes: merged batch by batch.

    Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances".
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0
        """Sum of the squared distances from the mean."""

    @property
    def deviation(self) -> float:
        """The standard deviation of the population; 1 before there is one."""
        return math.sqrt(self.squares / self.count) if self.count and self.squares > 0 else 1.0

    def add(self, scores: Sequence[float]) -> None:
        """Take in a batch."""
        if not scores:
            return
        count, mean = len(scores), math.fsum(scores) / len(scores)
        squares = math.fsum((score - mean) ** 2 for score in scores)
        total, apart = self.count + count, mean - self.mean
        self.squares += squares + apart**2 * self.count * count / total
        self.mean += apart * count / total
        self.count = total

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        self.count, self.mean, self.squares = int(state["count"]), float(state["mean"]), float(state["squares"])


def shaped(scores: Tensor, ended: Tensor, lengths: Tensor, settings: PPOSettings, known: RunningMoments) -> Tensor:
    """The scores (rows,) that PPO learns from.

    First normalised by the moments of all scores so far and then clipped: Zheng et al. 2023, "Secrets of RLHF in Large
    Language Models Part I: PPO", on score reparameterization, arxiv.org/abs/2307.04964. Then less `length_penalty` for each
    token, and less `missing_eos_penalty` where the completion has no end, so that a policy learns to stop: the EOS trick of
    Huang et al. 2024, "The N+ Implementation Details of RLHF with PPO", arxiv.org/abs/2403.17031, as TRL does it.
    """
    if settings.reward_normalization == "running":
        scores = (scores - known.mean) / (known.deviation + 1e-8)
    if settings.reward_clip is not None:
        scores = scores.clamp(-settings.reward_clip, settings.reward_clip)
    scores = scores - settings.length_penalty * lengths
    if settings.missing_eos_penalty is not None:
        scores = scores - settings.missing_eos_penalty * (~ended).to(scores.dtype)
    return scores


def checked(scores: Sequence[float], count: int) -> Tensor:
    """The reward's numbers (rows,), fp32. Raises StageError when they are not one finite number a completion."""
    if len(scores) != count:
        raise StageError(f"the reward gave {len(scores)} scores for {count} completions; it must give one each")
    wrong = next((score for score in scores if not math.isfinite(score)), None)
    if wrong is not None:
        raise StageError(f"the reward gave {wrong} for a completion; a policy can only learn from finite numbers")
    return torch.tensor([float(score) for score in scores], dtype=torch.float32)

"""A reward as a judge: the probability that a Bradley-Terry model gives to the better score.

P(first is better) = sigmoid((r(first) - r(second)) / temperature): Bradley and Terry 1952, as Stiennon et al. 2020,
"Learning to summarize from human feedback", section 3.4, arxiv.org/abs/2009.01325, fit their reward model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from pipelines.core.config import ConfigIssue
from pipelines.core.recipe import RewardField
from pipelines.feedback.judges.judge import Judge, JudgeBlock, Rating, Scorer, Verdict, each_once

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe


class RewardJudgeBlock(JudgeBlock):
    """Prefers by the scores of a reward: `{name: reward, reward: {from: STAGE}}`."""

    name: Literal["reward"] = "reward"
    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{name: reward, reward: {name: keyword, words: [good]}, temperature: 2.0}",
    )
    reward: RewardField
    """A reward model, a classifier, or any other reward."""
    temperature: float = Field(1.0, gt=0)
    """What differences of scores are divided by: above 1 the judge is less sure."""

    @property
    def stages(self) -> tuple[str, ...]:
        stages: tuple[str, ...] = self.reward.stages
        return stages

    def check(self, recipe: Recipe, stage_id: str) -> Iterable[ConfigIssue]:
        return [(("reward", *place), message) for place, message in self.reward.check(recipe, stage_id)]

    def content(self) -> dict[str, str]:
        return {f"reward.{role}": value for role, value in self.reward.content().items()}

    def open(self, context: Context) -> Judge:
        return RewardJudge(self.reward.open(context), self.temperature)


class RewardJudge(Judge):
    """The opened reward. It has no order: both completions are scored by themselves."""

    def __init__(self, scorer: Scorer, temperature: float) -> None:
        super().__init__()
        self.scorer = scorer
        self.temperature = temperature

    def compare(
        self,
        prompts: Sequence[str],
        first: Sequence[str],
        second: Sequence[str],
        principles: Sequence[str | None] | None = None,
        draw: int = 0,
    ) -> list[Verdict]:
        scores = each_once(self.scorer, [*prompts, *prompts], [*first, *second])
        half = len(prompts)
        self.spent.questions += half
        return [_verdict((scores[at] - scores[at + half]) / self.temperature) for at in range(half)]

    def rate(self, prompts: Sequence[str], completions: Sequence[str]) -> list[Rating]:
        self.spent.questions += len(completions)
        return [Rating(score) for score in each_once(self.scorer, prompts, completions)]


def _verdict(difference: float) -> Verdict:
    """Bradley-Terry; equal scores prefer neither."""
    if difference == 0:
        return Verdict(0.5)
    probability = sigmoid(difference)
    return Verdict(probability, probability, probability)


def sigmoid(value: float) -> float:
    """1 / (1 + e^-value) without overflow."""
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))

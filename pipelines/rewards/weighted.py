"""The sum of several rewards, each with its weight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from pipelines.core.config import Block, ConfigIssue
from pipelines.core.recipe import RewardField
from pipelines.rewards.reward import RewardBlock, Scorer

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe


class WeightedPart(Block):
    """One reward of a sum."""

    reward: RewardField
    """Any reward."""
    weight: float = 1.0
    """What it is multiplied by; below 0 it is a penalty."""


class Weighted(RewardBlock):
    """A sum: `{name: weighted, rewards: [{reward: {from: reward}}, {reward: {name: length}, weight: -0.01}]}`."""

    name: Literal["weighted"] = "weighted"
    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{name: weighted, rewards: [{reward: {name: keyword, words: [good]}}, {reward: length, weight: -0.1}]}",
        "{name: weighted, rewards: [{reward: {from: scores}}, {reward: {name: length}, weight: -0.1}]}",
    )
    rewards: tuple[WeightedPart, ...] = Field(min_length=1)
    """What is added up."""

    @property
    def stages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stage for part in self.rewards for stage in part.reward.stages))

    def check(self, recipe: Recipe, stage_id: str) -> Iterable[ConfigIssue]:
        for at, part in enumerate(self.rewards):
            for place, message in part.reward.check(recipe, stage_id):
                yield ("rewards", at, "reward", *place), message

    def content(self) -> dict[str, str]:
        return {
            f"{at}.{role}": value
            for at, part in enumerate(self.rewards)
            for role, value in part.reward.content().items()
        }

    def open(self, context: Context) -> Scorer:
        scorers = [(part.reward.open(context), part.weight) for part in self.rewards]

        def scores(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
            columns = [[weight * score for score in scorer(prompts, completions)] for scorer, weight in scorers]
            return [sum(row) for row in zip(*columns, strict=True)]

        return scores

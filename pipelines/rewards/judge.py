"""A judge's own rating as the reward, without a reward model between them: direct RLAIF.

Lee et al. 2023, "RLAIF vs. RLHF: Scaling Reinforcement Learning from Human Feedback with AI Feedback", section 2.2.2,
arxiv.org/abs/2309.00267.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.registry import JUDGES
from pipelines.rewards.reward import RewardBlock, Scorer

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe


class JudgeReward(RewardBlock):
    """What a judge says a completion is worth: `{name: judge, judge: {name: local, checkpoint: …}}`."""

    name: Literal["judge"] = "judge"
    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{name: judge, judge: {name: rule, prefer: {name: keyword, words: [good]}}}",
    )
    judge: Annotated[Any, Pick(JUDGES, "name")]
    """A judge, as the stage `feedback` has them."""

    @property
    def stages(self) -> tuple[str, ...]:
        stages: tuple[str, ...] = self.judge.stages
        return stages

    def check(self, recipe: Recipe, stage_id: str) -> Iterable[ConfigIssue]:
        return [(("judge", *place), message) for place, message in self.judge.check(recipe, stage_id)]

    def content(self) -> dict[str, str]:
        return {f"judge.{role}": value for role, value in self.judge.content().items()}

    def open(self, context: Context) -> Scorer:
        scorer: Scorer = self.judge.open(context).scores
        return scorer

"""A judge that follows a rule: no model, no network, and mistakes at a known rate.

For tests, and for experiments in which the truth must be known: with `noise` a share of its verdicts is turned round,
with `position_bias` in a share of them it takes what it is shown first. Which ones depends on the seed and on the texts
alone, so that it says the same after a resume, whatever stands beside them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from pipelines.core.config import ConfigIssue
from pipelines.core.recipe import RewardField
from pipelines.feedback.judges.judge import Judge, JudgeBlock, Rating, Scorer, Verdict, both_orders, each_once

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe


class RuleJudgeBlock(JudgeBlock):
    """Prefers what a reward gives more to: `{name: rule, prefer: {name: keyword, words: [good, great]}, noise:
    0.1}`."""

    name: Literal["rule"] = "rule"
    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{name: rule, prefer: length}",
        "{name: rule, prefer: {name: keyword, words: [good]}, noise: 0.1, position_bias: 0.2, seed: 4}",
    )
    prefer: RewardField
    """The reward whose higher number is the better one; equal numbers are a tie."""
    noise: float = Field(0.0, ge=0, le=0.5)
    """Share of comparisons whose verdict is turned round: 0.5 is a coin."""
    position_bias: float = Field(0.0, ge=0, le=1)
    """Share of showings in which the completion that is shown first is taken, whatever it says."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Of the draws for `noise` and `position_bias`."""

    @property
    def stages(self) -> tuple[str, ...]:
        stages: tuple[str, ...] = self.prefer.stages
        return stages

    def check(self, recipe: Recipe, stage_id: str) -> Iterable[ConfigIssue]:
        return [(("prefer", *place), message) for place, message in self.prefer.check(recipe, stage_id)]

    def content(self) -> dict[str, str]:
        return {f"prefer.{role}": value for role, value in self.prefer.content().items()}

    def open(self, context: Context) -> Judge:
        return RuleJudge(self, self.prefer.open(context))


class RuleJudge(Judge):
    """The opened rule."""

    def __init__(self, block: RuleJudgeBlock, scorer: Scorer) -> None:
        super().__init__()
        self.block = block
        self.scorer = scorer

    def compare(
        self,
        prompts: Sequence[str],
        first: Sequence[str],
        second: Sequence[str],
        principles: Sequence[str | None] | None = None,
        draw: int = 0,
    ) -> list[Verdict]:
        scores = each_once(self.scorer, [*prompts, *prompts], [*first, *second])
        verdicts = []
        for at, (prompt, one, two) in enumerate(zip(prompts, first, second, strict=True)):
            self.spent.questions += 1
            verdicts.append(self._verdict(prompt, one, two, scores[at] - scores[at + len(prompts)]))
        return verdicts

    def _verdict(self, prompt: str, one: str, two: str, difference: float) -> Verdict:
        if one == two or difference == 0:
            return Verdict(0.5)
        truth = difference > 0
        if self._drawn("noise", prompt, *sorted((one, two))) < self.block.noise:
            truth = not truth
        shown_first = True if self._drawn("position", prompt, one, two) < self.block.position_bias else truth
        shown_second = False if self._drawn("position", prompt, two, one) < self.block.position_bias else truth
        return both_orders(float(shown_first), float(shown_second))

    def _drawn(self, *parts: str) -> float:
        """A number from 0 to 1 that the seed and the texts alone decide."""
        digest = hashlib.sha256("\x1f".join((str(self.block.seed), *parts)).encode(errors="replace")).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    def rate(self, prompts: Sequence[str], completions: Sequence[str]) -> list[Rating]:
        self.spent.questions += len(completions)
        return [Rating(score) for score in each_once(self.scorer, prompts, completions)]

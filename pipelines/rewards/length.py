"""How long a completion is, or how near to a length that is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipelines.rewards.keyword import words_of
from pipelines.rewards.reward import RewardBlock, Scorer

if TYPE_CHECKING:
    from pipelines.protocols import Context

Unit = Literal["words", "characters"]


def length_of(text: str, unit: Unit) -> int:
    """Words, or characters without the white space around them."""
    return len(words_of(text)) if unit == "words" else len(text.strip())


def nearness(length: int, target: int) -> float:
    """1 at `target`, falling by equal steps to 0 at nothing and at twice the target, and 0 beyond."""
    return max(0.0, 1.0 - abs(length - target) / target)


class Length(RewardBlock):
    """The length of a completion: `{name: length, unit: words, target: 20}` is 1 at 20 words and 0 at none and at 40."""

    name: Literal["length"] = "length"
    unit: Unit = "words"
    """What is counted: `words` (runs of letters and digits) or `characters`."""
    target: int | None = Field(None, ge=1)
    """The length that gets 1. Default: none, the reward is the length itself; with a negative weight in `weighted` it is a price."""

    def open(self, context: Context) -> Scorer:
        def scores(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
            lengths = [length_of(completion, self.unit) for completion in completions]
            return [float(length) if self.target is None else nearness(length, self.target) for length in lengths]

        return scores

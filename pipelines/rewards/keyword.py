"""The share of a completion's words that are in a list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from pipelines.rewards.reward import RewardBlock, Scorer

if TYPE_CHECKING:
    from pipelines.protocols import Context

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""Letters and digits, with apostrophes between them: `don't` is one word."""


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, in their order; typographic apostrophes become plain ones."""
    return [word.replace("’", "'") for word in WORD.findall(text.casefold())]


def keyword_share(completion: str, words: frozenset[str]) -> float:
    """How many of a completion's words are in `words`, from 0 to 1; 0 where it has none."""
    found = words_of(completion)
    return sum(word in words for word in found) / len(found) if found else 0.0


def _one_word(value: str) -> str:
    if words_of(value) != [value.strip().casefold().replace("’", "'")]:
        raise ValueError(f"'{value}' is not one word, must be letters and digits, with apostrophes between them at most")
    return value


class Keyword(RewardBlock):
    """The share of the generated words that are in a list, whatever their case: `{name: keyword, words: [good, great]}`."""

    name: Literal["keyword"] = "keyword"
    words: tuple[Annotated[str, AfterValidator(_one_word)], ...] = Field(min_length=1)
    """The words that are rewarded."""

    def open(self, context: Context) -> Scorer:
        wanted = frozenset(words_of(" ".join(self.words)))

        def scores(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
            return [keyword_share(completion, wanted) for completion in completions]

        return scores

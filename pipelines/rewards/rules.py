"""Rewards by rule: words of a list, a length, a regular expression.

A pattern can be written so that trying it takes exponential time. A match is given a second, over a bounded part of the
text; a pattern that needs longer is refused by an error, not by a number that would depend on the machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from pipelines.core.errors import StageError
from pipelines.rewards.reward import RewardBlock, Scorer

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context


WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""Letters and digits, with apostrophes between them: `don't` is one word."""


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, in their order; typographic apostrophes become plain ones."""
    return [word.replace("’", "'") for word in WORD.findall(text.casefold())]


def keyword_share(completion: str, words: frozenset[str]) -> float:
    """How many of a completion's words are in `words`, from 0 to 1; 0 where it has none."""
    written = words_of(completion)
    return sum(word in words for word in written) / len(written) if written else 0.0


def _one_word(value: str) -> str:
    if words_of(value) != [value.strip().casefold().replace("’", "'")]:
        raise ValueError(
            f"'{value}' is not one word, must be letters and digits, with apostrophes between them at most"
        )
    return value


class Keyword(RewardBlock):
    """The share of the generated words that are in a list, whatever their case: `{name: keyword, words: [good,
    great]}`."""

    name: Literal["keyword"] = "keyword"
    recipe_examples: ClassVar[tuple[str, ...]] = ("{name: keyword, words: [good, great]}",)
    words: tuple[Annotated[str, AfterValidator(_one_word)], ...] = Field(min_length=1)
    """The words that are rewarded."""

    def open(self, context: Context) -> Scorer:
        wanted = frozenset(words_of(" ".join(self.words)))

        def scores(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
            return [keyword_share(completion, wanted) for completion in completions]

        return scores


Unit = Literal["words", "characters"]


def length_of(text: str, unit: Unit) -> int:
    """Words, or characters without the white space around them."""
    return len(words_of(text)) if unit == "words" else len(text.strip())


def nearness(length: int, target: int) -> float:
    """1 at `target`, falling by equal steps to 0 at nothing and at twice the target, and 0 beyond."""
    return max(0.0, 1.0 - abs(length - target) / target)


class Length(RewardBlock):
    """The length of a completion: `{name: length, unit: words, target: 20}` is 1 at 20 words and 0 at none and at
    40."""

    name: Literal["length"] = "length"
    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{name: length}",
        "{name: length, unit: characters, target: 20}",
    )
    unit: Unit = "words"
    """What is counted: `words` (runs of letters and digits) or `characters`."""
    target: int | None = Field(None, ge=1)
    """The length that gets 1. Default: none, the reward is the length itself; with a negative weight in `weighted`
    it is a price."""

    def open(self, context: Context) -> Scorer:
        def scores(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
            lengths = [length_of(completion, self.unit) for completion in completions]
            return [float(length) if self.target is None else nearness(length, self.target) for length in lengths]

        return scores


READ = 20_000
"""Characters of a completion that are looked at."""
SECONDS = 1.0
"""What one completion may take."""

Measure = Literal["any", "count", "share"]


def _expression(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"'{value}' is no regular expression: {error}") from None
    return value


def measured(expression: Any, text: str, measure: Measure, seconds: float = SECONDS) -> float:
    """`any`: 1 if there is a match, else 0; `count`: how many, none inside another; `share`: of the characters, those
    in matches.

    `expression` is compiled by the library `regex`. Raises TimeoutError after `seconds`.
    """
    text = text[:READ]
    if measure == "any":
        return float(expression.search(text, timeout=seconds) is not None)
    spans = [match.span() for match in expression.finditer(text, timeout=seconds)]
    if measure == "count":
        return float(len(spans))
    return sum(end - begin for begin, end in spans) / len(text) if text else 0.0


class Pattern(RewardBlock):
    """Matches of a regular expression: `{name: pattern, pattern: '\\d+', measure: any}`."""

    name: Literal["pattern"] = "pattern"
    recipe_examples: ClassVar[tuple[str, ...]] = ("{name: pattern, pattern: 'a.', measure: share, ignore_case: true}",)
    pattern: Annotated[str, AfterValidator(_expression)] = Field(min_length=1, max_length=500)
    """A regular expression in Python's words."""
    measure: Measure = "any"
    """`any`: 1 where it matches, else 0; `count`: how often; `share`: the share of the characters that are in
    matches."""
    ignore_case: bool = False
    """Whether capitals match small letters."""

    def open(self, context: Context) -> Scorer:
        import regex  # type: ignore[import-untyped]

        try:
            expression = regex.compile(self.pattern, regex.IGNORECASE if self.ignore_case else 0)
        except regex.error as error:
            raise StageError(f"the reward's pattern '{self.pattern}' is no regular expression: {error}") from None

        def scores(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
            try:
                return [measured(expression, completion, self.measure) for completion in completions]
            except TimeoutError:
                raise StageError(
                    f"the reward's pattern '{self.pattern}' takes more than {SECONDS:g} s for a completion; "
                    "write it without repeats inside repeats"
                ) from None

        return scores

"""Whether, how often, or over how much of it a completion matches a regular expression.

A pattern can be written so that trying it takes exponential time. A match is given a second, over a bounded part of the
text; a pattern that needs longer is refused by an error, not by a number that would depend on the machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from pipelines.errors import StageError
from pipelines.rewards.reward import RewardBlock, Scorer

if TYPE_CHECKING:
    from pipelines.protocols import Context

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
    """`any`: 1 if there is a match, else 0; `count`: how many, none inside another; `share`: of the characters, those in matches.

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
    pattern: Annotated[str, AfterValidator(_expression)] = Field(min_length=1, max_length=500)
    """A regular expression in Python's words."""
    measure: Measure = "any"
    """`any`: 1 where it matches, else 0; `count`: how often; `share`: the share of the characters that are in matches."""
    ignore_case: bool = False
    """Whether capitals match small letters."""

    def open(self, context: Context) -> Scorer:
        regex: Any = import_module("regex")
        try:
            expression = regex.compile(self.pattern, regex.IGNORECASE if self.ignore_case else 0)
        except regex.error as error:
            raise StageError(f"the reward's pattern '{self.pattern}' is no regular expression: {error}") from None

        def scores(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
            try:
                return [measured(expression, completion, self.measure) for completion in completions]
            except TimeoutError:
                raise StageError(
                    f"the reward's pattern '{self.pattern}' takes more than {SECONDS:g} s for a completion; write it without repeats inside repeats"
                ) from None

        return scores

"""Reading a letter or a number out of what a judge wrote, or out of the probabilities it gave.

What cannot be read is None, an abstention: nothing is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

ALONE = re.compile(r"^\W*([AB])\W*$")
"""A line, or a whole answer, that is one letter and its decoration."""
NAMED = re.compile(r"\b(?:[Aa]nswer|[Cc]hoice|[Cc]ompletion|[Rr]esponse|[Oo]ption|ANSWER)\b(?:\s+is)?[\W_]{0,6}\b([AB])\b(?!['’])")
"""`Answer: A`, `**Answer:** (B)`, `completion A`."""
ANSWER = re.compile(r"\b(?:[Aa]nswer|ANSWER)\b(?:\s+is)?[\W_]{0,6}\b([AB])\b(?!['’])")
NUMBER = re.compile(r"\b(?:[Aa]nswer|ANSWER|[Ss]core|[Rr]ating)\b(?:\s+is)?[\W_]{0,6}?(10|[1-9])\b(?![.,]\d)")
NUMBER_ALONE = re.compile(r"^\W*(10|[1-9])(?:\s*/\s*10)?\W*$")
LOWEST, HIGHEST = 1, 10


def letter(text: str) -> str | None:
    """`A` or `B`, where the text says one of them and not the other as well."""
    if found := ALONE.match(text.strip()):
        return found[1]
    if said := ANSWER.findall(text):
        return str(said[-1])  # reasons come first, the answer last
    lines = [each[1] for line in text.splitlines() if (each := ALONE.match(line.strip()))]
    if lines:
        return lines[-1] if len(set(lines)) == 1 else None
    named = set(NAMED.findall(text))
    return str(named.pop()) if len(named) == 1 else None


def number(text: str) -> int | None:
    """A whole number from 1 to 10, where the text is one or names one as its answer."""
    if found := NUMBER_ALONE.match(text.strip()):
        return int(found[1])
    if said := NUMBER.findall(text):
        return int(said[-1])
    lines = [int(each[1]) for line in text.splitlines() if (each := NUMBER_ALONE.match(line.strip()))]
    return lines[-1] if lines else None


def scaled(score: float) -> float:
    """A score from 1 to 10 as one from -1 to 1."""
    middle = (LOWEST + HIGHEST) / 2
    return (score - middle) / (HIGHEST - middle)


def probability_of_a(places: Sequence[Mapping[str, Any]], text: str) -> float | None:
    """P(A) among A and B at the place where the answer stands, of `choices[0].logprobs.content` of a chat completion.

    Parameters: places: one entry a token, with `token`, `logprob` and `top_logprobs`. text: the whole answer. None where no token is a letter.
    """
    said = letter(text)
    if said is None:
        return None
    at = next((place for place in reversed(places) if _word(place.get("token")) == said), None)
    if at is None:
        return None
    mass = {"A": 0.0, "B": 0.0}
    candidates = at.get("top_logprobs") or [at]
    for each in candidates:
        if (name := _word(each.get("token"))) in mass and isinstance(each.get("logprob"), int | float):
            mass[name] += math.exp(min(0.0, float(each["logprob"])))
    whole = mass["A"] + mass["B"]
    return mass["A"] / whole if whole > 0 else None


def expected_score(places: Sequence[Mapping[str, Any]], text: str) -> float | None:
    """The mean of the numbers 1 to 10 under the probabilities at the place where the answer stands; None where there is none."""
    said = number(text)
    if said is None:
        return None
    at = next((place for place in reversed(places) if _word(place.get("token")) == str(said)), None)
    if at is None:
        return None
    mass = {str(value): 0.0 for value in range(LOWEST, HIGHEST + 1)}
    for each in at.get("top_logprobs") or [at]:
        if (name := _word(each.get("token"))) in mass and isinstance(each.get("logprob"), int | float):
            mass[name] += math.exp(min(0.0, float(each["logprob"])))
    whole = sum(mass.values())
    return sum(int(name) * share for name, share in mass.items()) / whole if whole > 0 else None


def _word(token: Any) -> str:
    """A token without the space before it and the decoration around it."""
    return re.sub(r"[\W_Ġ]", "", str(token)) if token is not None else ""

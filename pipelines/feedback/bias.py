"""How far a judge can be trusted: what it gives to a place and to length, whether it says the same twice, and what people say.

Wang et al. 2023, "Large Language Models are not Fair Evaluators", arxiv.org/abs/2305.17926, for the place; Zheng et al. 2023,
"Judging LLM-as-a-Judge", section 3.3, arxiv.org/abs/2306.05685, for length. Shares come with Wilson's interval (Wilson 1927,
"Probable Inference, the Law of Succession, and Statistical Inference", equation 1), which holds for few comparisons too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pipelines.feedback.judge import Verdict, preferred

Z = 1.959963984540054
"""Of a 95 % interval."""


def wilson(hits: float, count: int, z: float = Z) -> tuple[float, float]:
    """The interval of a share of `count`; (0, 1) of none."""
    if count == 0:
        return 0.0, 1.0
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def share(hits: float, count: int) -> dict[str, Any]:
    """A share with its interval and what it is of; the value is None of none."""
    low, high = wilson(hits, count)
    return {"value": hits / count if count else None, "low": low, "high": high, "count": count}


def order_consistency(verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """Share of the pairs shown in both orders whose verdict was the same in both."""
    said = [each.consistent for each in verdicts if each.consistent is not None]
    return share(sum(said), len(said))


def position_bias(verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """Share of the showings in which what was shown first was taken, of pairs shown in both orders: one half without a bias.

    A pair shows both completions in the first place once, so that their quality does not count.
    """
    taken = count = 0.0
    for each in verdicts:
        if each.shown_first is None or each.shown_second is None:
            continue
        for first in (preferred(each.shown_first), -preferred(each.shown_second)):
            taken += (first + 1) / 2
            count += 1
    return share(taken, int(count))


def length_bias(verdicts: Sequence[Verdict], first: Sequence[str], second: Sequence[str]) -> dict[str, Any]:
    """P(the longer wins) among decided pairs of different lengths in letters, and Spearman's correlation of the two differences.

    The correlation is between the log of the ratio of lengths and the probability; None where either never changes.
    """
    rows = [(len(one) - len(two), math.log((len(one) + 1) / (len(two) + 1)), each) for each, one, two in zip(verdicts, first, second, strict=True) if each.decided]
    uneven = [(longer, each) for longer, _, each in rows if longer]
    hits = sum((longer > 0) == (preferred(each.probability) > 0) for longer, each in uneven)
    return {**share(hits, len(uneven)), "correlation": spearman([ratio for _, ratio, _ in rows], [each.probability for *_, each in rows])}


def spearman(one: Sequence[float], two: Sequence[float]) -> float | None:
    """Rank correlation, ties at their mean rank; None for fewer than three values or where one side is all the same."""
    if len(one) < 3 or len(set(one)) < 2 or len(set(two)) < 2:
        return None
    a, b = _ranks(one), _ranks(two)
    mean = (len(one) - 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    return top / math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda at: values[at])
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for place in order[at : end + 1]:
            ranks[place] = (at + end) / 2
        at = end + 1
    return ranks


def agreement(verdicts: Iterable[Verdict], first_is_better: Iterable[bool]) -> dict[str, Any]:
    """Share of the decided verdicts that prefer what the labels prefer."""
    said = [(preferred(each.probability) > 0) == truth for each, truth in zip(verdicts, first_is_better, strict=True) if each.decided]
    return share(sum(said), len(said))


def self_consistency(verdicts: Sequence[Verdict], again: Sequence[Verdict]) -> dict[str, Any]:
    """Share of the pairs asked a second time whose verdict stayed: the same one preferred, or none both times."""
    said = [_sign(one) == _sign(two) for one, two in zip(verdicts, again, strict=True)]
    return share(sum(said), len(said))


def _sign(verdict: Verdict) -> int:
    return 0 if verdict.abstained else preferred(verdict.probability)

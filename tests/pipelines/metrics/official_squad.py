"""The scoring rules of SQuAD's two official scripts, written down again on plain dictionaries, as an oracle.

rajpurkar.github.io/SQuAD-explorer: `evaluate-v1.1.py`, `evaluate-v2.0.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.pipelines.metrics.test_squad import official_f1, official_normal


def version_1(right: Mapping[str, Sequence[str]], said: Mapping[str, str]) -> dict[str, float]:
    """A question without a prediction scores nothing, and counts."""
    exact = f1 = 0.0
    for name, answers in right.items():
        if name in said:
            exact += max(official_normal(said[name]) == official_normal(answer) for answer in answers)
            f1 += max(official_f1(said[name], answer) for answer in answers)
    return {"exact_match": 100.0 * exact / len(right), "f1": 100.0 * f1 / len(right)}


def version_2(
    right: Mapping[str, Sequence[str]], said: Mapping[str, str], odds: Mapping[str, float] | None, limit: float = 1.0
) -> dict[str, Any]:
    """With the odds of no answer, those above `limit` take the answer away, and the best limits are looked for."""
    exact: dict[str, float] = {}
    f1: dict[str, float] = {}
    for name, answers in right.items():
        gold = [answer for answer in answers if official_normal(answer)] or [""]
        exact[name] = max(int(official_normal(answer) == official_normal(said[name])) for answer in gold)
        f1[name] = max(_f1(answer, said[name]) for answer in gold)
    used = {name: odds[name] if odds else 0.0 for name in right}
    kept = [
        {name: float(not right[name]) if used[name] > limit else value for name, value in each.items()}
        for each in (exact, f1)
    ]
    found: dict[str, Any] = {}
    groups = {
        "": list(right),
        "HasAns_": [name for name in right if right[name]],
        "NoAns_": [name for name in right if not right[name]],
    }
    for prefix, names in groups.items():
        if names:
            found |= {
                f"{prefix}{key}": 100.0 * sum(each[name] for name in names) / len(names)
                for key, each in zip(("exact", "f1"), kept, strict=True)
            }
            found[f"{prefix}total"] = len(names)
    if odds:
        for key, each in (("exact", exact), ("f1", f1)):
            found |= dict(zip((f"best_{key}", f"best_{key}_thresh"), _best(right, said, each, odds), strict=True))
    return found


def _f1(answer: str, said: str) -> float:
    gold, tokens = official_normal(answer).split() if answer else [], official_normal(said).split() if said else []
    return float(gold == tokens) if not gold or not tokens else official_f1(said, answer)


def _best(
    right: Mapping[str, Sequence[str]], said: Mapping[str, str], scores: Mapping[str, float], odds: Mapping[str, float]
) -> tuple[float, float]:
    now = best = float(sum(not answers for answers in right.values()))
    limit = 0.0
    for name in sorted(odds, key=lambda name: odds[name]):
        if name not in scores:
            continue
        now += scores[name] if right[name] else (-1 if said[name] else 0)
        if now > best:
            best, limit = now, odds[name]
    return 100.0 * best / len(scores), limit

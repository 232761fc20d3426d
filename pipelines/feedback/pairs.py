"""Which completions of a prompt are compared, what a judge says of them, and which pairs become preferences.

`all`: every pair is compared, and every decided one is a preference. `best_worst`: every pair is compared, and the
completion that wins most against the one that wins least is the preference. `random`: the completions are drawn into
pairs, half as many as there are completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from pipelines.feedback.judges.judge import Verdict, preferred
from pipelines.feedback.judges.reward import sigmoid

if TYPE_CHECKING:
    from pipelines.data.prompts import PromptRows, PromptText


Way = Literal["best_worst", "all", "random"]
Pair = tuple[int, int]


@dataclass(frozen=True)
class PreferencePair:
    """Two completions of one prompt of which one is better, by their places among the completions."""

    chosen: int
    rejected: int
    probability: float
    """That the chosen one is better: above one half."""


def compared(texts: Sequence[str], way: Way, seed: int, number: int) -> list[Pair]:
    """The pairs of completions of prompt `number` that are judged. Empty completions and equal ones are left out.

    Each pair stands in an order drawn by (seed, number, pair), so that no completion is shown first more often for
    its place.
    """
    seen: dict[str, int] = {}
    for at, text in enumerate(texts):
        if text.strip():
            seen.setdefault(text, at)
    usable = sorted(seen.values())
    random = Random(f"pairs\x1f{seed}\x1f{number}")
    if way == "random":
        random.shuffle(usable)
        pairs = [(usable[at], usable[at + 1]) for at in range(0, len(usable) - 1, 2)]
    else:
        pairs = list(combinations(usable, 2))
    return [pair if random.random() < 0.5 else (pair[1], pair[0]) for pair in pairs]


def win_rates(count: int, verdicts: Mapping[Pair, Verdict]) -> list[float | None]:
    """Of each completion the mean probability that it is better than those it was compared with; None where it was
    not."""
    sums, seen = [0.0] * count, [0] * count
    for (first, second), verdict in verdicts.items():
        if verdict.abstained:
            continue
        for at, probability in ((first, verdict.probability), (second, 1 - verdict.probability)):
            sums[at] += probability
            seen[at] += 1
    return [total / times if times else None for total, times in zip(sums, seen, strict=True)]


def preferences(scores: Sequence[float | None], verdicts: Mapping[Pair, Verdict], way: Way) -> list[PreferencePair]:
    """The preferences among the completions of one prompt, by the verdicts; scores choose between pairs for
    `best_worst`."""
    if way == "best_worst":
        judged = {at for pair in verdicts for at in pair}  # a text that was written twice, once
        ranked = sorted(
            (at for at, score in enumerate(scores) if score is not None and at in judged),
            key=lambda at: (-_number(scores[at]), at),
        )
        if len(ranked) < 2 or _number(scores[ranked[0]]) <= _number(scores[ranked[-1]]):
            return []
        preference = _preference((ranked[0], ranked[-1]), verdicts)
        return [preference] if preference is not None and preference.chosen == ranked[0] else []
    return [preference for pair in verdicts if (preference := _preference(pair, verdicts)) is not None]


def _preference(pair: Pair, verdicts: Mapping[Pair, Verdict]) -> PreferencePair | None:
    """The preference between two completions, whichever way round they were compared; None for a tie or an
    abstention."""
    turned = pair not in verdicts
    verdict = verdicts.get((pair[1], pair[0]) if turned else pair)
    if verdict is None or not verdict.decided:
        return None
    probability = 1 - verdict.probability if turned else verdict.probability
    first, second = pair
    return (
        PreferencePair(first, second, probability)
        if preferred(probability) > 0
        else PreferencePair(second, first, 1 - probability)
    )


def cycles(count: int, verdicts: Mapping[Pair, Verdict]) -> tuple[int, int]:
    """(triples of completions that go round in a circle: a beats b, b beats c, c beats a; triples that were fully
    decided)."""
    better = {}
    for (first, second), verdict in verdicts.items():
        if verdict.decided:
            wins = preferred(verdict.probability) > 0
            better[first, second], better[second, first] = wins, not wins
    circular = whole = 0
    for a, b, c in combinations(range(count), 3):
        if all(pair in better for pair in ((a, b), (b, c), (a, c))):
            whole += 1
            circular += better[a, b] == better[b, c] != better[a, c]
    return circular, whole


def _number(value: float | None) -> float:
    return float("-inf") if value is None else value


@dataclass(frozen=True)
class JudgedPrompt:
    """The completions of one prompt and what the judge says of them."""

    prompt: PromptText
    number: int
    """Row number in the file."""
    texts: list[str]
    ended: list[bool]
    """Whether each came to its own end."""
    scores: list[float | None]
    verdicts: dict[Pair, Verdict]
    principles: dict[Pair, str | None]
    """Id of the principle each pair was compared by."""


def judged_of(rows: PromptRows, at: int, sampled: Any, judgement: Any) -> JudgedPrompt:
    """What was kept of one prompt, put together."""
    texts = sampled["texts"]
    if "scores" in judgement:
        verdicts = {
            pair: verdict_of(judgement["scores"][pair[0]], judgement["scores"][pair[1]])
            for pair in compared(texts, "all", 0, at)
        }
        return JudgedPrompt(
            rows.texts[at],
            rows.index[at],
            texts,
            sampled["ended"],
            judgement["scores"],
            verdicts,
            dict.fromkeys(verdicts),
        )
    verdicts = {tuple(each["pair"]): Verdict(**each["verdict"]) for each in judgement["verdicts"]}
    principles = {tuple(each["pair"]): each["principle"] for each in judgement["verdicts"]}
    return JudgedPrompt(
        rows.texts[at], rows.index[at], texts, sampled["ended"], win_rates(len(texts), verdicts), verdicts, principles
    )


def verdict_of(first: float | None, second: float | None) -> Verdict:
    """The verdict that two ratings give, by Bradley and Terry; equal ones prefer neither."""
    if first is None or second is None or first == second:
        return Verdict(0.5, abstained=first is None or second is None)
    return Verdict(sigmoid(first - second))


def column_of(prompt: PromptText) -> Any:
    """A prompt as a data set has it: a list of messages where it was one."""
    return [dict(each) for each in prompt.messages] if prompt.messages else str(prompt)

"""The completions of one prompt, and what a judge says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.feedback import pairing
from pipelines.feedback.judge import Verdict
from pipelines.feedback.pairing import Pair
from pipelines.feedback.reward_judge import sigmoid

if TYPE_CHECKING:
    from pipelines.data.prompts import Prompt, PromptRows


@dataclass(frozen=True)
class Judged:
    """The completions of one prompt and what the judge says of them."""

    prompt: Prompt
    number: int
    """Row number in the file."""
    texts: list[str]
    ended: list[bool]
    """Whether each came to its own end."""
    scores: list[float | None]
    verdicts: dict[Pair, Verdict]
    principles: dict[Pair, str | None]
    """Id of the principle each pair was compared by."""


def judged_of(rows: PromptRows, at: int, sampled: Any, said: Any) -> Judged:
    """What was kept of one prompt, put together."""
    texts = sampled["texts"]
    if "scores" in said:
        verdicts = {pair: verdict_of(said["scores"][pair[0]], said["scores"][pair[1]]) for pair in pairing.compared(texts, "all", 0, at)}
        return Judged(rows.texts[at], rows.index[at], texts, sampled["ended"], said["scores"], verdicts, dict.fromkeys(verdicts))
    verdicts = {tuple(each["pair"]): Verdict(**each["verdict"]) for each in said["verdicts"]}
    principles = {tuple(each["pair"]): each["principle"] for each in said["verdicts"]}
    return Judged(rows.texts[at], rows.index[at], texts, sampled["ended"], pairing.win_rates(len(texts), verdicts), verdicts, principles)


def verdict_of(first: float | None, second: float | None) -> Verdict:
    """The verdict that two ratings give, by Bradley and Terry; equal ones prefer neither."""
    if first is None or second is None or first == second:
        return Verdict(0.5, abstained=first is None or second is None)
    return Verdict(sigmoid(first - second))


def column_of(prompt: Prompt) -> Any:
    """A prompt as a data set has it: a list of messages where it was one."""
    return [dict(each) for each in prompt.messages] if prompt.messages else str(prompt)

"""What every judge promises: two completions in, how likely the first is the better one out; or one, and a number.

Preferences from a model in place of people: Bai et al. 2022, "Constitutional AI: Harmlessness from AI Feedback",
arxiv.org/abs/2212.08073, and Lee et al. 2023, "RLAIF vs. RLHF", arxiv.org/abs/2309.00267. A judge reads text, never
token ids, so that the model behind it may have another tokenizer than the policy. What it says is data: nothing of it
is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pipelines.core.config import Consulted, Pick
from pipelines.core.registry import JUDGES

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context


TIE = 1e-6
"""A probability this close to one half prefers neither."""


@dataclass(frozen=True)
class Verdict:
    """What a judge makes of two completions of one prompt."""

    probability: float
    """That the first is better, from 0 to 1: the mean over the orders in which both were shown; 0.5 where it
    abstained."""
    shown_first: float | None = None
    """The same as read when the first was shown first; None where that was not asked, or not answered."""
    shown_second: float | None = None
    """That the first is better as read when it was shown second."""
    reason: str = ""
    """What the judge wrote before it decided. Never read as anything but text."""
    abstained: bool = False
    """Whether an answer could not be read: the only one, or that in either of two orders."""

    @property
    def consistent(self) -> bool | None:
        """Whether both orders prefer the same completion; None where not both were answered."""
        if self.shown_first is None or self.shown_second is None:
            return None
        return preferred(self.shown_first) == preferred(self.shown_second)

    @property
    def decided(self) -> bool:
        """Whether one of the two is preferred."""
        return not self.abstained and preferred(self.probability) != 0


def preferred(probability: float) -> int:
    """1 where the first is better, -1 where the second is, 0 for a tie."""
    return 0 if abs(probability - 0.5) <= TIE else 1 if probability > 0.5 else -1


def both_orders(first: float | None, second: float | None, reason: str = "") -> Verdict:
    """One verdict of two readings: P(the first is better) with it shown first, and with it shown second.

    The mean takes out what a judge gives to a position (Lee et al. 2023, section 2.1.1). Where one of them could not be
    read, the other is quality and position in one, and the judge abstains.
    """
    if first is None or second is None:
        return Verdict(0.5, first, second, reason, abstained=True)
    return Verdict((first + second) / 2, first, second, reason)


def one_order(first: float | None, reason: str = "") -> Verdict:
    """The verdict of a judge that was shown the first one first, and was not asked again."""
    return Verdict(0.5 if first is None else first, first, None, reason, abstained=first is None)


@dataclass(frozen=True)
class Rating:
    """What a judge makes of one completion alone."""

    score: float | None
    """From -1 to 1 where the judge rates in words, else in its own unit; None where no answer could be read."""
    reason: str = ""


@dataclass
class Spent:
    """What the answers of a judge took, whether they were given now or kept from before."""

    questions: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """In the currency of the prices that the recipe gives; 0 without any."""

    def add(self, other: Spent | Mapping[str, float]) -> None:
        """Count another's as well."""
        more = other if isinstance(other, Mapping) else vars(other)
        self.questions += int(more["questions"])
        self.prompt_tokens += int(more["prompt_tokens"])
        self.completion_tokens += int(more["completion_tokens"])
        self.cost += float(more["cost"])

    def taken(self) -> dict[str, float]:
        """The numbers as plain data; counting starts again."""
        counts = dict(vars(self))
        self.__init__()  # type: ignore[misc]
        return counts


@dataclass
class Judge:
    """An opened judge. A kind of judge overrides what it can do."""

    spent: Spent = field(default_factory=Spent)

    def compare(
        self,
        prompts: Sequence[str],
        first: Sequence[str],
        second: Sequence[str],
        principles: Sequence[str | None] | None = None,
        draw: int = 0,
    ) -> list[Verdict]:
        """A verdict for each prompt and its two completions, in their order.

        Parameters: principles: what each comparison is to be judged by; None: the judge's own question. draw: another
        number asks a judge with chance in it anew. Raises Stopped where what was answered is kept and the rest can be
        asked later, StageError where it cannot.
        """
        raise NotImplementedError

    def rate(self, prompts: Sequence[str], completions: Sequence[str]) -> list[Rating]:
        """What each completion is worth by itself."""
        raise NotImplementedError

    def scores(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        """The same as plain numbers, for a policy that learns from them: 0 where no answer could be read.

        Direct RLAIF (Lee et al. 2023, section 2.2.2).
        """
        return [0.0 if rating.score is None else rating.score for rating in self.rate(prompts, completions)]

    def write(self, conversations: Sequence[Sequence[Mapping[str, str]]], length: int, draw: int = 0) -> list[str]:
        """What the judge's model answers to each list of messages, at most `length` tokens of it."""
        raise NotImplementedError


class JudgeBlock(Consulted):
    """A judge in a recipe."""

    writes: ClassVar[bool] = False
    """Whether it can write critiques and revisions."""
    reads_principles: ClassVar[bool] = False
    """Whether principles change what it says."""

    @property
    def chance(self) -> bool:
        """Whether it may say something else when it is asked again."""
        return False

    def identity(self) -> dict[str, Any]:
        """The block without what changes only how long its answers take: its part of a fingerprint."""
        return {"name": self.name, **self.plain()}

    def open(self, context: Context) -> Judge:
        """The judge, ready to be asked. Raises ModelError, StageError."""
        raise NotImplementedError


JudgeField = Annotated[Any, Pick(JUDGES, "name")]
"""The type of a recipe's key that holds a judge: `{name: local, from: STAGE}`."""


Scorer = Callable[[Sequence[str], Sequence[str]], list[float]]
"""`scorer(prompts, completions)`: what a reward block opens as, a number for each pair of texts."""


def each_once(scorer: Scorer, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    """The score of each completion of its prompt, in their order; equal pairs of the same row are scored once."""
    pairs = [(getattr(prompt, "number", None), prompt, text) for prompt, text in zip(prompts, completions, strict=True)]
    different = list(dict.fromkeys(pairs))
    scores = scorer([prompt for _, prompt, _ in different], [text for *_, text in different]) if different else []
    score_of = dict(zip(different, scores, strict=True))
    return [score_of[pair] for pair in pairs]

"""How likely a language model finds the continuations of texts: what is asked, and what each family is asked through.

A continuation's log-likelihood is the sum over its tokens, in nats. Tokens are those of the lm-evaluation-harness:
white space at the end of the context belongs to the continuation, and context and continuation are tokenised as one
text where a decoder reads them as one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.core.model_types import usable_positions
from pipelines.models.predict import InferenceOptions

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MOST_LOGITS = 2**26
"""Numbers of a batch's output, so that long answers and large vocabularies fit into memory."""
UNBOUNDED = ("alibi", "relative", "none")
"""Positions of our own family that go on for any length."""


@dataclass(frozen=True)
class Continuation:
    """A text, how it goes on, and what follows."""

    context: str
    answer: str
    rest: str = ""
    """What stands behind the answer; a decoder counts its likelihood too."""


@dataclass(frozen=True)
class Encoded:
    """The same as tokens."""

    context: tuple[int, ...]
    answer: tuple[int, ...]
    rest: tuple[int, ...] = ()
    """Of an encoder only: it reads what follows."""

    def cut(self, tokens: int) -> Encoded:
        """Without the first `tokens` of the context."""
        return Encoded(self.context[tokens:], self.answer, self.rest)


@dataclass(frozen=True)
class Likelihood:
    """What a model makes of a continuation."""

    nats: float
    """The log-likelihood."""
    tokens: int
    greedy: bool
    """Whether each token is the likeliest in its place."""


class LikelihoodReader(ABC):
    """A language model that is asked for likelihoods. `limit` is how many tokens it reads; None without bound."""

    head: ClassVar[Head]
    """The head it is asked through."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, limit: int | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        own = positions_of(model, tokenizer)
        self.limit = min((each for each in (limit, own) if each is not None), default=None)

    @abstractmethod
    def encode(self, request: Continuation) -> Encoded:
        """The tokens of a context and its continuation. Raises ModelError for a continuation without any."""

    @abstractmethod
    def context(self, text: str) -> tuple[int, ...]:
        """The tokens of a text that an answer is to be written behind."""

    @abstractmethod
    def excess(self, encoded: Encoded) -> int:
        """Tokens by which the context is too long; 0 where all is read."""

    @abstractmethod
    def likelihoods(self, requests: Sequence[Encoded], **running: Unpack[InferenceOptions]) -> list[Likelihood]:
        """Of each request, in their order, on every process; those that are too long lose the beginning of their
        context."""

    def facts(self) -> Mapping[str, Any]:
        """What else stands in details.json about how it was asked."""
        return {}

    def plain(self, text: str, special: bool = False) -> list[int]:
        """The tokens of a text, with or without the special ones that the tokenizer adds."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        return ids

    def refuse_too_long(self, encoded: Encoded) -> None:
        """Raise ModelError where not even the answer can be read."""
        raise ModelError(
            f"an answer of {len(encoded.answer)} tokens does not fit into the {self.limit} tokens that the "
            "model reads; use shorter answers, "
            "or a model with more positions"
        )


def spaced(request: Continuation) -> tuple[str, str]:
    """(context, continuation): white space between them belongs to the continuation."""
    context = request.context.rstrip()
    return context, request.context[len(context) :] + request.answer


def positions_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """How many tokens the model can read at once; None where nothing in it ends."""
    config = model.config
    limits = [None if getattr(config, "position", None) in UNBOUNDED else usable_positions(config)]
    if limits[0] is not None:
        limits[0] -= getattr(model, "virtual_tokens", 0)
    if tokenizer.model_max_length < 10**6:
        limits.append(int(tokenizer.model_max_length))
    return min((limit for limit in limits if limit), default=None)


def read_off(logits: Tensor, targets: Sequence[int]) -> Likelihood:
    """The likelihood of tokens, given the logits (tokens, vocab) of their places."""
    import torch

    wanted = torch.tensor(targets, device=logits.device)
    chances = logits.float().log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
    return Likelihood(float(chances.double().sum()), len(targets), bool((logits.argmax(-1) == wanted).all()))

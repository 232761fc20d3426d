"""One text that a served model writes: the choice of each token, and the text that is told as it grows.

Which token is drawn at place t is a function of the model, the prompt and (seed, draw, t), as in `models.sampling`:
the same seed gives the same text, whatever is written beside it, up to the rounding of batches of different shapes.
Log-probabilities are the model's own, at temperature 1 and before penalties.

Text is told as soon as it is certain. The last tokens of the prompt are decoded with the first of the answer, because
a token decoded alone loses the space before it; half of a character waits for its other half; and whatever may be the
beginning of a stop string waits until it is none. A prompt that is echoed is told first, as the beginning of the text.
With log-probabilities the text of each token is what it adds to the text, so that all of them joined are the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from pipelines.data.randomness import uniforms
from pipelines.models.sampling import at_temperature, inverted, restricted

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from pipelines.serving.structured_outputs import Grammar

SERVING = 0x5E12
"""The stream of the numbers that choose tokens."""
TAIL = 6
"""Tokens of the prompt that are decoded with the answer's first ones."""
LONGEST = 4096
"""Tokens of a text whose model has positions without end."""
HALF = "\ufffd"
"""What a decoder makes of a character whose bytes are not complete."""
Reason = Literal["stop", "length", "cancelled", "error"]
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are chosen, and where a text ends."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """So many of the likeliest tokens are drawn from; 0 for all."""
    seed: int = 0
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are no part of it."""
    max_tokens: int | None = None
    """Default: as many as the model has positions for."""
    logprobs: int | None = None
    """So many of the likeliest tokens are told with each chosen one; None tells no log-probabilities."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens that were written: once, and once for each time."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    json_schema: str | None = None
    """The text is JSON that this schema, as JSON, allows."""


class GrowingText:
    """The text of tokens that come one by one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int]) -> None:
        """`before` are the last of the tokens that stand before the text."""
        self._decode = tokenizer.decode
        self._ids = list(before)
        self._before, self._known = 0, len(self._ids)

    def add(self, token: int) -> str:
        """The text that this token makes certain; empty within a character."""
        self._ids.append(token)
        before = self._decode(self._ids[self._before : self._known], skip_special_tokens=True)
        whole = self._decode(self._ids[self._before :], skip_special_tokens=True)
        if len(whole) <= len(before) or whole.endswith(HALF):
            return ""
        self._before, self._known = self._known, len(self._ids)
        return str(whole[len(before) :])


@dataclass(frozen=True)
class Echo:
    """A prompt that is told before what is written behind it."""

    text: str
    offsets: tuple[int, ...]
    """The character that each of its tokens begins at."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, given: str | Sequence[int], ids: Sequence[int]) -> Echo:
        """Of a prompt as it was given, and its tokens. Tokens are decoded without the special ones."""
        if isinstance(given, str):
            for special in (True, False) if tokenizer.is_fast else ():
                encoded = tokenizer(given, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
                if encoded["input_ids"] == list(ids):
                    starts = (start for start, _ in encoded["offset_mapping"])
                    return cls(given, tuple(accumulate(starts, max)))  # special tokens say 0 wherever they stand
        growing, text, offsets = GrowingText(tokenizer, ()), "", []
        for token in ids:
            offsets.append(len(text))
            text += growing.add(token)
        if isinstance(given, str):
            return cls(given, tuple(min(each, len(given)) for each in offsets))
        return cls(text, tuple(offsets))


class WrittenSequence:
    """A text that is being written."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: Sequence[int],
        choice: SamplingSettings,
        limit: int,
        ends: Collection[int],
        tell: Tell,
        draw: int = 0,
        apart: bool = False,
        model: str = "",
        echo: Echo | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        """At most `limit` tokens are written; `ends` are the tokens that end a text. `tell` is given what is written:
        `{"text", "tokens"}`, last `{"reason", "written"}`. `draw` numbers the texts of one prompt and seed; `apart`
        says that the text does not go on with its prompt, as an encoder-decoder's. `model` names the one that writes
        it, where several stand on one base. With an `echo` the engine calls `tell_prompt` first. `grammar` is what the
        text is held to, where its engine does not see to that."""
        self.model, self.draw, self.echo, self._grammar = model, draw, echo, grammar
        self.prompt = list(prompt)
        self.limit = limit
        self.tokens: list[int] = []
        self.reason: Reason | None = None
        self.echoed = False
        """Whether the prompt was told."""
        self.cancelled = False
        """Set from any thread; the text ends before its next token."""
        self._tokenizer, self.choice, self._ends, self._tell = tokenizer, choice, frozenset(ends), tell
        self._chances = uniforms(choice.seed, SERVING, [draw], limit)[0] if choice.temperature > 0 else None
        self._growing = GrowingText(tokenizer, [] if apart else self.prompt[-TAIL:])
        self._characters = 0
        """Of the text that is decoded, the prompt among it where it is echoed."""
        self._told = 0
        """Characters of that which were told."""
        self._held = ""
        """Text that is not told yet."""
        self._records: list[dict[str, Any]] = []

    @property
    def scores_prompt(self) -> bool:
        """Whether `tell_prompt` needs log-probabilities."""
        return self.echo is not None and self.choice.logprobs is not None

    def tell_prompt(self, records: Sequence[dict[str, Any]] = ()) -> None:
        """Tell the prompt that is echoed, once, before the first token is chosen; `records` are the log-probabilities
        of its tokens but the first, which nothing comes before. Ends the text where nothing is to be written."""
        if self.echo is None or self.reason is not None:
            return
        tokens: list[dict[str, Any]] = []
        if self.scores_prompt:
            first = {"token": self._tokenizer.decode([self.prompt[0]]), "logprob": None, "top": None}
            places = zip((first, *records), self.echo.offsets, strict=True)
            tokens = [{**record, "offset": offset} for record, offset in places]
        self._characters = self._told = len(self.echo.text)
        self.echoed = True
        self._tell({"text": self.echo.text, "tokens": tokens})
        if self.limit == 0:
            self.end("length")

    def choose(self, logits: Tensor) -> int | None:
        """The next token, from logits (vocab,); None when the text ends here. Tells what became certain."""
        if self.reason is None and self.cancelled:
            self.end("cancelled")
        if self.reason is not None:
            return None
        token = self._chosen(logits)
        record = self.records(logits[None], [token])[0] if self.choice.logprobs is not None else None
        return token if self.take(token, record) else None

    def take(self, token: int, record: dict[str, Any] | None) -> bool:
        """The next token, with its log-probabilities where they are wanted. Tells what became certain; False where the
        text ends with it."""
        if self.reason is not None:
            return False
        self.tokens.append(token)
        complete = self._grammar is not None and self._grammar.take(token)
        if token in self._ends:
            if record is not None and self.echo is not None:
                self._records.append({**record, "offset": self._characters})
            self.end("stop")
            return False
        text = self._growing.add(token)
        if record is not None:
            self._records.append({**_adding(text, record), "offset": self._characters})
        self._characters += len(text)
        self._held += text
        stopped = self._cut() or complete
        if stopped or len(self.tokens) >= self.limit:
            self.end("stop" if stopped else "length")
            return False
        self._say(self._certain())
        return True

    def end(self, reason: Reason) -> None:
        """End the text, once: tell what is left of it, then why."""
        if self.reason is not None:
            return
        if reason in ("stop", "length"):
            self._say(self._held, whole=True)
        self.reason = reason
        self._tell({"reason": reason, "written": len(self.tokens)})

    def _chosen(self, logits: Tensor) -> int:
        import torch

        choice = self.choice
        scores = logits.float()
        if choice.logit_bias or choice.presence_penalty or choice.frequency_penalty:
            scores = scores.clone()
            for token, bias in choice.logit_bias.items():
                if 0 <= token < len(scores):
                    scores[token] += bias
            for token, count in Counter(self.tokens).items():
                scores[token] -= choice.presence_penalty + choice.frequency_penalty * count
        if self._grammar is not None:
            scores = self._grammar.allowed(scores)
        if self._chances is None:
            return int(scores.argmax())
        drawn = restricted(at_temperature(scores[None], choice.temperature), choice.top_p, choice.top_k)
        chance = torch.tensor([self._chances[len(self.tokens)]], dtype=torch.float64, device=scores.device)
        return int(inverted(drawn, chance))

    def records(self, logits: Tensor, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """The log-probabilities of tokens, from the logits (tokens, vocab) of their places, and the likeliest there."""
        decode = self._tokenizer.decode
        chances = logits.float().log_softmax(-1)
        best = chances.topk(min(self.choice.logprobs or 0, chances.shape[-1]), dim=-1)
        return [
            {
                "token": decode([token]),
                "logprob": max(float(row[token]), -9999.0),
                "top": [
                    {"token": decode([other]), "logprob": max(value, -9999.0)}
                    for other, value in zip(others, values, strict=True)
                ],
            }
            for token, row, others, values in zip(
                tokens, chances, best.indices.tolist(), best.values.tolist(), strict=True
            )
        ]

    def _cut(self) -> bool:
        """Whether a stop string was written; the text then ends before the first of them."""
        places = [place for stop in self.choice.stop if (place := self._held.find(stop)) >= 0]
        if places:
            end = self._told + min(places)
            self._held = self._held[: min(places)]
            self._records = [
                _adding(each["token"][: end - each["offset"]], each) for each in self._records if each["offset"] < end
            ]
        return bool(places)

    def _certain(self) -> str:
        """The part of the held text that no stop string can begin in."""
        longest = max((len(stop) for stop in self.choice.stop), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self.choice.stop):
                return self._held[:-size]
        return self._held

    def _say(self, text: str, whole: bool = False) -> None:
        """Tell a text, and the tokens that end within it; all that are left where it is the end of the `whole`."""
        self._held = self._held[len(text) :]
        self._told += len(text)
        count = len(self._records)
        while not whole and count and self._told < (last := self._records[count - 1])["offset"] + len(last["token"]):
            count -= 1
        if text or count:
            self._tell({"text": text, "tokens": self._records[:count]})
            del self._records[:count]


def _adding(text: str, record: dict[str, Any]) -> dict[str, Any]:
    """The log-probabilities of a token that adds this to the text; among the likeliest it has the same name."""
    same = (record["token"], record["logprob"])
    top = [{**each, "token": text} if (each["token"], each["logprob"]) == same else each for each in record["top"]]
    return {**record, "token": text, "top": top}

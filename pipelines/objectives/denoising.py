"""Denoising: the encoder reads a damaged text, and the decoder writes the original.

Lewis et al. 2020, "BART", section 2.2 and figure 2, arxiv.org/abs/1910.13461: text infilling (spans of Poisson length
become one mask each, an empty span is a mask put in) and sentence permutation; token deletion and document rotation
are there to be switched on. Section 5.1: 30 % of the tokens are masked and all sentences permuted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from pipelines.core.config import ConfigIssues
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.data.randomness import uniforms
from pipelines.models.checkpoint import start_token
from pipelines.objectives.attention_masks import decoder_sees_ahead
from pipelines.objectives.batches import (
    SPACES,
    Flags,
    Ids,
    Luck,
    draws_of,
    padded,
    padding_token,
    special_ids,
    squeezed,
    taught,
    within,
)
from pipelines.objectives.objective import Collate, Objective

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


class Denoising(Objective):
    """Write the text that was damaged."""

    name: Literal["denoising"] = "denoising"
    mask_ratio: float = Field(0.3, ge=0, le=0.9)
    """Text infilling: the share of the tokens that lies in masked spans, each span one mask."""
    poisson_lambda: float = Field(3.0, ge=0.5, le=50)
    """Tokens of a masked span, on average; lengths are drawn from a Poisson distribution, and may be 0."""
    permute_sentences: bool = True
    """Whether the sentences are put in random order; a sentence ends with a full stop."""
    delete_ratio: float = Field(0.0, ge=0, le=0.9)
    """Token deletion: the probability that a token disappears without a mask."""
    rotate: float = Field(0.0, ge=0, le=1)
    """Document rotation: the probability that the text begins at a random token and its beginning follows its end."""

    @model_validator(mode="after")
    def _damages_something(self) -> Denoising:
        if not (self.mask_ratio or self.permute_sentences or self.delete_ratio or self.rotate):
            problem = "is 0 and nothing else is switched on, so the text would not be damaged at all; raise one"
            raise ConfigIssues([(("mask_ratio",), problem)])
        return self

    @property
    def head(self) -> Head:
        """The head that writes the text."""
        return Head("seq2seq_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        return decoder_sees_ahead(architecture)

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:

        return Damage.of(self, tokenizer, seed, config)


SENTENCES, DELETED, LENGTHS, PLACES, ROTATED, FIRST = 24, 25, 26, 27, 28, 29
"""Streams of random numbers: the order of sentences, which tokens are deleted, the lengths and the places of masked
spans, whether a text is rotated, and which token then comes first."""
FULL_STOPS = (".", "!", "?", "。", "…")


@dataclass(frozen=True)
class Damage:
    """The collator of Denoising. The special tokens at both ends of a text stay where they are."""

    objective: Denoising
    seed: int
    mask: int
    start: int
    padding: int
    special: Flags
    """For each id, whether it is a special token."""
    stops: Flags
    """For each id, whether a sentence ends with it: full stops, and special tokens between documents."""

    @classmethod
    def of(
        cls, objective: Denoising, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig
    ) -> Damage:
        """The collator for a tokenizer and a model's config. Raises ModelError when there is no mask token."""
        import numpy as np

        if tokenizer.mask_token_id is None and objective.mask_ratio:
            raise ModelError(
                "the tokenizer has no mask token, which the objective denoising needs; train one (tokenizer: "
                "{train: bpe}), take BART's, or set mask_ratio: 0"
            )
        special = special_ids(tokenizer)
        tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        stops = np.asarray([_plain(token) in FULL_STOPS for token in tokens], dtype=np.bool_)
        if objective.permute_sentences and not stops.any():
            raise ModelError(
                "the tokenizer has no token that is a full stop, so sentences cannot be told apart; set "
                "permute_sentences: false, or use another tokenizer"
            )
        mask = -1 if tokenizer.mask_token_id is None else int(tokenizer.mask_token_id)
        return cls(
            objective, seed, mask, start_token(config, tokenizer), padding_token(tokenizer), special, stops | special
        )

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids` damaged, and the original as `labels`."""
        ids, lengths = padded([example["input_ids"] for example in examples], self.padding)
        draws = draws_of(examples)
        return taught(self.damage(ids, lengths, draws), (ids, lengths), self.start)

    def hidden(self, examples: Sequence[dict[str, Any]]) -> Flags:
        """Which tokens of the originals are not in the damaged texts (batch, length).

        Every token is made one of a kind by its position, id + position × vocabulary, and damaged with the same luck.
        """
        import numpy as np

        ids, lengths = padded([example["input_ids"] for example in examples], self.padding)
        draws = draws_of(examples)
        vocabulary, longest = len(self.special), ids.shape[1]
        places = np.arange(longest)[None, :]
        one_of_a_kind = replace(
            self, special=np.tile(self.special, longest), stops=np.tile(self.stops, longest), mask=-1, padding=-1
        )
        left, _ = one_of_a_kind.damage(ids + places * vocabulary, lengths, draws)
        seen = np.zeros(ids.shape, dtype=np.bool_)
        row, column = np.nonzero(left >= 0)
        seen[row, left[row, column] // vocabulary] = True
        return within(lengths, longest) & ~seen

    def damage(self, ids: Ids, lengths: Ids, draws: Ids) -> tuple[Ids, Ids]:
        """The damaged rows and their lengths, never more than they were."""
        objective = self.objective
        if objective.permute_sentences:
            ids = self._permuted(ids, lengths, draws)
        if objective.delete_ratio:
            ids, lengths = self._deleted(ids, lengths, draws)
        if objective.mask_ratio:
            ids, lengths = self._infilled(ids, lengths, draws)
        if objective.rotate:
            ids = self._rotated(ids, lengths, draws)
        return ids, lengths

    def _inner(self, ids: Ids, lengths: Ids) -> Flags:
        """Where text stands between the special tokens at both ends, (batch, length)."""
        import numpy as np

        rows = np.arange(len(ids))
        first = self.special[ids[:, 0]].astype(np.int64)
        last = self.special[ids[rows, lengths - 1]] & (lengths > first)
        places = np.arange(ids.shape[1])[None, :]
        inner: Flags = (places >= first[:, None]) & (places < (lengths - last)[:, None])
        return inner

    def _permuted(self, ids: Ids, lengths: Ids, draws: Ids) -> Ids:
        """The sentences of every row in random order; a row of full stops ends one sentence."""
        import numpy as np

        inner = self._inner(ids, lengths)
        stops = self.stops[ids] & inner
        ends = stops & ~np.concatenate([stops[:, 1:], np.zeros((len(ids), 1), dtype=bool)], axis=1)
        sentence = np.cumsum(ends, axis=1) - ends  # (batch, length)
        luck = uniforms(self.seed, SENTENCES, draws, ids.shape[1])
        key = np.take_along_axis(luck, sentence, axis=1)
        places = np.arange(ids.shape[1])[None, :]
        key = np.where(inner, key, np.where(places < inner.argmax(axis=1)[:, None], -1.0, 2.0))
        return np.take_along_axis(ids, np.argsort(key, axis=1, kind="stable"), axis=1)

    def _deleted(self, ids: Ids, lengths: Ids, draws: Ids) -> tuple[Ids, Ids]:
        """The rows without the tokens that luck takes; one stays where it would take all."""
        import numpy as np

        inner = self._inner(ids, lengths)
        luck = np.where(inner, uniforms(self.seed, DELETED, draws, ids.shape[1]), 2.0)
        lost = inner & (luck < self.objective.delete_ratio)
        highest = np.where(inner, luck, -1.0).max(axis=1, keepdims=True)
        lost &= luck < highest
        return squeezed(ids, within(lengths, ids.shape[1]) & ~lost, self.padding)

    def _infilled(self, ids: Ids, lengths: Ids, draws: Ids) -> tuple[Ids, Ids]:
        """The rows with masked spans.

        A damaged text is a row of slots: one for each kept token, and one for each span, which stands for as many
        tokens as the span is long. Which slots are spans is drawn without replacement, so that spans never overlap
        and the share of masked tokens is exact.
        """
        import numpy as np

        inner = self._inner(ids, lengths)
        begin, count = inner.argmax(axis=1), inner.sum(axis=1)  # (batch,)
        hidden = np.round(count * self.objective.mask_ratio).astype(np.int64)
        spans, number = self._spans(hidden, draws)
        hidden = spans.sum(axis=1)
        slots = count - hidden + number
        real = within(slots, int(slots.max(initial=0)))
        luck = np.where(real, uniforms(self.seed, PLACES, draws, real.shape[1]), np.inf)
        rank = np.argsort(np.argsort(luck, axis=1, kind="stable"), axis=1, kind="stable")
        masked = real & (rank < number[:, None])
        which = np.clip(np.cumsum(masked, axis=1) - 1, 0, spans.shape[1] - 1)
        width = np.where(masked, np.take_along_axis(spans, which, axis=1), 1)
        place = begin[:, None] + np.cumsum(width, axis=1) - width  # where the slot's first token stood
        tokens = np.take_along_axis(ids, np.minimum(place, ids.shape[1] - 1), axis=1)
        tokens = np.where(masked, self.mask, tokens)
        return self._between_ends(ids, lengths, inner, tokens, slots)

    def _between_ends(self, ids: Ids, lengths: Ids, inner: Flags, tokens: Ids, counts: Ids) -> tuple[Ids, Ids]:
        """`tokens` (batch, counts) between the special tokens at both ends of `ids`."""
        import numpy as np

        real = within(lengths, ids.shape[1])
        places = np.arange(ids.shape[1])[None, :]
        head = real & ~inner & (places < inner.argmax(axis=1)[:, None])
        tail = real & ~inner & ~head
        joined = np.concatenate([ids, tokens, ids], axis=1)
        keep = np.concatenate([head, within(counts, tokens.shape[1]), tail], axis=1)
        return squeezed(joined, keep, self.padding)

    def _spans(self, hidden: Ids, draws: Ids) -> tuple[Ids, Ids]:
        """Lengths of spans that hold `hidden` tokens together, (batch, most spans), and how many they are (batch,).

        Spans are drawn until they hold enough, and the last is cut. Empty ones are left out where there would be more
        spans than hidden tokens: a damaged text is never longer than the text.
        """
        import numpy as np

        rate = self.objective.poisson_lambda
        most = math.ceil(4 * int(hidden.max(initial=0)) / rate) + 16
        drawn = poisson(rate, uniforms(self.seed, LENGTHS, draws, most))
        before = np.cumsum(drawn, axis=1) - drawn
        wanted = before < hidden[:, None]
        cut = np.where(wanted, np.minimum(drawn, hidden[:, None] - before), 0)
        room = hidden - (cut > 0).sum(axis=1)
        empty = wanted & (cut == 0)
        wanted &= ~empty | (np.cumsum(empty, axis=1) <= room[:, None])
        spans, number = squeezed(cut, wanted, 0)
        if spans.shape[1] == 0:
            spans = np.zeros((len(spans), 1), dtype=np.int64)
        return spans, number

    def _rotated(self, ids: Ids, lengths: Ids, draws: Ids) -> Ids:
        """The rows that luck chooses, beginning at one of their own tokens."""
        import numpy as np

        inner = self._inner(ids, lengths)
        begin, count = inner.argmax(axis=1), np.maximum(inner.sum(axis=1), 1)
        chosen = uniforms(self.seed, ROTATED, draws, 1)[:, 0] < self.objective.rotate
        first = np.where(chosen, (uniforms(self.seed, FIRST, draws, 1)[:, 0] * count).astype(np.int64), 0)
        places = np.arange(ids.shape[1])[None, :]
        turned = begin[:, None] + (places - begin[:, None] + first[:, None]) % count[:, None]
        return np.take_along_axis(ids, np.where(inner, turned, places), axis=1)


def poisson(rate: float, luck: Luck) -> Ids:
    """Numbers of a Poisson distribution for uniform `luck`, by inversion of its distribution function."""
    import numpy as np

    most = math.ceil(rate + 12 * math.sqrt(rate) + 12)
    logs = [count * math.log(rate) - rate - math.lgamma(count + 1) for count in range(most)]
    return np.searchsorted(np.cumsum(np.exp(logs)), luck, side="right").astype(np.int64)


def _plain(token: str | None) -> str:
    """A token without the signs of white space and of the middle of a word."""
    text = (token or "").lstrip("".join(SPACES))
    return text.removeprefix("##") if len(text) > 2 else text

"""Span corruption: each hidden span becomes one sentinel, and the decoder writes the spans behind their sentinels.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (T5), sections
3.1.4 and 3.3.4, arxiv.org/abs/1910.10683: 15 % of the tokens, in spans of 3 on average. The sentinels are
`<extra_id_0>`, `<extra_id_1>`, … in both streams, as in the authors' code (`random_spans_noise_mask` and
`noise_span_to_unique_sentinel`, github.com/google-research/text-to-text-transfer-transformer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.costs import Example
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.data.randomness import uniforms
from pipelines.models.checkpoint import start_token
from pipelines.objectives.attention_masks import decoder_sees_ahead
from pipelines.objectives.batches import (
    Flags,
    Ids,
    Luck,
    draws_of,
    end_token,
    ended,
    padded,
    padding_token,
    squeezed,
    taught,
    within,
)
from pipelines.objectives.objective import Collate, Objective

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


class SpanCorruption(Objective):
    """Write the spans that were cut out of the text."""

    name: Literal["span_corruption"] = "span_corruption"
    layout: ClassVar[Literal["blocks", "stream", "sentences"]] = "stream"
    marks_spans: ClassVar[bool] = True
    probability: float = Field(0.15, gt=0, le=0.5)
    """The share of the tokens that is hidden."""
    mean_span_length: float = Field(3.0, ge=1)
    """Tokens of a hidden span, on average."""
    sentinels: int = Field(100, ge=1, le=1000)
    """Sentinel tokens that a tokenizer trained for this objective gets: as many as an example may have hidden spans."""

    @property
    def head(self) -> Head:
        """The head that writes the spans."""
        return Head("seq2seq_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        return decoder_sees_ahead(architecture)

    def too_long(self, block_size: int) -> str | None:
        _, spans = self.hidden(self.raw_length(block_size))
        if spans <= self.sentinels:
            return None
        return (
            f"hides {spans} spans in such a block, and sentinels is {self.sentinels}; lower block_size, "
            "raise mean_span_length, or raise sentinels"
        )

    def special_tokens(self) -> tuple[str, ...]:
        return tuple(f"<extra_id_{number}>" for number in range(self.sentinels))

    def example(self, block_size: int) -> Example:
        length, target = self.lengths(self.raw_length(block_size))
        return Example(length, target, target)

    def lengths(self, raw: int) -> tuple[int, int]:
        """Tokens of the input and of the target, ends included, that `raw` tokens of text become."""
        hidden, spans = self.hidden(raw)
        return raw - hidden + spans + 1, hidden + spans + 1

    def hidden(self, raw: int) -> tuple[int, int]:
        """How many of `raw` tokens are hidden, and in how many spans: at least one of each, and not all tokens."""
        hidden = max(0, min(max(round(raw * self.probability), 1), raw - 1))
        spans = min(max(round(hidden / self.mean_span_length), 1), hidden, raw - hidden)
        return hidden, spans

    def raw_length(self, block_size: int) -> int:
        """As many tokens as make an input of exactly `block_size`, or just below where none does."""
        raw = block_size - 1
        while self.lengths(raw + 1)[0] <= block_size:
            raw += 1
        return raw

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:

        return SpanMasking.of(self, tokenizer, seed, config)


HIDDEN_CUTS, KEPT_CUTS = 16, 17
"""Streams of random numbers: where the hidden tokens are cut into spans, and where those between are."""


def segment_lengths(items: Ids, segments: Ids, luck: Luck) -> Ids:
    """`items` (batch,) cut at random into `segments` (batch,) that are not empty, every cut equally likely.

    `luck` (batch, longest) decides: the cuts lie at the lowest numbers of the row. Returns (batch, most segments).
    """
    import numpy as np

    places = np.where(within(items - 1, luck.shape[1]), luck, np.inf)
    rank = np.argsort(np.argsort(places, axis=1, kind="stable"), axis=1, kind="stable")
    cuts = rank < (segments - 1)[:, None]  # behind item t a new segment begins
    begins = np.concatenate([np.ones((len(items), 1), dtype=bool), cuts[:, :-1]], axis=1)
    number = np.cumsum(begins, axis=1) - 1  # of the segment that each item lies in
    real = within(items, luck.shape[1])
    most = int(segments.max(initial=1))
    flat = (np.arange(len(items))[:, None] * most + number)[real]
    return np.bincount(flat, minlength=len(items) * most).reshape(len(items), most).astype(np.int64)


def hidden_tokens(lengths: Ids, hidden: Ids, spans: Ids, seed: int, draws: Ids) -> Flags:
    """Which tokens are hidden, (batch, longest): kept and hidden spans in turn, a kept one first, all of random length.

    T5's `random_spans_noise_mask`: both kinds are cut into equally many spans.
    """
    import numpy as np

    longest = int(lengths.max(initial=0))
    cut = segment_lengths(hidden, spans, uniforms(seed, HIDDEN_CUTS, draws, longest))
    between = segment_lengths(lengths - hidden, spans, uniforms(seed, KEPT_CUTS, draws, longest))
    turns = np.stack([between, cut], axis=2).reshape(len(lengths), -1)  # (batch, 2 × most spans)
    ends = np.cumsum(turns, axis=1)
    row, turn = np.nonzero(turns)
    at = ends[row, turn]
    inside = at < longest
    steps = np.zeros((len(lengths), longest), dtype=np.int64)
    steps[row[inside], at[inside]] = 1  # where one span ends, the next begins
    hides: Flags = (np.cumsum(steps, axis=1) % 2 == 1) & within(lengths, longest)
    return hides


@dataclass(frozen=True)
class SpanMasking:
    """The collator of SpanCorruption."""

    objective: SpanCorruption
    seed: int
    sentinels: Ids
    """Ids of `<extra_id_0>`, `<extra_id_1>`, …"""
    end: int
    start: int
    padding: int

    @classmethod
    def of(
        cls, objective: SpanCorruption, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig
    ) -> SpanMasking:
        """The collator for a tokenizer and a model's config. Raises ModelError when the tokenizer has no sentinels."""
        import numpy as np

        vocabulary = tokenizer.get_vocab()
        sentinels = [vocabulary[token] for token in objective.special_tokens() if token in vocabulary]
        if not sentinels:
            raise ModelError(
                "the tokenizer has no sentinel tokens <extra_id_0>, <extra_id_1>, …, which the objective "
                "span_corruption needs; train one (tokenizer: {train: unigram}) or take that of a T5 model"
            )
        return cls(
            objective,
            seed,
            np.asarray(sentinels, dtype=np.int64),
            end=end_token(tokenizer, objective.name),
            start=start_token(config, tokenizer),
            padding=padding_token(tokenizer),
        )

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids` with sentinels for spans, and the spans as `labels`; both end with the end token."""
        ids, lengths = padded([example["input_ids"] for example in examples], self.padding)
        draws = draws_of(examples)
        source, target = self.corrupt(ids, lengths, draws)
        return taught(source, target, self.start)

    def corrupt(self, ids: Ids, lengths: Ids, draws: Ids) -> tuple[tuple[Ids, Ids], tuple[Ids, Ids]]:
        """What is left of the text and what was cut out, each as rows and their lengths."""
        import numpy as np

        counts = {int(length): self.objective.hidden(int(length)) for length in np.unique(lengths)}
        hidden, spans = np.asarray([counts[int(length)] for length in lengths], dtype=np.int64).T
        if spans.max() > len(self.sentinels):
            raise ModelError(
                f"{lengths.max()} tokens have {spans.max()} hidden spans, but the tokenizer has {len(self.sentinels)} "
                "sentinels; lower block_size, raise mean_span_length, or raise sentinels and train a tokenizer"
            )
        real = within(lengths, ids.shape[1])
        cut = hidden_tokens(lengths, hidden, spans, self.seed, draws)
        return self._one_stream(ids, cut, real, spans > 0), self._one_stream(ids, ~cut & real, real, spans > 0)

    def _one_stream(self, ids: Ids, cut: Flags, real: Flags, hides: Flags) -> tuple[Ids, Ids]:
        """The rows with a sentinel in place of every run of `cut` tokens, where anything is hidden, and the end
        token."""
        import numpy as np

        before = np.concatenate([np.zeros((len(ids), 1), dtype=bool), cut[:, :-1]], axis=1)
        first = cut & ~before & hides[:, None]
        number = np.cumsum(first, axis=1) - 1
        marked = np.where(first, self.sentinels[np.clip(number, 0, len(self.sentinels) - 1)], ids)
        rows, lengths = squeezed(marked, real & (~cut | first), self.padding)
        return ended(rows, lengths, self.end, self.padding)

"""Span corruption: each hidden span becomes one sentinel, and the decoder writes the spans behind their sentinels.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (T5), sections
3.1.4 and 3.3.4, arxiv.org/abs/1910.10683: 15 % of the tokens, in spans of 3 on average. The sentinels are
`<extra_id_0>`, `<extra_id_1>`, … in both streams, as in the authors' code (`random_spans_noise_mask` and
`noise_span_to_unique_sentinel`, github.com/google-research/text-to-text-transfer-transformer).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from pipelines.objectives import teacher_forcing
from pipelines.objectives.objective import Collate, Objective
from pipelines.protocols import Head


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
        return teacher_forcing.misfit(architecture)

    def too_long(self, block_size: int) -> str | None:
        _, spans = self.hidden(self.raw_length(block_size))
        if spans <= self.sentinels:
            return None
        return f"hides {spans} spans in such a block, and sentinels is {self.sentinels}; lower block_size, raise mean_span_length, or raise sentinels"

    def special_tokens(self) -> tuple[str, ...]:
        return tuple(f"<extra_id_{number}>" for number in range(self.sentinels))

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

    def collate(self, tokenizer: Any, seed: int, config: Any = None) -> Collate:
        from pipelines.objectives.spans import SpanMasking

        return SpanMasking.of(self, tokenizer, seed, config)

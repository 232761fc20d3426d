"""Permutation language modelling: name tokens in a random order, each from those before it in that order.

Yang et al. 2019, "XLNet", sections 2.2 and 2.3, arxiv.org/abs/1906.08237. Two streams: the content of a token sees the
token itself, the query that must name it sees its position only. Only the last 1/K of the order is asked (partial
prediction); the tokens before it see each other, as in the reference implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.interfaces import IGNORED, Head
from pipelines.data.randomness import uniforms
from pipelines.objectives.batches import (
    Flags,
    Ids,
    Luck,
    draws_of,
    padded_and_real,
    padding_token,
    special_ids,
    tensors,
)
from pipelines.objectives.objective import Collate, Objective

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


class PermutationLM(Objective):
    """Name tokens in a random order."""

    name: Literal["permutation_lm"] = "permutation_lm"
    k: int = Field(6, ge=1, le=1000)
    """One in k tokens is asked: the last of the order. The paper has 6."""
    max_span_length: int = Field(1, ge=1, le=100)
    """1 asks single tokens; above that, runs of 1 to so many neighbours (the paper's larger model: 5, section 3.1)."""

    layout: ClassVar[Literal["blocks", "stream", "sentences"]] = "stream"
    text_scores: ClassVar[tuple[str, ...]] = ("bits_per_byte", "perplexity")
    unaskable: ClassVar[str] = "reads a text in any order, which no prompt's likelihood follows from"

    @property
    def head(self) -> Head:
        """The head that names tokens."""
        return Head("causal_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        """Only XLNet has two streams of attention."""
        model_type = architecture.get("model_type", "finery")
        if model_type == "xlnet":
            return None
        return f"needs attention in two streams, which {model_type} has not; use model_type: xlnet"

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:
        """A function from examples to a batch in which each example has an order of its own. Raises ModelError."""

        return Permutation.of(self, tokenizer, seed)


ORDER, SPAN_LENGTH, SPAN_START = 0, 1, 2
"""Streams of random numbers."""


@dataclass(frozen=True)
class Permutation:
    """The collator of PermutationLM."""

    objective: PermutationLM
    seed: int
    pad_id: int
    special: Flags
    """For each id, whether it is never asked."""

    @classmethod
    def of(cls, objective: PermutationLM, tokenizer: PreTrainedTokenizerBase, seed: int) -> Permutation:
        """The collator for a tokenizer. Raises ModelError when it has no padding token."""
        return cls(objective, seed, padding_token(tokenizer), special_ids(tokenizer))

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` (batch, length), `perm_mask` (batch, query, key) with 1 where a key is not
        seen, `target_mapping` (batch, asked, length) and `labels` (batch, asked), -100 where a row asks for fewer."""
        import numpy as np

        ids, real = padded_and_real([example["input_ids"] for example in examples], self.pad_id)
        draws = draws_of(examples)
        order = uniforms(self.seed, ORDER, draws, ids.shape[1])  # a token's place in the order: the higher, the later
        predicted = self.predicted(order, draws, real & ~self.special[ids])
        place, there = _places(predicted)
        mapping = (np.arange(ids.shape[1])[None, None, :] == place[:, :, None]) & there[:, :, None]
        labels = np.where(there, np.take_along_axis(ids, place, axis=1), IGNORED)
        return tensors(
            input_ids=ids,
            attention_mask=real.astype(np.int64),
            perm_mask=hidden(order, predicted),
            target_mapping=mapping.astype(np.float32),
            labels=labels,
        )

    def predicted(self, order: Luck, draws: Ids, candidates: Flags) -> Flags:
        """Which tokens are named (batch, length): one in k of the candidates, at least one."""
        import numpy as np

        late = np.where(candidates, order, -1.0)
        rank = np.argsort(np.argsort(-late, axis=1, kind="stable"), axis=1, kind="stable")
        chosen: Flags
        if self.objective.max_span_length == 1:
            chosen = candidates & (rank < np.maximum(candidates.sum(1) // self.objective.k, 1)[:, None])
        else:
            chosen = candidates & self.spans(draws, order.shape[1])
            chosen |= candidates & (rank == 0) & ~chosen.any(1, keepdims=True)
        return chosen

    def spans(self, draws: Ids, length: int) -> Flags:
        """Runs of n neighbours, each within a context of its own of k x n tokens, n drawn evenly (batch, length)."""
        import numpy as np

        k, most = self.objective.k, self.objective.max_span_length
        contexts = -(-length // k)
        sizes = 1 + (uniforms(self.seed, SPAN_LENGTH, draws, contexts) * most).astype(np.int64)
        free = (uniforms(self.seed, SPAN_START, draws, contexts) * ((k - 1) * sizes + 1)).astype(np.int64)
        starts = np.cumsum(k * sizes, axis=1) - k * sizes + free
        marks = np.zeros((len(draws), length + most + 1), dtype=np.int64)
        rows = np.arange(len(draws))[:, None]
        np.add.at(marks, (rows, np.minimum(starts, length)), 1)
        np.add.at(marks, (rows, np.minimum(starts + sizes, length)), -1)
        return np.asarray(np.cumsum(marks, axis=1)[:, :length] > 0)


def hidden(order: Luck, predicted: Flags) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """1 where a key is not seen (batch, query, key): asked keys, by all that are not asked or do not come later."""
    import numpy as np

    later = predicted[:, :, None] & (order[:, :, None] > order[:, None, :])
    return (predicted[:, None, :] & ~later).astype(np.float32)


def _places(predicted: Flags) -> tuple[Ids, Flags]:
    """(the asked positions of each row in their order, and whether there is one, both (batch, most asked))."""
    import numpy as np

    counts = predicted.sum(1)
    place = np.argsort(~predicted, axis=1, kind="stable")[:, : max(int(counts.max()), 1)]
    return place, np.arange(place.shape[1])[None, :] < counts[:, None]

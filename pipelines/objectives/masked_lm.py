"""Masked language modelling: hide some tokens, and learn to name them from what stands around.

Devlin et al. 2019, "BERT", section 3.1, arxiv.org/abs/1810.04805: 15 % of the tokens are chosen; of these 80 % become
[MASK], 10 % a random token, 10 % stay, so that the model cannot rely on seeing [MASK]. The choice is made anew in
every epoch (dynamic masking, Liu et al. 2019, section 4.1, arxiv.org/abs/1907.11692), by arithmetic on whole arrays and
by random numbers that belong to each example. Whole-word masking chooses words instead of pieces (the BERT repository's
README, "Whole Word Masking", May 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.core.config import ConfigIssues
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import IGNORED, Head
from pipelines.data.randomness import uniforms
from pipelines.objectives.batches import (
    Flags,
    Ids,
    Luck,
    continues_word,
    draws_of,
    padded_and_real,
    padding_token,
    special_ids,
    tensors,
)
from pipelines.objectives.objective import Collate, Objective

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


class Masked(Objective):
    """Base of the objectives that hide tokens."""

    probability: float = Field(0.15, gt=0, lt=1)
    """The share of the tokens that is asked for."""
    replace_with_mask: float = Field(0.8, ge=0, le=1)
    """The share of these that becomes the mask token."""
    replace_with_random: float = Field(0.1, ge=0, le=1)
    """The share of these that becomes a random token; the rest stays as it is."""
    whole_word: bool = False
    """Whether all pieces of a word are chosen together."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Masked:
        total = self.replace_with_mask + self.replace_with_random
        if total > 1 + 1e-9:
            problem = f"and replace_with_mask add up to {total:g}, must be at most 1"
            raise ConfigIssues([(("replace_with_random",), problem)])
        return self


class MaskedLM(Masked):
    """Name the tokens that were hidden."""

    name: Literal["masked_lm"] = "masked_lm"

    separates: ClassVar[bool] = True
    by_sequences: ClassVar[bool] = True

    @property
    def head(self) -> Head:
        """The head that names tokens."""
        return Head("masked_lm")

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:
        """A function from examples to a masked batch. Raises ModelError when the tokenizer has no mask token."""

        return Masking.of(self, tokenizer, seed)


CHOICE, REPLACEMENT, RANDOM_TOKEN = 0, 1, 2
"""Streams of random numbers: which tokens are chosen, what becomes of them, and the token that takes their place."""


@dataclass(frozen=True)
class Masking:
    """The collator of masked LM: tables of the vocabulary, made once, and the masking of a batch."""

    objective: Masked
    seed: int
    mask_id: int
    pad_id: int
    special: Flags
    """For each id, whether it is never masked."""
    ordinary: Ids
    """Ids of the tokens that may replace another."""
    continues: Flags | None
    """For each id, whether it goes on with a word; None where pieces are masked one by one."""

    @classmethod
    def of(cls, objective: Masked, tokenizer: PreTrainedTokenizerBase, seed: int) -> Masking:
        """The masking for a tokenizer. Raises ModelError when it has no mask or padding token."""
        import numpy as np

        if tokenizer.mask_token_id is None:
            raise ModelError(
                f"the tokenizer has no mask token, which the objective {objective.name} needs; train one (tokenizer: "
                "{train: wordpiece}) or take that of a masked language model"
            )
        special = special_ids(tokenizer)
        return cls(
            objective,
            seed,
            mask_id=tokenizer.mask_token_id,
            pad_id=padding_token(tokenizer),
            special=special,
            ordinary=np.flatnonzero(~special),
            continues=continues_word(tokenizer) if objective.whole_word else None,
        )

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids` with masks in them, `attention_mask`, and `labels`, -100 where nothing is asked."""
        import numpy as np

        original, real = padded_and_real([example["input_ids"] for example in examples], self.pad_id)
        masked, labels = self.mask(original, draws_of(examples))
        return tensors(input_ids=masked, attention_mask=real.astype(np.int64), labels=labels)

    def mask(self, original: Ids, draws: Ids) -> tuple[Ids, Ids]:
        """The ids with masks in them, and the labels, both (batch, length). Padding and special tokens stay."""
        import numpy as np

        length = original.shape[1]
        chosen = self._choose(original, uniforms(self.seed, CHOICE, draws, length))
        fate = uniforms(self.seed, REPLACEMENT, draws, length)
        to_mask = chosen & (fate < self.objective.replace_with_mask)
        to_random = chosen & ~to_mask & (fate < self.objective.replace_with_mask + self.objective.replace_with_random)
        place = (uniforms(self.seed, RANDOM_TOKEN, draws, length) * len(self.ordinary)).astype(np.int64)
        masked = np.where(to_mask, self.mask_id, np.where(to_random, self.ordinary[place], original))
        return masked, np.where(chosen, original, IGNORED)

    def _choose(self, original: Ids, luck: Luck) -> Flags:
        """Which positions are asked for: in every row at least one token, or one word, that is not special."""
        import numpy as np

        candidates = ~self.special[original]
        if self.continues is not None:
            luck = self._luck_of_words(original, luck)
        luck = np.where(candidates, luck, 2.0)
        lowest = luck.min(axis=1, keepdims=True)
        chosen: Flags = candidates & ((luck < self.objective.probability) | (luck == lowest))
        return chosen

    def _luck_of_words(self, original: Ids, luck: Luck) -> Luck:
        """Every piece takes the number of its word's first piece; a cut one, that of the special token before."""
        import numpy as np

        assert self.continues is not None
        positions = np.where(self.continues[original], 0, np.arange(original.shape[1])[None, :])
        return np.take_along_axis(luck, np.maximum.accumulate(positions, axis=1), axis=1)

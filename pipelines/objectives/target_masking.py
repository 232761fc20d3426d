"""Targets with hidden tokens, and the losses of tokens and of lengths: see `pipelines.objectives.mask_predict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipelines.errors import ModelError
from pipelines.objectives.randomness import uniforms
from pipelines.objectives.rows import IGNORED, Flags, Ids, padding_token, stacked, within

HOW_MANY, WHICH = 40, 41
"""Streams of random numbers: how many tokens of a target are hidden, and which."""


@dataclass(frozen=True)
class TargetMasking:
    """The collator of MaskPredict. A target has no special tokens at its ends: its length says where it stops."""

    seed: int
    mask: int
    padding: int
    special: frozenset[int]
    longest: int | None
    """Lengths that the model can predict are below this."""

    @classmethod
    def of(cls, tokenizer: Any, seed: int, config: Any) -> TargetMasking:
        """The collator for a tokenizer and a model's config. Raises ModelError when there is no mask token."""
        if tokenizer.mask_token_id is None:
            raise ModelError(
                "the tokenizer has no mask token, which the objective mask_predict needs; train one (tokenizer: {train: bpe})"
            )
        ends = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
        special = frozenset(end for end in ends if end is not None)
        longest = getattr(config, "max_position_embeddings", None)
        return cls(seed, int(tokenizer.mask_token_id), padding_token(tokenizer), special, longest)

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`decoder_input_ids` with masks, the hidden tokens as `labels`, the target's length as `length_labels`."""
        ids, lengths = stacked([example["input_ids"] for example in examples], self.padding)
        targets, counts = stacked([self._bare(example["labels"]) for example in examples], self.padding)
        draws = np.asarray([example["draw"] for example in examples], dtype=np.int64)
        hidden = self.hidden(counts, targets.shape[1], draws)
        real = within(counts, targets.shape[1])
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(within(lengths, ids.shape[1]).astype(np.int64)),
            "decoder_input_ids": torch.from_numpy(np.where(hidden, self.mask, targets)),
            "decoder_attention_mask": torch.from_numpy(real.astype(np.int64)),
            "labels": torch.from_numpy(np.where(hidden, targets, IGNORED)),
            "length_labels": torch.from_numpy(counts),
        }

    def _bare(self, target: Sequence[int]) -> Sequence[int]:
        """The target without special tokens at its ends."""
        begin, end = 0, len(target)
        if end and target[0] in self.special:
            begin = 1
        if end > begin and target[end - 1] in self.special:
            end -= 1
        bare = target[begin:end]
        return bare if self.longest is None else bare[: self.longest - 1]

    def hidden(self, counts: Ids, longest: int, draws: Ids) -> Flags:
        """Which tokens are hidden: between one and all of each target, every number and every choice equally likely."""
        number = 1 + (uniforms(self.seed, HOW_MANY, draws, 1)[:, 0] * counts).astype(np.int64)
        real = within(counts, longest)
        luck = np.where(real, uniforms(self.seed, WHICH, draws, longest), np.inf)
        rank = np.argsort(np.argsort(luck, axis=1, kind="stable"), axis=1, kind="stable")
        return real & (rank < number[:, None])


def token_and_length_losses(model: nn.Module, batch: dict[str, Tensor], label_smoothing: float) -> tuple[Tensor, Any]:
    """Cross-entropy over the hidden tokens and over the lengths of the targets, as sums (2,)."""
    inputs = dict(batch)
    labels, lengths = inputs.pop("labels"), inputs.pop("length_labels")
    outputs = model(**inputs)
    wanted = labels != IGNORED
    tokens = functional.cross_entropy(
        outputs.logits[wanted].float(), labels[wanted], reduction="sum", label_smoothing=label_smoothing
    )
    length = functional.cross_entropy(
        outputs.length_logits.float(), lengths, reduction="sum", ignore_index=IGNORED
    )
    return torch.stack([tokens, length]), outputs

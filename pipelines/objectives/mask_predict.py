"""Mask-predict: the decoder sees both sides of the target's hidden tokens, and names them all at once.

Ghazvininejad et al. 2019, "Mask-Predict: Parallel Decoding of Conditional Masked Language Models", sections 2 and 3,
arxiv.org/abs/1904.09324. In training the number of hidden tokens is uniform between one and the length of the target
(section 2.2), and the encoder learns to predict that length, whose loss is added (section 2.3). Decoding begins with
all tokens hidden and hides the least certain ones again and again (section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import IGNORED, Head
from pipelines.data.randomness import uniforms
from pipelines.objectives.batches import Flags, Ids, draws_of, padded, padding_token, tensors, within
from pipelines.objectives.objective import Collate, Objective

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput


class MaskPredict(Objective):
    """Name the hidden tokens of the target, and its length."""

    name: Literal["mask_predict"] = "mask_predict"
    pairs: ClassVar[bool] = True
    unaskable: ClassVar[str] = "writes all words at once, which gives no likelihood from left to right"
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """The share of the probability that is asked of all tokens alike, and not of the right one."""
    length_weight: float = Field(1.0, gt=0)
    """The weight of the length's loss beside the tokens'."""

    @property
    def head(self) -> Head:
        """The head that names tokens."""
        return Head("seq2seq_lm")

    @property
    def label_names(self) -> Mapping[str, float]:
        return {"labels": 1.0, "length_labels": self.length_weight}

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        if architecture.get("model_type", "finery") != "finery" or architecture.get("family") != "encoder-decoder":
            return (
                "needs a decoder that looks both ways and an encoder that predicts lengths: those of the finery family "
                "with family: encoder-decoder, bidirectional_decoder: true and length_prediction: true; use them, "
                "or seq2seq"
            )
        wanted = [word for word in ("bidirectional_decoder", "length_prediction") if not architecture.get(word)]
        if wanted:
            words = " and ".join(f"{word}: true" for word in wanted)
            return (
                "needs a decoder that looks both ways and an encoder that predicts lengths; "
                f"add {words} to model.architecture, or use seq2seq"
            )
        return None

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:
        """Examples have `input_ids`, `draw` and, as `labels`, the target's ids."""

        return TargetMasking.of(tokenizer, seed, config)

    def loss(self, model: PreTrainedModel, batch: dict[str, Tensor]) -> tuple[Tensor, ModelOutput]:
        """Cross-entropy over the hidden tokens and over the lengths of the targets, as sums (2,)."""
        import torch
        from torch.nn import functional

        inputs = dict(batch)
        labels, lengths = inputs.pop("labels"), inputs.pop("length_labels")
        outputs = model(**inputs)
        labelled = labels != IGNORED
        tokens = functional.cross_entropy(
            outputs.logits[labelled].float(), labels[labelled], reduction="sum", label_smoothing=self.label_smoothing
        )
        length = functional.cross_entropy(outputs.length_logits.float(), lengths, reduction="sum", ignore_index=IGNORED)
        return torch.stack([tokens, length]), outputs


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
    def of(cls, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig) -> TargetMasking:
        """The collator for a tokenizer and a model's config. Raises ModelError when there is no mask token."""
        if tokenizer.mask_token_id is None:
            raise ModelError(
                "the tokenizer has no mask token, which the objective mask_predict needs; "
                "train one (tokenizer: {train: bpe})"
            )
        ends = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
        special = frozenset(end for end in ends if end is not None)
        longest = getattr(config, "max_position_embeddings", None)
        return cls(seed, int(tokenizer.mask_token_id), padding_token(tokenizer), special, longest)

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`decoder_input_ids` with masks, the hidden tokens as `labels`, the target's length as `length_labels`."""
        import numpy as np

        ids, lengths = padded([example["input_ids"] for example in examples], self.padding)
        targets, counts = padded([self._bare(example["labels"]) for example in examples], self.padding)
        draws = draws_of(examples)
        hidden = self.hidden(counts, targets.shape[1], draws)
        real = within(counts, targets.shape[1])
        return tensors(
            input_ids=ids,
            attention_mask=within(lengths, ids.shape[1]).astype(np.int64),
            decoder_input_ids=np.where(hidden, self.mask, targets),
            decoder_attention_mask=real.astype(np.int64),
            labels=np.where(hidden, targets, IGNORED),
            length_labels=counts,
        )

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
        import numpy as np

        number = 1 + (uniforms(self.seed, HOW_MANY, draws, 1)[:, 0] * counts).astype(np.int64)
        real = within(counts, longest)
        luck = np.where(real, uniforms(self.seed, WHICH, draws, longest), np.inf)
        rank = np.argsort(np.argsort(luck, axis=1, kind="stable"), axis=1, kind="stable")
        return real & (rank < number[:, None])

"""Generator and discriminator as one module, for replaced-token detection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from pipelines.core.interfaces import IGNORED
from pipelines.data.randomness import uniforms
from pipelines.models.log_probabilities import logits_of
from pipelines.objectives.objective import Collate

SAMPLED = 32
"""Stream of random numbers: which token the generator puts in."""
SHARED = ("word_embeddings", "position_embeddings", "token_type_embeddings")


@dataclass(frozen=True)
class Replacing:
    """The collator: a masked batch, a random number for each token, and which tokens are judged."""

    masking: Collate
    seed: int

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """A masked batch with `luck` (batch, length), and `replaced`: 0 for every token, -100 for padding.

        Whether a token was replaced is only known once the generator has said something: the loss fills it in.
        """
        batch = self.masking(examples)
        draws = np.asarray([example["draw"] for example in examples], dtype=np.int64)
        luck = uniforms(self.seed, SAMPLED, draws, batch["input_ids"].shape[1])
        batch["luck"] = torch.from_numpy(luck.astype(np.float32))
        batch["replaced"] = torch.where(batch["attention_mask"].bool(), 0, IGNORED)
        return batch


class GeneratorAndDiscriminator(PreTrainedModel):  # type: ignore[misc]
    """A masked language model whose fillings a second model, with the same embeddings, judges token by token."""

    base_model_prefix = "discriminator"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True  # as the two do

    def __init__(self, discriminator: PreTrainedModel, generator: PreTrainedModel) -> None:
        super().__init__(discriminator.config)
        self.discriminator = discriminator
        self.generator = generator
        share_embeddings(generator, discriminator)
        names: dict[int, str] = {}
        self._tied_weights_keys = {}
        for name, weight in self.named_parameters(remove_duplicate=False):
            first = names.setdefault(id(weight), name)
            if first != name:
                self._tied_weights_keys[name] = first
        self._keys_to_ignore_on_save = list(self._tied_weights_keys)
        self.post_init()

    def init_weights(self) -> None:
        """Nothing: both come with their weights."""

    def tie_weights(self, *arguments: object, **keywords: object) -> None:
        """Nothing: what is shared is one module, or tied by the generator itself."""

    def get_input_embeddings(self) -> nn.Module:
        """The shared word embeddings."""
        embeddings: nn.Module = self.discriminator.get_input_embeddings()
        return embeddings

    def forward(
        self, input_ids: Tensor, masked: Tensor, original: Tensor, luck: Tensor, **others: Tensor
    ) -> ModelOutput:
        """Fill in the `masked` tokens of `input_ids`, then judge every token, all (batch, length).

        Returns: `generated` logits (masked, vocab), `logits` (batch, length, 2), the judged `input_ids` and `replaced`,
        which of them are not the original's. A token that the generator guessed is an original one.
        """
        _, generated = logits_of(self.generator, {"input_ids": input_ids, **others}, masked, cut=False)
        filled = original.clone()
        filled[masked] = sampled(generated.detach(), luck[masked])
        judged = self.discriminator(input_ids=filled, **others)
        return ModelOutput(
            generated=generated, logits=judged.logits, input_ids=filled, replaced=(filled != original).long()
        )


def sampled(logits: Tensor, luck: Tensor) -> Tensor:
    """One token of each distribution, by inversion of its distribution function. (masked, vocab), (masked,) ->
    (masked,)."""
    sums = (
        logits.double().softmax(-1).cumsum(-1) if logits.device.type != "mps" else logits.float().softmax(-1).cumsum(-1)
    )
    place = torch.searchsorted(sums, (luck.to(sums.dtype) * sums[:, -1])[:, None], right=True).squeeze(1)
    return place.clamp(max=logits.shape[-1] - 1)


def share_embeddings(generator: PreTrainedModel, discriminator: PreTrainedModel) -> None:
    """Let the generator use the discriminator's embeddings; an output matrix that is tied to them follows."""
    own, theirs = generator.base_model.embeddings, discriminator.base_model.embeddings
    for name in SHARED:
        module = getattr(theirs, name, None)
        if isinstance(module, nn.Module) and isinstance(getattr(own, name, None), nn.Module):
            setattr(own, name, module)
    generator.tie_weights()


def both_losses(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, ModelOutput]:
    """Cross-entropy of the generator over the masked tokens and of the discriminator over all, as sums (2,)."""
    inputs = dict(batch)
    labels, judged = inputs.pop("labels"), inputs.pop("replaced")
    masked = labels != IGNORED
    inputs["original"] = torch.where(masked, labels, inputs["input_ids"])
    outputs = model(masked=masked, **inputs)
    generator = functional.cross_entropy(outputs["generated"].float(), labels[masked], reduction="sum")
    truth = torch.where(judged == IGNORED, IGNORED, outputs["replaced"])
    logits = outputs["logits"].float().flatten(0, 1)
    discriminator = functional.cross_entropy(logits, truth.flatten(), ignore_index=IGNORED, reduction="sum")
    return torch.stack([generator, discriminator]), outputs

"""What the recurrent and the convolutional family share: states between tokens, generation, and the loss of words.

A decoder of these families remembers a few vectors a sequence, whatever the number of tokens it has written, and not a
key and a value for each of them: one more token costs the same at every place.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig

IGNORED = -100
"""The label of a position that has none."""


class FinerySequenceStates:
    """What a decoder has kept of the tokens before: tensors by name, the batch first.

    It stands where transformers' models have a `Cache`, and offers what `generate` asks of one.
    """

    is_compileable = False

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.length = 0
        """Tokens that have been read."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that have been read."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search goes on with these of its beams."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these sequences, in this order; one may be named several times."""
        self.tensors = {
            name: tensor.index_select(0, indices.to(tensor.device)) for name, tensor in self.tensors.items()
        }

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence so many times, one copy beside the other."""
        self.tensors = {name: tensor.repeat_interleave(repeats, dim=0) for name, tensor in self.tensors.items()}


class FinerySequenceGenerationMixin(GenerationMixin):
    """Greedy, beam and sampled continuations, one token at a time."""

    _is_stateful = True  # the states of tokens that were read cannot be taken back: no assisted decoding

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """The first pass makes the states; keys and values have no place here."""
        return False

    def _prepare_to_generate(self) -> None:
        """Let `generate` start a decoder from the token that training starts it from."""
        if self.config.is_encoder_decoder and self.generation_config.decoder_start_token_id is None:
            self.generation_config.decoder_start_token_id = start_token(self.config)


def start_token(config: PreTrainedConfig) -> int | None:
    """The token that a decoder starts from, if the config has one."""
    for token in (config.decoder_start_token_id, config.bos_token_id, config.pad_token_id):
        if token is not None:
            return int(token)
    return None


def shifted_right(labels: Tensor, config: PreTrainedConfig) -> Tensor:
    """Labels (batch, query) as inputs: the start token, then all but the last, padding where a label is ignored.

    Raises ValueError where the config has no token to start from.
    """
    start = start_token(config)
    if start is None:
        raise ValueError("decoder_start_token_id is null, so the decoder has no first token: set it in the config")
    shifted = labels.new_full(labels.shape, start)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == IGNORED, start if config.pad_token_id is None else config.pad_token_id)


def cross_entropy(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Negative log-likelihood of the labels, in float32. logits (…, classes), labels (…); IGNORED labels cost nothing.

    The sum divided by `num_items_in_batch`, the labels of a whole optimizer step, where `Trainer` counts them; else a
    mean. A batch that asks for nothing costs 0.
    """
    labels = labels.reshape(-1).to(logits.device, torch.long)
    total = nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), labels, ignore_index=IGNORED, reduction="sum"
    )
    if num_items_in_batch is None:
        return total / (labels != IGNORED).sum().clamp(min=1)
    return total / torch.as_tensor(num_items_in_batch, device=total.device)


def shared_embeddings(model: Any) -> dict[str, str]:
    """What ties the word embeddings of an encoder-decoder's two stacks, tied output matrix or not."""
    return {"decoder.embeddings.weight": "encoder.embeddings.weight"} if model.config.is_encoder_decoder else {}


def hidden_outside(weights: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Scores (batch, query, key) with those of padding so low that they weigh nothing. The mask is (batch, key)."""
    if attention_mask is None:
        return weights
    return weights.masked_fill(attention_mask[:, None] == 0, torch.finfo(weights.dtype).min)

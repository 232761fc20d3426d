"""Mask-predict: decode all words at once, then mask those that the model doubts most and predict them again.

Ghazvininejad et al. 2019, "Mask-Predict: Parallel Decoding of Conditional Masked Language Models", section 3,
arxiv.org/abs/1904.09324.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

if TYPE_CHECKING:
    from .modeling_finery_language import FineryForConditionalGeneration


@torch.no_grad()
def mask_predict(
    model: "FineryForConditionalGeneration",
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    mask_token_id: int,
    iterations: int = 10,
    length_beam: int = 5,
    excluded: tuple[int, ...] = (),
) -> Tensor:
    """Output tokens (batch, length) for input tokens (batch, key), padded on the right with the config's padding.

    The `length_beam` most likely lengths are decoded side by side, each from nothing but masks. After iteration t of T
    the ⌊N (T - t) / T⌋ least likely of N tokens are masked and predicted again, the others keep their word and its
    probability (section 3.1). The length whose words have the highest mean log-probability is the answer (section
    3.3). Padding, the mask and `excluded` tokens are never predicted. Raises ValueError for a model without
    `bidirectional_decoder` and `length_prediction`, or for counts below 1.
    """
    config = model.config
    if not (config.bidirectional_decoder and config.length_prediction):
        raise ValueError(
            "mask_predict needs a model that was built and trained with bidirectional_decoder and length_prediction; "
            "use generate for this one"
        )
    if iterations < 1 or length_beam < 1:
        raise ValueError(f"iterations is {iterations} and length_beam {length_beam}: both must be at least 1")
    padding = mask_token_id if config.pad_token_id is None else config.pad_token_id
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    encoded = model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    lengths = likely_lengths(model.length_logits(encoded, attention_mask), length_beam)  # (batch, beam)
    beam = lengths.shape[1]
    lengths = lengths.flatten()  # (batch · beam,)
    encoded = BaseModelOutput(last_hidden_state=encoded.repeat_interleave(beam, dim=0))
    attention_mask = attention_mask.repeat_interleave(beam, dim=0)

    real = torch.arange(int(lengths.max()), device=input_ids.device) < lengths[:, None]  # (batch · beam, length)
    never = sorted({padding, mask_token_id, *excluded})
    masked, words = real, torch.full(real.shape, padding, device=input_ids.device)
    sureness = torch.zeros(real.shape, device=input_ids.device)  # log-probability of each word
    for done in range(iterations):
        logits = model(
            attention_mask=attention_mask,
            encoder_outputs=encoded,
            decoder_input_ids=words.masked_fill(masked, mask_token_id),
            decoder_attention_mask=real.long(),
        ).logits.float()
        logits[..., never] = -torch.inf
        best, word = logits.log_softmax(-1).max(-1)
        words, sureness = torch.where(masked, word, words), torch.where(masked, best, sureness)
        masked = least_sure(sureness, real, lengths * (iterations - done - 1) // iterations)
    chosen = ((sureness * real).sum(-1) / lengths).view(-1, beam).argmax(-1)  # (batch,)
    rows = torch.arange(len(chosen), device=chosen.device) * beam + chosen
    return words[rows, : int(lengths[rows].max())]


def likely_lengths(length_logits: Tensor, beam: int) -> Tensor:
    """The most likely numbers of tokens of at least 1, best first: (batch, lengths) -> (batch, at most beam)."""
    beam = min(beam, length_logits.shape[-1] - 1)
    return length_logits[:, 1:].topk(beam, dim=-1).indices + 1


def least_sure(sureness: Tensor, real: Tensor, counts: Tensor) -> Tensor:
    """True at the `counts` (rows,) places of each row that have the lowest `sureness` (rows, length) and are real."""
    rank = sureness.masked_fill(~real, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)
    return rank < counts[:, None]

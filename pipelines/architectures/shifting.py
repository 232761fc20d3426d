"""What a decoder reads: its output moved one place to the right, behind a first token that begins it."""

from torch import Tensor

from .configuration_finery import FineryConfig
from .losses import IGNORED


def start_token(config: FineryConfig) -> int | None:
    """The token that a decoder starts from: the config's own, else the one that begins a text, else padding."""
    named = (config.decoder_start_token_id, config.bos_token_id, config.pad_token_id)
    return next((token for token in named if token is not None), None)


def shifted_right(labels: Tensor, config: FineryConfig, attention_mask: Tensor | None = None) -> Tensor:
    """Labels (batch, query) as inputs: the start token, then all but the last, padding where a label is ignored.

    With an `attention_mask` (batch, query) the start token stands at the first place that is no padding.
    """
    start = start_token(config)
    if start is None:
        raise ValueError("decoder_start_token_id is null, so the decoder has no first token: set it in the config")
    shifted = labels.new_full(labels.shape, start)
    shifted[:, 1:] = labels[:, :-1]
    if attention_mask is not None:
        shifted = shifted.masked_fill(attention_mask.to(shifted.device).cumsum(-1) == 1, start)
        shifted = shifted.masked_fill(attention_mask.to(shifted.device) == 0, _padding(config, start))
    return shifted.masked_fill(shifted == IGNORED, _padding(config, start))


def _padding(config: FineryConfig, start: int) -> int:
    return start if config.pad_token_id is None else config.pad_token_id

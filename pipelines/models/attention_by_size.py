"""Torch's fused attention for asking a model on a processor, where a batch is large enough for it.

Models are opened with eager attention on a processor (`models/opening.py`): it is the faster one for short texts, and
in training with dropout. It writes the score of every pair of tokens, several times over; once these are more than the
caches hold, the fused kernel, which never holds them all (Dao et al. 2022, "FlashAttention", arxiv.org/abs/2205.14135),
is the faster one (docs/decisions/0049-attention-for-asking-on-a-processor.md). Rounding differs, and what a batch is
asked with depends on its shape alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pipelines.models.layer_compilation import is_compiled
from pipelines.models.read_places import without_wrappers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TEXTS = ("input_ids", "decoder_input_ids", "inputs_embeds")
EAGER, FUSED = "eager", "sdpa"
ENOUGH = {torch.float32: 1 << 20, torch.bfloat16: 6 << 20}
"""Scores of a layer (rows x heads x length²) from which on the fused kernel was faster, or as fast."""


@contextmanager
def attention_by_size(model: nn.Module) -> Iterator[None]:
    """Inside the `with` block large batches are answered with fused attention, and the others as before.

    To be entered under the autocast, if any, that the model is asked under, by one thread at a time. Calls that need a
    gradient or hand out attention's weights stay eager, and so does a model that is compiled, lies elsewhere than on
    the CPU, was opened with another attention or has scores that the fused kernel does not know.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    configs = _configs(model)
    if not configs or dtype not in ENOUGH:
        yield
        return
    heads = max(_heads(config) for config in configs)

    def choose(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        shown = named.get("output_attentions") or any(config.output_attentions for config in configs)
        large = heads * _pairs(given, named) >= ENOUGH[dtype]
        chosen = FUSED if large and not (shown or torch.is_grad_enabled()) else EAGER
        for config in configs:
            if config._attn_implementation != chosen:
                config._attn_implementation = chosen

    bare = without_wrappers(model)
    asked = {id(each): each for each in (model, bare, getattr(bare, "base_model", bare))}
    hooks = [each.register_forward_pre_hook(choose, with_kwargs=True) for each in asked.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for config in configs:
            config._attn_implementation = EAGER


def _configs(model: nn.Module) -> list[PreTrainedConfig]:
    """The configurations that the model's parts look their attention up in; none where it is not to be changed."""
    from transformers import PreTrainedModel

    parts = [each for each in model.modules() if isinstance(each, PreTrainedModel)]
    if not parts or is_compiled(model) or any(is_compiled(each) for each in model.modules()):
        return []
    if any(weight.device.type != "cpu" or name.endswith("sinks") for name, weight in model.named_parameters()):
        return []
    for part in parts:
        ours = type(part).__module__.split(".")[0] in ("transformers", "pipelines")
        can = ours and part._supports_sdpa and part._can_set_attn_implementation()
        if not can or part.config._attn_implementation != EAGER:
            return []
    return list({id(part.config): part.config for part in parts}.values())


def _heads(config: PreTrainedConfig) -> int:
    return int(getattr(config, "num_attention_heads", 1) or 1)


def _pairs(given: tuple[Any, ...], named: dict[str, Any]) -> int:
    """Pairs of places of the texts that a call hands over: rows x length² of the longer side."""
    texts = [each for each in (*given[:1], *map(named.get, TEXTS)) if isinstance(each, Tensor)]
    shapes = [each.shape[:-1] if each.is_floating_point() else each.shape for each in texts if each.ndim >= 2]
    return max((shape.numel() * shape[-1] for shape in shapes), default=0)

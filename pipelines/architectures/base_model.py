"""What every model of the family tells transformers about itself, and how its weights start."""

from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel

from .configuration_finery import FineryConfig
from .initial_weights import initialise
from .masks import refuse_kernel


class FineryPreTrainedModel(PreTrainedModel):
    """The base class of stacks and heads."""

    config_class = FineryConfig
    config: FineryConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["FineryEmbeddings", "FineryLayer", "FineryDecoderLayer"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Norms as in the base class; matrices, embeddings and what a checkpoint does not hold as configured."""
        if not initialise(module, self.config):
            super()._init_weights(module)

    def init_parallel_plans(self) -> None:
        """The config's plan is for any stack; what this model does not hold is left out of it."""
        super().init_parallel_plans()
        modules = [name.split(".") for name, _ in self.named_modules()]
        held = {".".join("*" if part.isdigit() else part for part in parts) for parts in modules}
        self._tp_plan = {name: style for name, style in self._tp_plan.items() if name in held}

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        """Called at construction and by `set_attn_implementation`."""
        refuse_kernel(self.config, attn_implementation)
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)

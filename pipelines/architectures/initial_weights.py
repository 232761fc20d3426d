"""What fresh weights start from.

`normal` is BERT's, GPT-2's and Llama's; `truncated_normal` that of BERT's authors (github.com/google-research/bert,
modeling.py, create_initializer). `xavier_uniform` draws matrices as Glorot and Bengio 2010, equation 16, and
embeddings as fairseq does for the Transformer. `fan_in` draws them as T5 (Raffel et al. 2020; mesh_tensorflow,
transformer_layers.py): by the root of the number of inputs, of which an embedding has one.
"""

import torch
from torch import nn
from transformers import initialization as init

from .attention_scoring import FineryScoring
from .configuration_finery import FineryConfig
from .embeddings import FinerySinusoidalPositions
from .position_sinusoidal import sinusoidal_table


def initialise(module: nn.Module, config: FineryConfig) -> bool:
    """Fill a module's own weights, and buffers that a checkpoint does not hold. False if it is of no kind known here."""
    if isinstance(module, nn.Linear):
        _matrix(module, config)
        if module.bias is not None:
            init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        _embedding(module, config)
    elif isinstance(module, FinerySinusoidalPositions):
        init.copy_(module.table, sinusoidal_table(module.num_positions, module.dim))
    elif isinstance(module, FineryScoring):
        _scoring(module)
    else:
        return False
    return True


def _matrix(module: nn.Linear, config: FineryConfig) -> None:
    scale = getattr(module, "initial_scale", 1.0)
    if config.initializer == "normal":
        init.normal_(module.weight, mean=0.0, std=config.initializer_range * scale)
    elif config.initializer == "truncated_normal":
        _truncated(module.weight, config.initializer_range * scale)
    elif config.initializer == "xavier_uniform":
        init.xavier_uniform_(module.weight, gain=scale)
    else:
        init.normal_(module.weight, mean=0.0, std=module.in_features**-0.5 * scale)


def _embedding(module: nn.Embedding, config: FineryConfig) -> None:
    if config.initializer == "truncated_normal":
        _truncated(module.weight, config.initializer_range)
    else:
        spread = {"normal": config.initializer_range, "xavier_uniform": config.hidden_size**-0.5, "fan_in": 1.0}
        init.normal_(module.weight, mean=0.0, std=spread[config.initializer])
    # A slice does not carry the mark of a weight that was loaded and must stay.
    if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
        init.zeros_(module.weight[module.padding_idx])


def _truncated(weight: nn.Parameter, spread: float) -> None:
    init.trunc_normal_(weight, mean=0.0, std=spread, a=-2 * spread, b=2 * spread)


def _scoring(module: FineryScoring) -> None:
    if module.kind == "general":
        unit = torch.eye(module.head_dim, dtype=module.matrix.dtype, device=module.matrix.device)
        init.copy_(module.matrix, (unit * module.head_dim**-0.5).expand_as(module.matrix))
    elif module.kind == "additive":
        init.normal_(module.vector, mean=0.0, std=module.head_dim**-0.5)
    elif module.kind == "cosine":
        init.constant_(module.temperature, module.head_dim**0.5)


def scale_initial_weights(layers: nn.ModuleList, config: FineryConfig) -> None:
    """Mark the matrices of a stack that start smaller than others: read by `initialise`, never saved."""
    for layer in layers:
        attentions = [layer.attention, *([layer.cross_attention] if hasattr(layer, "cross_attention") else [])]
        if config.scale_residual_init:
            for module in (*attentions, layer.feed_forward):
                module.output.initial_scale = (2 * len(layers)) ** -0.5
        if config.initializer == "fan_in" and config.attention_scoring == "dot_product":
            for attention in attentions:  # as if the scores were divided, which they are not
                attention.query.initial_scale = config.head_dim**-0.5

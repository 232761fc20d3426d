"""What a stack is made of: embeddings, feed-forward networks, layers, and the weights that they start from.

The input is the sum of a word, its position and its segment, normalised and dropped out (Devlin et al. 2019, "BERT",
section 3.2 and figure 2, arxiv.org/abs/1810.04805). With sinusoidal positions the word embedding is scaled by the root
of the width (Vaswani et al. 2017, section 3.4, arxiv.org/abs/1706.03762), or the waves would drown it. Rotary, ALiBi
and relative positions add nothing here: they act in attention.

A layer is attention and a feed-forward network (Vaswani et al. 2017, sections 3.1 and 3.3), each inside a residual
connection. Post-norm normalises the sum, norm(x + sublayer(x)), as BERT does. Pre-norm normalises the input,
x + sublayer(norm(x)), which trains without warm-up (Xiong et al. 2020, "On Layer Normalization in the Transformer
Architecture", table 1, arxiv.org/abs/2002.04745). Sandwich normalises input and output, x + norm(sublayer(norm(x)))
(Ding et al. 2021, "CogView", section 2.4, arxiv.org/abs/2105.13290). A gated feed-forward network multiplies its
widened states with act(gate(x)) (Shazeer 2020, "GLU Variants Improve Transformer", section 2,
arxiv.org/abs/2002.05202).

Fresh weights: `normal` is BERT's, GPT-2's and Llama's; `truncated_normal` that of BERT's authors
(github.com/google-research/bert, modeling.py, create_initializer). `xavier_uniform` draws matrices as Glorot and Bengio
2010, equation 16, and embeddings as fairseq does for the Transformer. `fan_in` draws them as T5 (Raffel et al. 2020;
mesh_tensorflow, transformer_layers.py): by the root of the number of inputs, of which an embedding has one; biases of
distances by the root of the width, as transformers' T5 does.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import apply_chunking_to_forward

from .attention import FineryAttention, FineryLinearAttention, FineryScoring, norm
from .configuration_finery import FineryConfig
from .positions import sinusoidal_table

BOUNDED = ("learned", "sinusoidal", "rotary")
"""Positions that max_position_embeddings limits. The others take any length."""


class FinerySinusoidalPositions(nn.Module):
    """Looks up rows of the fixed table. Nothing is learned and nothing is saved."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        self.num_positions = config.max_position_embeddings
        self.dim = config.usual("embedding_size")
        # Loading a checkpoint leaves buffers that it does not hold with arbitrary content; the model's
        # `_init_weights` writes this one again from the same function.
        self.table = nn.Buffer(sinusoidal_table(self.num_positions, self.dim), persistent=False)

    def forward(self, position_ids: Tensor) -> Tensor:
        return self.table[position_ids]


class FineryEmbeddings(nn.Module):
    """Token ids to vectors: (batch, query) -> (batch, query, dim)."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        width, segments = config.usual("embedding_size"), config.usual("type_vocab_size")
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=row_of_padding(config))
        self.token_type_embeddings = nn.Embedding(segments, width) if segments else None
        self.position_embeddings = None
        if config.position == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        elif config.position == "sinusoidal":
            self.position_embeddings = FinerySinusoidalPositions(config)
        self.word_scale = config.hidden_size**0.5 if config.usual("scale_embedding") else 1.0
        self.norm = norm(config, width) if config.usual("embedding_norm") else None
        self.dropout = nn.Dropout(config.usual("embedding_dropout_prob"))
        self.projection = nn.Linear(width, config.hidden_size) if width != config.hidden_size else None
        self.max_positions = config.max_position_embeddings if config.position in BOUNDED else None

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """`inputs_embeds` replace the look-up of words only: they are scaled and get positions like words.

        A model without segments takes no notice of `token_type_ids`, which tokenizers give unasked.
        """
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = self.positions_after(0, words)
        total = words * self.word_scale if self.word_scale != 1.0 else words
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros_like(position_ids)
            total = total + self.token_type_embeddings(token_type_ids)
        if self.position_embeddings is not None:
            total = total + self.position_embeddings(position_ids).to(words.dtype)
        total = self.dropout(total if self.norm is None else self.norm(total))
        return total if self.projection is None else self.projection(total)

    def positions_after(self, past_length: int | Tensor, sequence: Tensor) -> Tensor:
        """Places of a sequence (batch, query, …) that `past_length` keys precede in each layer: (1, query)."""
        query = sequence.shape[1]
        if isinstance(past_length, int):  # a static cache counts in a tensor, which is not worth waiting for
            self.refuse_beyond(past_length + query)
        return (torch.arange(query, device=sequence.device) + past_length)[None]

    def refuse_beyond(self, end: int) -> None:
        """Raises ValueError if the positions end before a sequence does."""
        if self.max_positions is not None and end > self.max_positions:
            raise ValueError(
                f"the sequence ends at position {end}, but max_position_embeddings is {self.max_positions}: "
                "truncate the input, or build the model with more positions"
            )


def row_of_padding(config: FineryConfig) -> int | None:
    """The word that is never read, so its row stays zero. None if it also begins or ends texts: it is learned then.

    T5's decoder starts from its padding token; GPT-2 has one token for the end of a text and for what comes after.
    """
    read = (config.bos_token_id, config.eos_token_id, start_token(config) if config.is_encoder_decoder else None)
    return None if config.pad_token_id in read else config.pad_token_id


def start_token(config: FineryConfig) -> int | None:
    """The token that a decoder starts from: the config's own, else the one that begins a text, else padding."""
    named = (config.decoder_start_token_id, config.bos_token_id, config.pad_token_id)
    return next((token for token in named if token is not None), None)


class FineryFeedForward(nn.Module):
    """Widen, activate, narrow: (batch, query, dim) -> the same shape."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        dim, wide = config.hidden_size, config.intermediate_size
        self.intermediate = nn.Linear(dim, wide, bias=config.mlp_bias)
        self.gate = nn.Linear(dim, wide, bias=config.mlp_bias) if config.is_gated_act else None
        self.activation = activation(config)
        self.dropout = nn.Dropout(config.activation_dropout_prob)
        self.output = nn.Linear(wide, dim, bias=config.mlp_bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.gate is None:
            widened = self.activation(self.intermediate(hidden_states))
        else:
            widened = self.activation(self.gate(hidden_states)) * self.intermediate(hidden_states)
        return self.output(self.dropout(widened))


AT_ONCE = {
    "gelu_tanh": "gelu_pytorch_tanh",
    "gelu_new": "gelu_pytorch_tanh",
    "gelu_fast": "gelu_pytorch_tanh",
    "gelu_accurate": "gelu_pytorch_tanh",
    "gelu_python_tanh": "gelu_pytorch_tanh",
    "gelu_python": "gelu",
}
"""The names under which torch computes a GELU as one operation. transformers writes them as powers and products, each
of which reads and writes all values once more; rounding differs."""


def activation(config: FineryConfig) -> nn.Module:
    """The function named by `hidden_act`. `gelu_tanh` is GELU's original approximation with tanh."""
    return ACT2FN[AT_ONCE.get(config.hidden_act, config.hidden_act)]


class FineryLayer(GradientCheckpointingLayer):
    """(batch, query, dim) -> the same shape."""

    def __init__(self, config: FineryConfig, layer_idx: int, causal: bool = False) -> None:
        super().__init__()
        self.norm_position = config.norm_position
        self.chunk_size = config.chunk_size_feed_forward
        self.attention = self_attention(config, layer_idx, causal)
        self.attention_norm = norm(config, config.hidden_size)
        self.feed_forward = FineryFeedForward(config)
        self.feed_forward_norm = norm(config, config.hidden_size)
        if config.norm_position == "sandwich":
            self.attention_output_norm = norm(config, config.hidden_size)
            self.feed_forward_output_norm = norm(config, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """What carries a gradient comes first: reentrant checkpointing only follows positional arguments."""
        hidden_states = self._attend(hidden_states, attention_mask, past_key_values, **kwargs)
        return self._transform(hidden_states)

    def _attend(
        self, hidden_states: Tensor, attention_mask: Tensor | None, past_key_values: Cache | None, **kwargs: Any
    ) -> Tensor:
        def attend(states: Tensor) -> Tensor:
            return self.attention(states, attention_mask, past_key_values=past_key_values, **kwargs)[0]

        return self._residual(hidden_states, attend, "attention")

    def _transform(self, hidden_states: Tensor) -> Tensor:
        def transform(states: Tensor) -> Tensor:
            if not self.chunk_size:  # transformers' function looks at signatures in every call
                return self._transform_chunk(states)
            return apply_chunking_to_forward(self._transform_chunk, self.chunk_size, 1, states)

        return self._residual(hidden_states, transform, "feed_forward")

    def _transform_chunk(self, hidden_states: Tensor) -> Tensor:
        return self.feed_forward(hidden_states)

    def _residual(self, hidden_states: Tensor, sublayer: Callable[[Tensor], Tensor], name: str) -> Tensor:
        """The sublayer with its norms and dropout, added to its input."""
        normalise = getattr(self, f"{name}_norm")
        if self.norm_position == "post":
            return normalise(hidden_states + self.dropout(sublayer(hidden_states)))
        changed = sublayer(normalise(hidden_states))
        if self.norm_position == "sandwich":
            changed = getattr(self, f"{name}_output_norm")(changed)
        return hidden_states + self.dropout(changed)


def self_attention(config: FineryConfig, layer_idx: int, causal: bool) -> FineryAttention:
    """The attention that the config's pattern asks for in a layer."""
    if config.usual("attention_pattern") == "linear":
        return FineryLinearAttention(config, layer_idx, causal)
    window = None
    if config.windowed(layer_idx):  # in kernels a window counts the token itself
        window = config.sliding_window if causal else config.sliding_window + 1
    return FineryAttention(config, layer_idx, causal, window)


class FineryDecoderLayer(FineryLayer):
    """(batch, query, dim) and the encoder's (batch, key, dim) -> the shape of the first."""

    def __init__(self, config: FineryConfig, layer_idx: int, causal: bool = True) -> None:
        super().__init__(config, layer_idx, causal)
        self.cross_attention = FineryAttention(config, layer_idx)
        self.cross_attention_norm = norm(config, config.hidden_size)
        if config.norm_position == "sandwich":
            self.cross_attention_output_norm = norm(config, config.hidden_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Without `encoder_hidden_states` the decoder stands alone and has nothing to attend to."""
        hidden_states = self._attend(hidden_states, attention_mask, past_key_values, **kwargs)
        if encoder_hidden_states is not None:
            hidden_states = self._attend_across(
                hidden_states, encoder_hidden_states, encoder_attention_mask, past_key_values
            )
        return self._transform(hidden_states)

    def _attend_across(
        self, hidden_states: Tensor, encoded: Tensor, encoder_attention_mask: Tensor | None, past: Cache | None
    ) -> Tensor:
        def attend(states: Tensor) -> Tensor:
            return self.cross_attention(states, encoder_attention_mask, key_value_states=encoded, past_key_values=past)[
                0
            ]

        return self._residual(hidden_states, attend, "cross_attention")


def initialise(module: nn.Module, config: FineryConfig) -> bool:
    """Fill a module's own weights, and buffers that a checkpoint does not hold. False for an unknown kind."""
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
        init.normal_(module.weight, mean=0.0, std=spread[config.initializer] * getattr(module, "initial_scale", 1.0))
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

"""A stack of layers between embeddings and a last norm: what an encoder, a decoder and a bare model are made of."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from .base_model import FineryPreTrainedModel
from .decoder_layer import FineryDecoderLayer
from .embeddings import FineryEmbeddings
from .initial_weights import scale_initial_weights
from .layer import FineryLayer
from .masks import (
    BIASES,
    distances,
    first_layer,
    padding_of,
    prefix_blocks,
    refuse_kernel,
    self_attention_mask,
    with_bias,
)
from .norms import norm
from .position_alibi import alibi_bias
from .position_relative import relative_bucket
from .position_rotary import rotation_at


class FineryStack(FineryPreTrainedModel):
    """Token ids (batch, query) to hidden states (batch, query, dim)."""

    def _build(self, layers: int, causal: bool, is_decoder: bool, attends_across: bool = False) -> None:
        """The modules. `is_decoder` stacks may keep a cache; `causal` ones hide later tokens."""
        config = self.config
        self.causal = causal
        self.is_decoder = is_decoder
        self.attends_across = attends_across
        self.gradient_checkpointing = False
        self.embeddings = FineryEmbeddings(config)
        layer_class = FineryDecoderLayer if attends_across else FineryLayer
        self.layers = nn.ModuleList([layer_class(config, index, causal) for index in range(layers)])
        scale_initial_weights(self.layers, config)
        relative = config.position == "relative"
        heads = config.num_attention_heads
        self.relative_bias = nn.Embedding(config.relative_attention_num_buckets, heads) if relative else None
        # Unless each sublayer normalises its sum, the last residual sum has not been normalised yet.
        self.final_norm = norm(config, config.hidden_size) if config.norm_position != "post" else None

    def _run(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        prefix_length: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """The story of a pass: embed, say who sees whom and where they stand, run the layers, normalise."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass either input_ids or inputs_embeds, one of the two")
        sequence = input_ids if inputs_embeds is None else inputs_embeds
        past = (
            past_key_values.self_attention_cache
            if isinstance(past_key_values, EncoderDecoderCache)
            else past_key_values
        )
        places = self._places(sequence, attention_mask, past) if position_ids is None else position_ids
        hidden_states = self.embeddings(input_ids, token_type_ids, places, inputs_embeds)
        if self.config.position == "rotary":
            kwargs["rotation"] = self._rotations(places, hidden_states, past)
        masks = self._masks(hidden_states, attention_mask, past, position_ids, prefix_length, kwargs)
        if self.attends_across and encoder_hidden_states is not None:
            kwargs["encoder_hidden_states"] = encoder_hidden_states
            kwargs["encoder_attention_mask"] = create_bidirectional_mask(
                self.config, hidden_states, encoder_attention_mask, encoder_hidden_states=encoder_hidden_states
            )
        if use_cache and past_key_values is None and self.causal and self.is_decoder:
            past_key_values = self._new_cache()
        hidden_states = self._through_the_layers(hidden_states, masks, past_key_values, **kwargs)
        if self.final_norm is not None:
            hidden_states = self.final_norm(hidden_states)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states, past_key_values=past_key_values if self.is_decoder else None
        )

    def _through_the_layers(
        self, hidden_states: Tensor, masks: dict[bool, Any], past_key_values: Cache | None, **kwargs: Any
    ) -> Tensor:
        rotations = kwargs.pop("rotation", None)
        biases = kwargs.pop("position_bias", None)
        across = kwargs.pop("encoder_hidden_states", None)
        positional = () if across is None else (across,)
        for index, layer in enumerate(self.layers):
            windowed = self.config.windowed(index)
            if rotations is not None:
                kwargs["rotation"] = rotations[windowed]
            if biases is not None:
                kwargs["position_bias"] = biases[windowed]
            changed = layer(hidden_states, masks[windowed], *positional, past_key_values=past_key_values, **kwargs)
            hidden_states = self._maybe_skipped(hidden_states, changed)
        return hidden_states

    def _maybe_skipped(self, before: Tensor, after: Tensor) -> Tensor:
        """In training, with the chance `layerdrop`, what went into a layer instead of what came out.

        The layer is computed all the same: a branch would break the graph, and processes that share gradients would
        wait for those of a layer that only some of them ran.
        """
        if not self.training or self.config.layerdrop == 0:
            return after
        return torch.where(torch.rand((), device=after.device) < self.config.layerdrop, before, after)

    def _new_cache(self) -> Cache:
        if self.config.is_encoder_decoder:
            return EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        return DynamicCache(config=self.config)

    def _places(self, sequence: Tensor, attention_mask: Any, past: Cache | None) -> Tensor:
        """Positions that count on from what is kept; in decoders, from the first token that is no padding."""
        places = self.embeddings.positions_after(0 if past is None else past.get_seq_length(), sequence)
        if self.is_decoder and isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
            seen = attention_mask.to(places.device).long().cumsum(-1) - 1
            return seen.clamp(min=0)[:, -places.shape[1] :]
        return places

    def _kinds_of_layers(self) -> set[bool]:
        """Whether there are layers that see a window, and layers that do not."""
        return {self.config.windowed(index) for index in range(len(self.layers))}

    def _rotations(self, places: Tensor, states: Tensor, past: Cache | None) -> dict[bool, Any]:
        """Rotations of the layers' queries and keys: {False: of layers that see everything, True: of windowed ones}."""
        thetas = {False: self.config.rope_theta, True: self.config.usual("local_rope_theta")}
        turns = {kind: rotation_at(places, self.config.head_dim, thetas[kind]) for kind in self._kinds_of_layers()}
        if self.config.usual("attention_pattern") != "linear":
            return turns
        if past is None:
            return {False: (turns[False], turns[False])}
        away = distances(states, past)[0, -1]  # of all keys, from the last query
        return {False: self._rotations_from_the_end(places, away)}

    def _rotations_from_the_end(self, places: Tensor, away: Tensor) -> tuple[Any, Any]:
        """Places of queries and keys that count from what is kept, or for a learned prefix stand still at 0."""
        end = away.shape[0] - 1
        key = away + end
        query = key[-places.shape[-1] :]
        if not self.is_decoder:
            key = torch.where(key < end + 1 - places.shape[-1], 0, key)
        head_dim, theta = self.config.head_dim, self.config.rope_theta
        return rotation_at(query[None], head_dim, theta), rotation_at(key[None], head_dim, theta)

    def _masks(
        self,
        states: Tensor,
        attention_mask: Any,
        past: Cache | None,
        position_ids: Tensor | None,
        prefix_length: Tensor | None,
        kwargs: dict[str, Any],
    ) -> dict[bool, Any]:
        """What hides and weighs keys: {False: of layers that see everything, True: of those that see a window}."""
        config, implementation = self.config, self.config._attn_implementation
        if config.usual("attention_pattern") == "linear":
            if prefix_length is not None:
                raise ValueError("attention_pattern 'linear' has no prefix_length: train it without, or use another")
            return {False: padding_of(attention_mask)}
        refuse_kernel(config, implementation)
        blocks = None
        if prefix_length is not None and self.causal:
            blocks = prefix_blocks(prefix_length, attention_mask, states.shape[1])
        may_skip = config.position not in BIASES and config.attention_scoring != "additive"
        masks = {
            kind: self_attention_mask(
                config,
                states,
                attention_mask,
                past,
                self.causal,
                kind,
                position_ids,
                blocks,
                may_skip or not self.causal,
            )
            for kind in self._kinds_of_layers()
        }
        if config.position not in BIASES:
            return masks
        biases = {kind: self._bias(states, past, kind, position_ids) for kind in masks}
        if implementation == "flex_attention":
            kwargs["position_bias"] = {kind: bias.expand(states.shape[0], -1, -1, -1) for kind, bias in biases.items()}
            return masks
        return {kind: with_bias(mask, biases[kind]) for kind, mask in masks.items()}

    def _bias(self, states: Tensor, past: Cache | None, windowed: bool, position_ids: Tensor | None) -> Tensor:
        """What position adds to each score: (batch or 1, heads, query, key), in the states' type."""
        away = distances(states, past, first_layer(self.config, windowed), position_ids)
        if self.relative_bias is None:
            return alibi_bias(self.config.num_attention_heads, away).to(states.dtype)
        bucket = relative_bucket(
            away,
            not self.causal,
            self.config.relative_attention_num_buckets,
            self.config.relative_attention_max_distance,
        )
        return self.relative_bias(bucket).permute(0, 3, 1, 2).to(states.dtype)

"""The bare Finery models (encoder, decoder, and both), and what all heads on them share: their base class and losses.

With post-norm and learned positions the encoder is BERT to the last digit, its pooler included (Devlin et al. 2019,
arxiv.org/abs/1810.04805); with post-norm and rotary positions it is RoFormer (Su et al. 2021). The encoder-decoder with
post-norm and sinusoidal positions is the original Transformer (Vaswani et al. 2017, arxiv.org/abs/1706.03762).

Losses are averages over the whole batch of an optimizer step. When gradients are accumulated, or a batch is spread over
processes, a mean over each part is not the mean over the whole: parts with fewer labels would weigh as much as others.
`Trainer` therefore counts the labels of the whole step and passes `num_items_in_batch`; a part's loss is then its sum
divided by that count. Without it, a mean.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPooling,
    Seq2SeqModelOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import (
    BIASES,
    FineryAttention,
    Mask,
    by_sequences,
    distances,
    first_layer,
    hides_nothing,
    norm,
    padding_of,
    prefix_blocks,
    refuse_kernel,
    self_attention_mask,
    with_bias,
)
from .configuration_finery import FineryConfig
from .layers import (
    FineryDecoderLayer,
    FineryEmbeddings,
    FineryLayer,
    initialise,
    scale_initial_weights,
    start_token,
)
from .positions import Rotation, alibi_bias, relative_bucket, rotation_at


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
        if self.relative_bias is not None and config.initializer == "fan_in":
            self.relative_bias.initial_scale = config.hidden_size**-0.5
        # Unless each sublayer normalises its sum, the last residual sum has not been normalised yet.
        self.final_norm = norm(config, config.hidden_size) if config.norm_position != "post" else None

    def _run(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | Mapping[str, Tensor] | None = None,
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
        self, hidden_states: Tensor, masks: dict[bool, Mask], past_key_values: Cache | None, **kwargs: Any
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

    def _places(
        self, sequence: Tensor, attention_mask: Tensor | Mapping[str, Tensor] | None, past: Cache | None
    ) -> Tensor:
        """Positions that count on from what is kept; in decoders, from the first token that is no padding."""
        places = self.embeddings.positions_after(0 if past is None else past.get_seq_length(), sequence)
        if self.is_decoder and isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
            seen = attention_mask.to(places.device).long().cumsum(-1) - 1
            return seen.clamp(min=0)[:, -places.shape[1] :]
        return places

    def _kinds_of_layers(self) -> set[bool]:
        """Whether there are layers that see a window, and layers that do not."""
        return {self.config.windowed(index) for index in range(len(self.layers))}

    def _rotations(
        self, places: Tensor, states: Tensor, past: Cache | None
    ) -> dict[bool, Rotation | tuple[Rotation, Rotation]]:
        """Rotations of the layers' queries and keys: {False: of layers that see everything, True: of windowed ones}."""
        thetas = {False: self.config.rope_theta, True: self.config.usual("local_rope_theta")}
        turns = {kind: rotation_at(places, self.config.head_dim, thetas[kind]) for kind in self._kinds_of_layers()}
        if self.config.usual("attention_pattern") != "linear":
            return turns
        if past is None:
            return {False: (turns[False], turns[False])}
        away = distances(states, past)[0, -1]  # of all keys, from the last query
        return {False: self._rotations_from_the_end(places, away)}

    def _rotations_from_the_end(self, places: Tensor, away: Tensor) -> tuple[Rotation, Rotation]:
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
        attention_mask: Tensor | Mapping[str, Tensor] | None,
        past: Cache | None,
        position_ids: Tensor | None,
        prefix_length: Tensor | None,
        kwargs: dict[str, Any],
    ) -> dict[bool, Mask]:
        """What hides and weighs keys: {False: of layers that see everything, True: of those that see a window}."""
        config, implementation = self.config, self.config._attn_implementation
        if config.usual("attention_pattern") == "linear":
            if prefix_length is not None:
                raise ValueError("attention_pattern 'linear' has no prefix_length: train it without, or use another")
            return {False: padding_of(attention_mask)}
        refuse_kernel(config, implementation)
        if by_sequences(implementation) and kwargs.get("cu_seq_lens_q") is not None and hides_nothing(attention_mask):
            if prefix_length is not None:
                raise ValueError("prefix_length needs a mask, which cu_seq_lens_q does without: leave one of them out")
            return dict.fromkeys(self._kinds_of_layers(), attention_mask)
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


SELF_ATTENTIONS = OutputRecorder(FineryAttention, index=1, layer_name="attention")
CROSS_ATTENTIONS = OutputRecorder(FineryAttention, index=1, layer_name="cross_attention")


class FineryPooler(nn.Module):
    """A summary of the sequence from its first token: (batch, query, dim) -> (batch, dim). BERT, section 3.1."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.dense(hidden_states[:, 0]).tanh()


class FineryEncoder(FineryStack):
    """The encoder of an encoder-decoder."""

    _can_record_outputs: ClassVar[dict[str, type[nn.Module] | OutputRecorder]] = {
        "hidden_states": FineryLayer,
        "attentions": SELF_ATTENTIONS,
    }

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config)
        self._build(config.num_hidden_layers, causal=False, is_decoder=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word_embeddings = value

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode (batch, query) tokens, each of which sees all others."""
        kwargs.pop("use_cache", None)
        outputs = self._run(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        return BaseModelOutput(last_hidden_state=outputs.last_hidden_state)


class FineryDecoder(FineryStack):
    """The decoder of an encoder-decoder."""

    _can_record_outputs: ClassVar[dict[str, type[nn.Module] | OutputRecorder]] = {
        "hidden_states": FineryLayer,
        "attentions": SELF_ATTENTIONS,
        "cross_attentions": CROSS_ATTENTIONS,
    }

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config)
        causal = not config.bidirectional_decoder
        self._build(config.usual("num_decoder_layers"), causal=causal, is_decoder=True, attends_across=True)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word_embeddings = value

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode (batch, query) tokens, which see the encoder's output (batch, key, dim) where its mask is 1."""
        return self._run(
            input_ids,
            attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            use_cache=use_cache,
            **kwargs,
        )


class FineryModel(FineryStack):
    """Token ids to one vector a token, without a head; an encoder also pools that of the first token, as BERT does."""

    _auto_class = "AutoModel"
    _can_record_outputs: ClassVar[dict[str, type[nn.Module] | OutputRecorder]] = {
        "hidden_states": FineryLayer,
        "attentions": SELF_ATTENTIONS,
    }

    def __init__(self, config: FineryConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.pooler = None
        if config.is_encoder_decoder:
            self._tied_weights_keys = {
                "decoder.embeddings.word_embeddings.weight": "encoder.embeddings.word_embeddings.weight"
            }
            self.encoder = FineryEncoder(config)
            self.decoder = FineryDecoder(config)
        else:
            is_decoder = config.family == "decoder"
            self._build(config.num_hidden_layers, causal=is_decoder, is_decoder=is_decoder)
            self.pooler = FineryPooler(config) if add_pooling_layer and not is_decoder else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        stack = self.encoder if self.config.is_encoder_decoder else self
        return stack.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        for stack in (self.encoder, self.decoder) if self.config.is_encoder_decoder else (self,):
            stack.embeddings.word_embeddings = value

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Encoder and decoder share their word embeddings even if the output matrix is not tied to them."""
        if all_submodels or self._tied_weights_keys is None:
            return super().get_expanded_tied_weights_keys(all_submodels)
        return dict(self._tied_weights_keys)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling | BaseModelOutputWithPast | Seq2SeqModelOutput:
        """Encode or decode (batch, query) tokens; the arguments that begin with `decoder_` are an encoder-decoder's.

        In an encoder, `past_key_values` are keys and values that every token sees besides the sequence (prefix tuning
        supplies them); `attention_mask` then covers them too, first: (batch, past + query). In decoders they are the
        cache. `prefix_length` (batch,) lets the first tokens of a decoder see each other in both directions (Raffel et
        al. 2020, section 3.2.1: prefix LM). Without `decoder_input_ids` the decoder reads the input, shifted right.
        """
        if not self.config.is_encoder_decoder:
            return self._forward_one(
                input_ids=input_ids,
                attention_mask=attention_mask,
                token_type_ids=token_type_ids,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
                past_key_values=past_key_values,
                use_cache=use_cache,
                return_dict=True,
                **kwargs,
            )
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if input_ids is None:
                raise ValueError("without input_ids, pass decoder_input_ids or decoder_inputs_embeds")
            decoder_input_ids = shifted_right(input_ids, self.config, attention_mask)
            decoder_attention_mask = attention_mask if decoder_attention_mask is None else decoder_attention_mask
        outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=decoder_position_ids,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )

    @merge_with_config_defaults
    @capture_outputs
    def _forward_one(
        self, use_cache: bool | None = None, **kwargs: Any
    ) -> BaseModelOutputWithPooling | BaseModelOutputWithPast:
        """The pass of an encoder or a decoder alone."""
        outputs = self._run(use_cache=use_cache, **kwargs)
        if self.is_decoder:
            return BaseModelOutputWithPast(
                last_hidden_state=outputs.last_hidden_state, past_key_values=outputs.past_key_values
            )
        pooled = self.pooler(outputs.last_hidden_state) if self.pooler is not None else None
        return BaseModelOutputWithPooling(last_hidden_state=outputs.last_hidden_state, pooler_output=pooled)


IGNORED = -100
"""The label of a position that has none."""


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


def cross_entropy(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Negative log-likelihood of the labels, in float32. logits (…, classes), labels (…); IGNORED labels cost nothing.

    A batch that asks for nothing costs 0 (a plain mean would be 0/0 and ruin the weights).
    """
    labels = labels.reshape(-1).to(logits.device, torch.long)
    total = nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), labels, ignore_index=IGNORED, reduction="sum"
    )
    return _per_item(total, (labels != IGNORED).sum().clamp(min=1), num_items_in_batch)


def next_word_cross_entropy(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """The same for logits (batch, query, vocab) whose place t predicts the label of place t + 1, as Hub models do."""
    return cross_entropy(logits[:, :-1], labels[:, 1:], num_items_in_batch)


def mean_squared_error(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Squared distance for each target, in float32. Logits and labels hold the same number of targets."""
    difference = logits.reshape(-1).float() - labels.reshape(-1).to(logits.device).float()
    return _per_item(difference.square().sum(), difference.numel(), num_items_in_batch)


def binary_cross_entropy(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Each label decided on its own, in float32. logits and labels (batch, labels)."""
    total = nn.functional.binary_cross_entropy_with_logits(
        logits.float(), labels.to(logits.device).float(), reduction="sum"
    )
    return _per_item(total, labels.numel(), num_items_in_batch)


def _per_item(total: Tensor, items_here: Tensor | int, num_items_in_batch: Tensor | int | None) -> Tensor:
    if num_items_in_batch is None:
        return total / items_here
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / num_items_in_batch


PROBLEM_LOSSES = {
    "regression": mean_squared_error,
    "single_label_classification": cross_entropy,
    "multi_label_classification": binary_cross_entropy,
}


def problem_type_of(labels: Tensor, num_labels: int) -> str:
    """transformers' convention: one output is a regression, whole-number labels name a class, others are a set."""
    if num_labels == 1:
        return "regression"
    whole = not (labels.is_floating_point() or labels.dtype == torch.bool)
    return "single_label_classification" if whole else "multi_label_classification"

"""The bare Finery models: encoder, decoder, and both.

With post-norm and learned positions the encoder is BERT to the last digit (Devlin et al. 2019, arxiv.org/abs/1810.04805),
its pooler included; with post-norm and rotary positions it is RoFormer (Su et al. 2021). The encoder-decoder with
post-norm and sinusoidal positions is the original Transformer (Vaswani et al. 2017, arxiv.org/abs/1706.03762).
"""

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.cache_utils import Cache
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

from .attention import FineryAttention
from .configuration_finery import FineryConfig
from .layer import FineryLayer
from .shifting import shifted_right
from .stack import FineryStack

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

    _can_record_outputs: ClassVar[dict[str, Any]] = {"hidden_states": FineryLayer, "attentions": SELF_ATTENTIONS}

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

    _can_record_outputs: ClassVar[dict[str, Any]] = {
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
    _can_record_outputs: ClassVar[dict[str, Any]] = {"hidden_states": FineryLayer, "attentions": SELF_ATTENTIONS}

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
        encoder_outputs: Any = None,
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

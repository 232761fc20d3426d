"""ConvS2S: an encoder and a decoder of gated convolutions, with attention in each of the decoder's layers.

Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3, arxiv.org/abs/1705.03122. Positions are
learned and added to words (3.1). A layer is a convolution to twice the channels, a gated linear unit and a residual
connection (3.2). Attention adds to a decoder's state the embedding of the word that it has just read, and weighs the
encoder's outputs together with the embeddings of their words (3.3, equations 1 and 2). Each sum of two is multiplied
with √0.5, so that it varies no more than they do, also where the equations leave it out, as the authors' code does
(fairseq, fconv.py). Of section 3.4 the weighted sum's scale, m · √(1/m) for m words of source, and the smaller
gradients of the encoder are kept; weight normalisation is left out.

Padding changes no output: no convolution sees anything but zeros there.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import can_return_tuple

from .configuration_finery_cnn import FineryCnnConfig
from .sequence_states import (
    FinerySequenceGenerationMixin,
    FinerySequenceStates,
    cross_entropy,
    hidden_outside,
    shared_embeddings,
    shifted_right,
)

HALF = 0.5**0.5


@dataclass
class FineryCnnEncoderOutput(BaseModelOutput):
    """`memory` (batch, key, dim): the outputs with the embeddings of their words, which attention sums."""

    memory: Tensor | None = None


class FineryCnnPreTrainedModel(PreTrainedModel):
    """The base class of stacks and heads."""

    config_class = FineryCnnConfig
    config: FineryCnnConfig
    base_model_prefix = "model"
    _no_split_modules: ClassVar[list[str]] = ["FineryCnnLayer"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Section 3.5: variances stay what they are through each layer; what a gate halves begins with four times
        as much."""
        kept = 1 - self.config.hidden_dropout_prob
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.initializer_range)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.Conv1d):
            init.normal_(module.weight, std=(4 * kept / (module.in_channels * module.kernel_size[0])) ** 0.5)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            init.normal_(module.weight, std=(kept / module.in_features) ** 0.5)
            if module.bias is not None:
                init.zeros_(module.bias)


class FineryCnnAttention(nn.Module):
    """What a decoder's state (batch, query, hidden) takes from the encoder's. Section 3.3."""

    def __init__(self, config: FineryCnnConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.hidden_size, config.embedding_size)
        self.output = nn.Linear(config.embedding_size, config.hidden_size)

    def forward(
        self, states: Tensor, target: Tensor, encoded: FineryCnnEncoderOutput, attention_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(the states with what was taken, weights (batch, query, key)); `target` are the embeddings of the words that
        were read."""
        keys, memory = encoded.last_hidden_state, encoded.memory
        summary = (self.query(states) + target) * HALF  # equation 1
        weights = hidden_outside(summary @ keys.transpose(1, 2), attention_mask).softmax(-1)
        if attention_mask is None:
            words = states.new_full((len(states), 1, 1), keys.shape[1])
        else:
            words = attention_mask.sum(-1).clamp(min=1).to(states.dtype)[:, None, None]
        seen = (weights.to(memory.dtype) @ memory) * words.sqrt()  # equation 2; m · √(1/m) = √m
        return (states + self.output(seen)) * HALF, weights


class FineryCnnLayer(nn.Module):
    """A convolution, its gate and what stands around them. Section 3.2."""

    def __init__(self, config: FineryCnnConfig, causal: bool) -> None:
        super().__init__()
        width, kernel = config.hidden_size, config.kernel_size
        self.causal, self.kernel_size = causal, kernel
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.convolution = nn.Conv1d(width, 2 * width, kernel, padding=0 if causal else kernel // 2)
        self.attention = FineryCnnAttention(config) if causal else None

    def gated(self, states: Tensor, mask: Tensor | None, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(the gate's output for (batch, query, hidden), the inputs that the next token's window begins with)."""
        states = self.dropout(states)
        if mask is not None:
            states = states * mask[..., None].to(states.dtype)
        if self.causal:
            if before is None:
                before = states.new_zeros(len(states), self.kernel_size - 1, states.shape[2])
            states = torch.cat([before, states], dim=1)
            before = states[:, states.shape[1] - self.kernel_size + 1 :]
        widened = self.convolution(states.transpose(1, 2)).transpose(1, 2)
        return nn.functional.glu(widened, dim=-1), before


class FineryCnnStack(FineryCnnPreTrainedModel):
    """Embeddings, layers, and a projection in and out of their width."""

    def _build(self, layers: int, causal: bool) -> None:
        config = self.config
        narrow, width = config.embedding_size, config.hidden_size
        self.embeddings = nn.Embedding(config.vocab_size, narrow, config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, narrow)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.widen = nn.Linear(narrow, width)
        self.layers = nn.ModuleList([FineryCnnLayer(config, causal) for _ in range(layers)])
        self.narrow = nn.Linear(width, narrow)

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings = value

    def _embedded(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, mask: Tensor | None, past: int = 0
    ) -> Tensor:
        """Words and their places, which are counted from the first token that is no padding. Raises ValueError for a
        sequence that has more of them than there are positions."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass either input_ids or inputs_embeds, one of the two")
        words = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        length, limit = past + words.shape[1], self.config.max_position_embeddings
        if mask is None or past:
            places = torch.arange(past, length, device=words.device)[None]
        else:
            places = (mask.long().cumsum(-1) - 1).clamp(min=0)
            length = length if length <= limit else int(places.max()) + 1
        if length > limit:
            raise ValueError(
                f"the text is {length} tokens long, but max_position_embeddings is {limit}: shorten it or set "
                "max_new_tokens, or build the model with more positions"
            )
        return self.dropout(words + self.position_embeddings(places))


class FineryCnnEncoder(FineryCnnStack):
    """The encoder."""

    def __init__(self, config: FineryCnnConfig) -> None:
        super().__init__(config)
        self._build(config.num_hidden_layers, causal=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> FineryCnnEncoderOutput:
        """Encode (batch, query) tokens."""
        embedded = self._embedded(input_ids, inputs_embeds, attention_mask)
        states = self.widen(embedded)
        for layer in self.layers:
            gated, _ = layer.gated(states, attention_mask, None)
            states = (states + gated) * HALF
        encoded = scaled_gradient(self.narrow(states), 1 / (2 * self.config.num_decoder_layers))
        return FineryCnnEncoderOutput(last_hidden_state=encoded, memory=(encoded + embedded) * HALF)


def scaled_gradient(states: Tensor, scale: float) -> Tensor:
    """The same numbers, with gradients of so many times the size: each of the decoder's attentions adds two of its own
    (section 3.4)."""
    return states * scale + states.detach() * (1 - scale)


class FineryCnnDecoder(FineryCnnStack):
    """The decoder: no token sees one behind it."""

    def __init__(self, config: FineryCnnConfig) -> None:
        super().__init__(config)
        self._build(config.num_decoder_layers, causal=True)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_outputs: FineryCnnEncoderOutput | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: FinerySequenceStates | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode (batch, query) tokens, which see the encoder's output where its mask is 1."""
        if encoder_outputs is None or getattr(encoder_outputs, "memory", None) is None:
            raise ValueError("the decoder needs what its encoder gave: pass encoder_outputs as they are")
        past = past_key_values.length if past_key_values is not None else 0
        kept = past_key_values.tensors if past_key_values is not None and past else {}
        sequence = input_ids if inputs_embeds is None else inputs_embeds
        mask = None
        if attention_mask is not None and sequence is not None:
            mask = attention_mask[:, -sequence.shape[1] :]
        target = self._embedded(input_ids, inputs_embeds, mask, past)
        states, windows, looked = self.widen(target), {}, []
        for index, layer in enumerate(self.layers):
            name = f"layers.{index}"
            gated, windows[name] = layer.gated(states, mask, kept.get(name))
            seen, weights = layer.attention(gated, target, encoder_outputs, encoder_attention_mask)
            states = (states + seen) * HALF
            looked.append(weights[:, None])
        if use_cache:
            past_key_values = past_key_values or FinerySequenceStates()
            past_key_values.tensors = windows
            past_key_values.length = past + target.shape[1]
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.dropout(self.narrow(states)),
            past_key_values=past_key_values if use_cache else None,
            cross_attentions=tuple(looked) if kwargs.get("output_attentions") else None,
        )


class FineryCnnModel(FineryCnnPreTrainedModel):
    """Token ids to one vector a token of the target, without a head."""

    _auto_class = "AutoModel"

    def __init__(self, config: FineryCnnConfig) -> None:
        super().__init__(config)
        self._tied_weights_keys = shared_embeddings(self)
        self.encoder = FineryCnnEncoder(config)
        self.decoder = FineryCnnDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embeddings = self.decoder.embeddings = value

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Encoder and decoder share their word embeddings even if the output matrix is not tied to them."""
        return super().get_expanded_tied_weights_keys(all_submodels) if all_submodels else shared_embeddings(self)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: FineryCnnEncoderOutput | None = None,
        past_key_values: FinerySequenceStates | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """Encode, and decode (batch, query) tokens. Without `decoder_input_ids` the decoder reads the input, shifted
        right."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, return_dict=True)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if input_ids is None:
                raise ValueError("without input_ids, pass decoder_input_ids or decoder_inputs_embeds")
            decoder_input_ids = shifted_right(input_ids, self.config)
        outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=self.config.use_cache if use_cache is None else use_cache,
            return_dict=True,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            past_key_values=outputs.past_key_values,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
        )


class FineryCnnForConditionalGeneration(FineryCnnPreTrainedModel, FinerySequenceGenerationMixin):
    """Predict one sequence from another, word by word."""

    _auto_class = "AutoModelForSeq2SeqLM"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.encoder.embeddings.weight"}

    def __init__(self, config: FineryCnnConfig) -> None:
        super().__init__(config)
        self.model = FineryCnnModel(config)
        self.lm_head = nn.Linear(config.embedding_size, config.vocab_size, bias=False)
        self._prepare_to_generate()
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads to predict `labels` (batch, query): the same, one place to the right."""
        return shifted_right(labels, self.config)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: FineryCnnEncoderOutput | None = None,
        past_key_values: FinerySequenceStates | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """`labels` (batch, query) are the words to predict, -100 where none is; `logits` (batch, query, vocab) at place
        t are about label t. Without `decoder_input_ids` the decoder reads the labels, shifted right.
        """
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = shifted_right(labels, self.config)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=False if labels is not None and use_cache is None else use_cache,
            return_dict=True,
            **kwargs,
        )
        logits = self.lm_head(outputs.last_hidden_state)
        return Seq2SeqLMOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            past_key_values=outputs.past_key_values,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
        )

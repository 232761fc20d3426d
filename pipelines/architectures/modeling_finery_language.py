"""Heads that predict words: masked ones, the next one, or those of another sequence."""

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .base_model import FineryPreTrainedModel
from .configuration_finery import FineryConfig
from .feed_forward import activation
from .generating import FineryGenerationMixin
from .losses import IGNORED, cross_entropy, next_word_cross_entropy
from .mask_predict import mask_predict
from .modeling_finery import FineryModel
from .norms import norm
from .outputs import FineryCausalLMOutputWithValue, FineryForPreTrainingOutput, FinerySeq2SeqLMOutput
from .shifting import shifted_right


class FineryMaskedLMHead(nn.Module):
    """A vector to a score for each word: (…, dim) -> (…, vocab). BERT's transform, then the (tied) output matrix."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        width = config.usual("embedding_size")
        self.dense = nn.Linear(config.hidden_size, width)
        self.activation = activation(config)
        self.norm = norm(config, width)
        self.scale = logit_scale(config)
        self.decoder = nn.Linear(width, config.vocab_size, bias=config.usual("lm_head_bias"))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.decoder(self.norm(self.activation(self.dense(hidden_states))) * self.scale)


def logit_scale(config: FineryConfig) -> float:
    """What hidden states are multiplied with before the output matrix. Raffel et al.'s code for tied embeddings."""
    return config.hidden_size**-0.5 if config.scale_logits else 1.0


class FineryMaskedLanguageModel(FineryPreTrainedModel):
    """An encoder with a masked-LM head: what FineryForMaskedLM and FineryForPreTraining share."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.decoder.weight": "model.embeddings.word_embeddings.weight"}

    def __init__(self, config: FineryConfig, add_pooling_layer: bool) -> None:
        refuse_family(config, "encoder", type(self).__name__)
        super().__init__(config)
        self.model = FineryModel(config, add_pooling_layer=add_pooling_layer)
        self.lm_head = FineryMaskedLMHead(config)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head.decoder = value

    def _words(self, hidden_states: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits and the labels that belong to them: of all places, or of the masked ones if that is configured."""
        if labels is not None and self.config.sparse_prediction:
            asked = labels != IGNORED  # (batch, query)
            hidden_states, labels = hidden_states[asked], labels[asked]  # (masked, dim), (masked,)
        return self.lm_head(hidden_states), labels


def refuse_family(config: FineryConfig, needed: str, name: str) -> None:
    """Raises ValueError if a head cannot stand on the config's family."""
    if config.family != needed:
        raise ValueError(f"{name} needs family: {needed}, but the config's family is '{config.family}'")


class FineryForMaskedLM(FineryMaskedLanguageModel):
    """Predict the words that were hidden. Devlin et al. 2019, section 3.1, task 1."""

    _auto_class = "AutoModelForMaskedLM"

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """`labels` (batch, query) hold the hidden words, -100 elsewhere; the loss is over the former.

        `logits` are (batch, query, vocab); with `sparse_prediction` and labels only those of the hidden words are
        computed, (masked, vocab), in the order of `labels[labels != -100]`.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            return_dict=True,
            **kwargs,
        )
        logits, labels = self._words(outputs.last_hidden_state, labels)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class FineryForPreTraining(FineryMaskedLanguageModel):
    """Predict the hidden words, and whether one sentence follows the other. Devlin et al. 2019, section 3.1."""

    _auto_class = "AutoModelForPreTraining"

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config, add_pooling_layer=True)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> FineryForPreTrainingOutput:
        """`labels` as for FineryForMaskedLM; `next_sentence_label` (batch,) names one of the two classes.

        The loss is the sum of two means. `num_items_in_batch` counts words; a part of a batch then weighs as much in
        the second mean as its words do in the first.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            return_dict=True,
            **kwargs,
        )
        logits, labels = self._words(outputs.last_hidden_state, labels)
        sentences = self.seq_relationship(outputs.pooler_output)
        losses = []
        if labels is not None:
            losses.append(cross_entropy(logits, labels, num_items_in_batch))
        if next_sentence_label is not None:
            share = 1.0
            if labels is not None and num_items_in_batch is not None:
                share = (labels != IGNORED).sum() / num_items_in_batch
            losses.append(cross_entropy(sentences, next_sentence_label) * share)
        return FineryForPreTrainingOutput(
            loss=sum(losses) if losses else None,
            prediction_logits=logits,
            seq_relationship_logits=sentences,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class FineryForCausalLM(FineryPreTrainedModel, FineryGenerationMixin):
    """Predict the next word. Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training"."""

    _auto_class = "AutoModelForCausalLM"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embeddings.word_embeddings.weight"}
    _tp_plan: ClassVar[dict[str, str]] = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: FineryConfig) -> None:
        refuse_family(config, "decoder", type(self).__name__)
        super().__init__(config)
        self.model = FineryModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.usual("lm_head_bias"))
        self._add_to_head(config)
        self.post_init()

    def _add_to_head(self, config: FineryConfig) -> None:
        """What stands beside the language-model head."""

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        prefix_length: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        shift_labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """`logits` (batch, query, vocab) at place t are about the word at t + 1.

        `labels` (batch, query) are the input's own words, -100 where none is to be predicted: they are shifted here,
        as in transformers' models. `shift_labels` are shifted already and replace them, for a sequence that is spread
        over processes. `prefix_length` (batch,) is how many first tokens see each other in both directions.
        `logits_to_keep` computes the last ones only, or those at given places.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            prefix_length=prefix_length,
            use_cache=False if labels is not None and use_cache is None else use_cache,
            return_dict=True,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        hidden_states = outputs.last_hidden_state[:, kept]
        logits = self.lm_head(hidden_states * logit_scale(self.config) if self.config.scale_logits else hidden_states)
        loss = None
        if shift_labels is not None:
            loss = cross_entropy(logits, shift_labels, num_items_in_batch)
        elif labels is not None:
            loss = next_word_cross_entropy(logits, labels, num_items_in_batch)
        return self._output(
            hidden_states,
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _output(self, last: Tensor, **found: Any) -> CausalLMOutputWithPast:
        return CausalLMOutputWithPast(**found)


class FineryForCausalLMWithValueHead(FineryForCausalLM, FineryGenerationMixin):
    """Predict the next word, and how good the text will turn out: the critic of a policy that shares its body.

    Stiennon et al. 2020, "Learning to summarize from human feedback", section 3.4, arxiv.org/abs/2009.01325.
    """

    _auto_class = "AutoModelForCausalLMWithValueHead"

    def _add_to_head(self, config: FineryConfig) -> None:
        self.value_head = nn.Linear(config.hidden_size, 1)

    def _output(self, last: Tensor, **found: Any) -> FineryCausalLMOutputWithValue:
        value = self.value_head(last).squeeze(-1)
        if found["loss"] is not None:  # nothing, but processes that share gradients wait for one of every weight
            found["loss"] = found["loss"] + 0.0 * value.sum()
        return FineryCausalLMOutputWithValue(**found, value=value)


class FineryForConditionalGeneration(FineryPreTrainedModel, FineryGenerationMixin):
    """Predict one sequence from another, word by word or all at once.

    Vaswani et al. 2017, section 3.1. With `bidirectional_decoder` the decoder fills in masked words, with
    `length_prediction` the encoder says how many there are (Ghazvininejad et al. 2019, arxiv.org/abs/1904.09324).
    """

    _auto_class = "AutoModelForSeq2SeqLM"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.encoder.embeddings.word_embeddings.weight"}
    _tp_plan: ClassVar[dict[str, str]] = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: FineryConfig) -> None:
        refuse_family(config, "encoder-decoder", type(self).__name__)
        super().__init__(config)
        self.model = FineryModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.usual("lm_head_bias"))
        self.length_head = None
        if config.length_prediction:
            self.length_head = nn.Linear(config.hidden_size, config.max_position_embeddings)
        self._prepare_to_generate()
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads to predict `labels` (batch, query): the same, one place to the right."""
        return shifted_right(labels, self.config)

    def length_logits(self, encoded: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """Scores of 0, 1, 2, … tokens from the mean of the encoder's states: (batch, key, dim) -> (batch, lengths)."""
        if self.length_head is None:
            return None
        if attention_mask is None:
            return self.length_head(encoded.mean(1))
        seen = attention_mask[..., None].to(encoded.dtype)
        return self.length_head((encoded * seen).sum(1) / seen.sum(1).clamp(min=1))

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
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> FinerySeq2SeqLMOutput:
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
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            decoder_position_ids=decoder_position_ids,
            use_cache=False if labels is not None and use_cache is None else use_cache,
            return_dict=True,
            **kwargs,
        )
        last = outputs.last_hidden_state
        logits = self.lm_head(last * logit_scale(self.config) if self.config.scale_logits else last)
        return FinerySeq2SeqLMOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
            length_logits=self.length_logits(outputs.encoder_last_hidden_state, attention_mask),
        )

    def mask_predict(self, input_ids: Tensor, **choices: Any) -> Tensor:
        """Decode all words at once and revise them a few times: see `mask_predict.mask_predict`."""
        return mask_predict(self, input_ids, **choices)

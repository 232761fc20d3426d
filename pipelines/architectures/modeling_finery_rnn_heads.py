"""Heads of recurrent models: the next word, one sequence from another, a class for a text."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from .configuration_finery_rnn import FineryRnnConfig
from .modeling_finery_rnn import FineryRnnEncoderOutput, FineryRnnModel, FineryRnnPreTrainedModel
from .sequence_states import (
    IGNORED,
    FinerySequenceGenerationMixin,
    FinerySequenceStates,
    cross_entropy,
    shifted_right,
)


def refuse_stack(config: FineryRnnConfig, allowed: tuple[str, ...], name: str) -> None:
    """Raises ValueError if a head cannot stand on the config's stack."""
    if config.stack not in allowed:
        raise ValueError(f"{name} needs stack: {' or '.join(allowed)}, but the config's stack is '{config.stack}'")


class FineryRnnWordScores(FineryRnnPreTrainedModel, FinerySequenceGenerationMixin):
    """A body, a projection to the embedding's width where that differs, and a score for each word."""

    stacks: ClassVar[tuple[str, ...]]

    def __init__(self, config: FineryRnnConfig) -> None:
        refuse_stack(config, self.stacks, type(self).__name__)
        super().__init__(config)
        self.model = FineryRnnModel(config)
        narrow = config.embedding_size
        same = narrow == config.hidden_size
        self.projection = nn.Identity() if same else nn.Linear(config.hidden_size, narrow, bias=False)
        self.lm_head = nn.Linear(narrow, config.vocab_size, bias=False)
        self._prepare_to_generate()
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value


class FineryRnnForCausalLM(FineryRnnWordScores):
    """Predict the next word. Mikolov et al. 2010, "Recurrent neural network based language model"; with the dropouts of
    Merity et al. 2018, arxiv.org/abs/1708.02182, an AWD-LSTM."""

    _auto_class = "AutoModelForCausalLM"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embeddings.weight"}
    stacks = ("decoder",)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: FinerySequenceStates | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """`logits` (batch, query, vocab) at place t are about the word at t + 1.

        `labels` (batch, query) are the input's own words, -100 where none is to be predicted: they are shifted here,
        as in transformers' models. `logits_to_keep` computes the last ones only, or those at given places.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=False if labels is not None and use_cache is None else use_cache,
            return_dict=True,
        )
        places = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(self.projection(outputs.last_hidden_state[:, places]))
        loss = None
        if labels is not None:
            loss = cross_entropy(logits[:, :-1], labels[:, 1:], num_items_in_batch)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=outputs.past_key_values)


class FineryRnnForPreTraining(FineryRnnPreTrainedModel):
    """Two language models over one text, each from its own end, with one table of words for what both read and say.

    Peters et al. 2018, "Deep contextualized word representations", section 3.1, arxiv.org/abs/1802.05365. Words are
    pieces of a vocabulary here, where ELMo reads their letters.
    """

    _auto_class = "AutoModelForPreTraining"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embeddings.weight"}

    def __init__(self, config: FineryRnnConfig) -> None:
        refuse_stack(config, ("encoder",), type(self).__name__)
        if not config.separate_directions:
            raise ValueError(
                f"{type(self).__name__} needs separate_directions: true, or each direction would see the words that "
                "it must predict"
            )
        super().__init__(config)
        self.model = FineryRnnModel(config)
        width, narrow = config.hidden_size // 2, config.embedding_size
        self.projection = nn.Identity() if width == narrow else nn.Linear(width, narrow, bias=False)
        self.lm_head = nn.Linear(narrow, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """`logits` (batch, 2 · query, vocab): at place t what the words up to t say of the next one, then, at place
        query + t, what the words from t on say of the one before.

        `labels` (batch, query) are the input's own words, -100 where none is to be predicted: they are shifted here.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        both = torch.cat(outputs.last_hidden_state.chunk(2, dim=-1), dim=1)
        logits = self.lm_head(self.projection(both))
        loss = None
        if labels is not None:
            none = torch.full_like(labels[:, :1], IGNORED)
            wanted = torch.cat([labels[:, 1:], none, none, labels[:, :-1]], dim=1)
            loss = cross_entropy(logits, wanted, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


class FineryRnnForConditionalGeneration(FineryRnnWordScores):
    """Predict one sequence from another, word by word. Sutskever et al. 2014, arxiv.org/abs/1409.3215; Bahdanau et al.
    2015, arxiv.org/abs/1409.0473; Luong et al. 2015, arxiv.org/abs/1508.04025."""

    _auto_class = "AutoModelForSeq2SeqLM"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.encoder.embeddings.weight"}
    stacks = ("encoder-decoder",)

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
        encoder_outputs: FineryRnnEncoderOutput | None = None,
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
        logits = self.lm_head(self.projection(outputs.last_hidden_state))
        return Seq2SeqLMOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            past_key_values=outputs.past_key_values,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
        )


class FineryRnnForSequenceClassification(FineryRnnPreTrainedModel):
    """A class, or a number, for each text, from the last state beside the greatest and the mean of all.

    Howard and Ruder 2018, section 3.3 ("Concat pooling"), arxiv.org/abs/1801.06146.
    """

    _auto_class = "AutoModelForSequenceClassification"

    def __init__(self, config: FineryRnnConfig) -> None:
        refuse_stack(config, ("encoder", "decoder"), type(self).__name__)
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = FineryRnnModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(3 * config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """`logits` (batch, labels). The loss follows transformers' convention for `problem_type`."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            return_dict=True,
        )
        logits = self.classifier(self.dropout(pooled(outputs.last_hidden_state, outputs.pooler_output, attention_mask)))
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def pooled(states: Tensor, last: Tensor, attention_mask: Tensor | None) -> Tensor:
    """[last state; greatest; mean] over the real tokens: (batch, query, dim) and (batch, dim) to (batch, 3 · dim)."""
    if attention_mask is None:
        return torch.cat([last, states.amax(1), states.mean(1)], dim=-1)
    real = attention_mask[..., None].bool()
    greatest = states.masked_fill(~real, torch.finfo(states.dtype).min).amax(1)
    mean = states.masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)
    return torch.cat([last, greatest, mean], dim=-1)

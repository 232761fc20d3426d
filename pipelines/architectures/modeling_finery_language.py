"""Heads that predict words, and how they generate: left to right, or all at once by mask-predict.

Mask-predict decodes all words at once, then masks those that the model doubts most and predicts them again
(Ghazvininejad et al. 2019, "Mask-Predict: Parallel Decoding of Conditional Masked Language Models", section 3,
arxiv.org/abs/1904.09324).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, MaskedLMOutput, Seq2SeqLMOutput
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .attention import norm
from .configuration_finery import FineryConfig
from .layers import BOUNDED, activation, start_token
from .modeling_finery import (
    IGNORED,
    FineryModel,
    FineryPreTrainedModel,
    cross_entropy,
    next_word_cross_entropy,
    shifted_right,
)


@dataclass
class FineryForPreTrainingOutput(ModelOutput):
    """BERT's: `prediction_logits` (batch, query, vocab) and `seq_relationship_logits` (batch, 2)."""

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class FineryCausalLMOutputWithValue(CausalLMOutputWithPast):
    """`value` (batch, length) beside the next word: what the rest of the text is expected to be worth."""

    value: Tensor | None = None


@dataclass
class FinerySeq2SeqLMOutput(Seq2SeqLMOutput):
    """`length_logits` (batch, lengths): a score for each number of tokens that the output may have."""

    length_logits: Tensor | None = None


class FineryGenerationMixin(GenerationMixin):
    """Greedy, beam and sampled continuations, one token at a time."""

    config: FineryConfig

    def _prepare_to_generate(self) -> None:
        """Let `generate` start a decoder from the token that training starts it from."""
        if self.config.is_encoder_decoder and self.generation_config.decoder_start_token_id is None:
            self.generation_config.decoder_start_token_id = start_token(self.config)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """transformers' `generate`. Raises ValueError for what this model cannot do."""
        if self.config.bidirectional_decoder:
            raise ValueError(
                "a decoder with bidirectional_decoder sees the words that it would have to generate: use mask_predict"
            )
        chosen = kwargs.get("generation_config") or next(
            (argument for argument in args if isinstance(argument, GenerationConfig)), self.generation_config
        )
        penalty = kwargs.get("penalty_alpha", chosen.penalty_alpha)
        if penalty and kwargs.get("custom_generate") is None:
            raise ValueError(
                f"penalty_alpha is {penalty}, which asks for contrastive search; it is not built in, for transformers "
                "takes it from a repository: use greedy search, num_beams, or do_sample with temperature, "
                "top_k and top_p"
            )
        return super().generate(*args, **kwargs)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """A `prefix_length` is for the pass that reads the prompt: what it wrote to the cache stays as it is.

        `generate` looks into this signature: without `inputs_embeds` in it, it refuses them.
        """
        self._refuse_beyond_positions(input_ids, attention_mask)
        inputs = super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )
        if not is_first_iteration and inputs.get("past_key_values") is not None:
            inputs.pop("prefix_length", None)
        return inputs

    def _refuse_beyond_positions(self, input_ids: Tensor, attention_mask: Tensor | None) -> None:
        limit = self.config.max_position_embeddings
        length = input_ids.shape[-1]
        if self.config.position not in BOUNDED or length <= limit:
            return
        if not self.config.is_encoder_decoder and isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
            length = int(attention_mask.sum(-1).max())
        if length > limit:
            raise ValueError(
                f"the text is {length} tokens long, but max_position_embeddings is {limit}: shorten the prompt or set "
                "max_new_tokens, or build the model with more positions"
            )


@torch.no_grad()
def mask_predict(
    model: "FineryForConditionalGeneration",
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    mask_token_id: int,
    iterations: int = 10,
    length_beam: int = 5,
    excluded: tuple[int, ...] = (),
) -> Tensor:
    """Output tokens (batch, length) for input tokens (batch, key), padded on the right with the config's padding.

    The `length_beam` most likely lengths are decoded side by side, each from nothing but masks. After iteration t of T
    the ⌊N (T - t) / T⌋ least likely of N tokens are masked and predicted again, the others keep their word and its
    probability (section 3.1). The length whose words have the highest mean log-probability is the answer (section
    3.3). Padding, the mask and `excluded` tokens are never predicted. Raises ValueError for a model without
    `bidirectional_decoder` and `length_prediction`, or for counts below 1.
    """
    config = model.config
    if not (config.bidirectional_decoder and config.length_prediction):
        raise ValueError(
            "mask_predict needs a model that was built and trained with bidirectional_decoder and length_prediction; "
            "use generate for this one"
        )
    if iterations < 1 or length_beam < 1:
        raise ValueError(f"iterations is {iterations} and length_beam {length_beam}: both must be at least 1")
    padding = mask_token_id if config.pad_token_id is None else config.pad_token_id
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    encoded = model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    lengths = likely_lengths(model.length_logits(encoded, attention_mask), length_beam)  # (batch, beam)
    beam = lengths.shape[1]
    lengths = lengths.flatten()  # (batch · beam,)
    encoded = BaseModelOutput(last_hidden_state=encoded.repeat_interleave(beam, dim=0))
    attention_mask = attention_mask.repeat_interleave(beam, dim=0)

    real = torch.arange(int(lengths.max()), device=input_ids.device) < lengths[:, None]  # (batch · beam, length)
    never = sorted({padding, mask_token_id, *excluded})
    masked, words = real, torch.full(real.shape, padding, device=input_ids.device)
    sureness = torch.zeros(real.shape, device=input_ids.device)  # log-probability of each word
    for done in range(iterations):
        logits = model(
            attention_mask=attention_mask,
            encoder_outputs=encoded,
            decoder_input_ids=words.masked_fill(masked, mask_token_id),
            decoder_attention_mask=real.long(),
        ).logits.float()
        logits[..., never] = -torch.inf
        best, word = logits.log_softmax(-1).max(-1)
        words, sureness = torch.where(masked, word, words), torch.where(masked, best, sureness)
        masked = least_sure(sureness, real, lengths * (iterations - done - 1) // iterations)
    chosen = ((sureness * real).sum(-1) / lengths).view(-1, beam).argmax(-1)  # (batch,)
    rows = torch.arange(len(chosen), device=chosen.device) * beam + chosen
    return words[rows, : int(lengths[rows].max())]


def likely_lengths(length_logits: Tensor, beam: int) -> Tensor:
    """The most likely numbers of tokens of at least 1, best first: (batch, lengths) -> (batch, at most beam)."""
    beam = min(beam, length_logits.shape[-1] - 1)
    return length_logits[:, 1:].topk(beam, dim=-1).indices + 1


def least_sure(sureness: Tensor, real: Tensor, counts: Tensor) -> Tensor:
    """True at the `counts` (rows,) places of each row that have the lowest `sureness` (rows, length) and are real."""
    rank = sureness.masked_fill(~real, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)
    return rank < counts[:, None]


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
            masked = labels != IGNORED  # (batch, query)
            hidden_states, labels = hidden_states[masked], labels[masked]  # (masked, dim), (masked,)
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
        slice_indices = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        hidden_states = outputs.last_hidden_state[:, slice_indices]
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

    def _output(self, last: Tensor, **parts: Any) -> CausalLMOutputWithPast:
        return CausalLMOutputWithPast(**parts)


class FineryForCausalLMWithValueHead(FineryForCausalLM, FineryGenerationMixin):
    """Predict the next word, and how good the text will turn out: the critic of a policy that shares its body.

    Stiennon et al. 2020, "Learning to summarize from human feedback", section 3.4, arxiv.org/abs/2009.01325.
    """

    _auto_class = "AutoModelForCausalLMWithValueHead"

    def _add_to_head(self, config: FineryConfig) -> None:
        self.value_head = nn.Linear(config.hidden_size, 1)

    def _output(self, last: Tensor, **parts: Any) -> FineryCausalLMOutputWithValue:
        value = self.value_head(last).squeeze(-1)
        if parts["loss"] is not None:  # nothing, but processes that share gradients wait for one of every weight
            parts["loss"] = parts["loss"] + 0.0 * value.sum()
        return FineryCausalLMOutputWithValue(**parts, value=value)


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
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
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
        """Decode all words at once and revise them a few times: see the function `mask_predict`."""
        return mask_predict(self, input_ids, **choices)

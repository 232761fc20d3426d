"""Heads that classify or score a text, its tokens, the ends of an answer, or one of several texts.

Each stands on any family. What a text amounts to is an encoder's pooled first token (BERT), a decoder's last token
(Radford et al. 2018, section 3.2), or the last token of an encoder-decoder's decoder that reads the input again (Lewis
et al. 2020, "BART", section 3.1, arxiv.org/abs/1910.13461).

A decoder can read pairs of texts without an order of their own in both orders. Radford et al. 2018, "Improving Language
Understanding by Generative Pre-Training", section 3.3, "Similarity": "we modify the input sequence to contain both
possible sentence orderings (with a delimiter in between) and process each independently to produce two sequence
representations which are added element-wise before being fed into the linear output layer".
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    BaseModelOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqQuestionAnsweringModelOutput,
    Seq2SeqSequenceClassifierOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration_finery import FineryConfig
from .modeling_finery import (
    IGNORED,
    PROBLEM_LOSSES,
    FineryModel,
    FineryPreTrainedModel,
    cross_entropy,
    mean_squared_error,
    problem_type_of,
)


def exchange(input_ids: Tensor, start: int, delimiter: int, extract: int) -> tuple[Tensor, Tensor]:
    """Rows `start A delimiter B extract` with A and B exchanged; rows without these tokens stay as they are.

    `input_ids` are (batch, length), padded on either side. Returns: the new ids (batch, length), and which rows are
    pairs (batch,).
    """
    place = torch.arange(input_ids.shape[1], device=input_ids.device)[None, :]  # (1, length)
    first, middle, last = (_place_of(input_ids, token) for token in (start, delimiter, extract))  # (batch, 1)
    pairs = (first < middle) & (middle < last)
    size_a, size_b = middle - first - 1, last - middle - 1
    in_b = (place > first) & (place <= first + size_b)
    in_a = (place > first + size_b + 1) & (place < last)
    source = (place + size_a + 1).where(in_b, place)  # which token comes to stand at each place
    source = (place - size_b - 1).where(in_a, source)
    source = middle.where(place == first + size_b + 1, source)
    return input_ids.gather(1, source.where(pairs, place)), pairs[:, 0]


def behind(input_ids: Tensor, delimiter: int) -> Tensor:
    """Segments (batch, length) of such rows: 1 behind the delimiter, else 0."""
    there = (input_ids == delimiter).long()
    return (there.cumsum(1) - there).clamp(max=1)


def _place_of(input_ids: Tensor, token: int) -> Tensor:
    """Where the token stands first in each row (batch, 1); -1 where it does not."""
    there = input_ids == token
    return there.long().argmax(1, keepdim=True).where(there.any(1, keepdim=True), -1)


FOR_BOTH_STACKS = (
    "past_key_values",
    "decoder_hidden_states",
    "decoder_attentions",
    "cross_attentions",
    "encoder_last_hidden_state",
    "encoder_hidden_states",
    "encoder_attentions",
)
"""What an encoder-decoder's heads hand on."""


class BodyOutput(NamedTuple):
    """What the body made of a text."""

    tokens: Tensor
    """(batch, query, dim)."""
    text: Tensor | None
    """(batch, dim), if the head needs it."""
    outputs: ModelOutput

    def carry(self) -> dict[str, Cache | tuple[Tensor, ...] | Tensor | None]:
        """Hidden states and attentions, by the names that the family's outputs give them."""
        names = FOR_BOTH_STACKS if "encoder_last_hidden_state" in self.outputs else ("hidden_states", "attentions")
        return {name: self.outputs.get(name) for name in names}


class FineryClassificationModel(FineryPreTrainedModel):
    """The body of a head that classifies or scores."""

    needs_text = True
    """Whether the head judges the text as a whole, not its tokens."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.pools_mean = config.family == "encoder" and config.classifier_pooling == "mean"
        self.model = FineryModel(config, add_pooling_layer=self.needs_text and not self.pools_mean)
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(dropout)

    def _read(self, use_cache: bool | None = None, **inputs: Any) -> BodyOutput:
        """Run the body. Nothing continues a text that is being judged, so no cache is made unless asked for."""
        outputs = self.model(use_cache=bool(use_cache), return_dict=True, **inputs)
        tokens = outputs.last_hidden_state
        if not self.needs_text:
            return BodyOutput(tokens, None, outputs)
        if self.pools_mean:
            return BodyOutput(
                tokens, self._mean(tokens, inputs.get("attention_mask"), inputs.get("input_ids")), outputs
            )
        if self.config.family == "encoder":
            return BodyOutput(tokens, outputs.pooler_output, outputs)
        prefix = ""
        if inputs.get("decoder_input_ids") is not None or inputs.get("decoder_inputs_embeds") is not None:
            prefix = "decoder_"
        place = self._last_token(tokens, inputs.get(f"{prefix}attention_mask"), inputs.get(f"{prefix}input_ids"))
        return BodyOutput(tokens, tokens[torch.arange(len(tokens), device=tokens.device), place], outputs)

    def _last_token(self, tokens: Tensor, mask: Tensor | None, input_ids: Tensor | None) -> Tensor:
        """The place of each text's last token (batch,), padding aside: by the mask, else by the padding token."""
        real = self._real(tokens, mask, input_ids)
        return (real * torch.arange(tokens.shape[1], device=tokens.device)).argmax(-1)

    def _mean(self, tokens: Tensor, mask: Tensor | None, input_ids: Tensor | None) -> Tensor:
        """The mean (batch, dim) of each text's tokens, padding aside; summed in float32."""
        real = self._real(tokens, mask, input_ids)[..., None]
        return (tokens.float().masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)).to(tokens.dtype)

    def _real(self, tokens: Tensor, mask: Tensor | None, input_ids: Tensor | None) -> Tensor:
        """Which places (batch, query) are no padding: by the mask, else by the padding token."""
        batch, query = tokens.shape[:2]
        if mask is not None and mask.ndim == 2:
            return mask[:, -query:].to(tokens.device) != 0  # a mask may cover what is kept from before, first
        if input_ids is not None and self.config.pad_token_id is not None:
            return input_ids.to(tokens.device) != self.config.pad_token_id
        return torch.ones(batch, query, dtype=torch.bool, device=tokens.device)


class FineryForSequenceClassification(FineryClassificationModel):
    """One decision, or one score, for a sequence or a pair. Devlin et al. 2019, section 4.1 and figure 4 (a, b).

    A decoder that was trained on pairs without an order of their own has `both_orders` in its config: the ids of the
    tokens before, between and behind the texts. It then reads each pair a second time, exchanged, and decides about the
    sum.
    """

    _auto_class = "AutoModelForSequenceClassification"

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def _with_other_order(self, text: Tensor, input_ids: Tensor | None, **inputs: Any) -> Tensor:
        """(batch, dim): what the texts amount to, added up over both orders of those that are pairs."""
        tokens = getattr(self.config, "both_orders", None)
        if not tokens:
            return text
        if input_ids is None:
            raise ValueError("this model reads pairs in both orders: it takes input_ids, not inputs_embeds")
        exchanged, pairs = exchange(input_ids, *tokens)
        if not pairs.any():
            return text
        if inputs["token_type_ids"] is not None:
            inputs["token_type_ids"] = behind(exchanged, tokens[1])
        return text + self._read(input_ids=exchanged, **inputs).text * pairs[:, None]

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
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput | Seq2SeqSequenceClassifierOutput:
        """`logits` are (batch, num_labels). `config.problem_type` picks the loss; without it, the labels do."""
        read = self._read(
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
            use_cache=use_cache,
            **kwargs,
        )
        text = self._with_other_order(
            read.text, input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **kwargs
        )
        logits = self.classifier(self.dropout(text))
        loss = None
        if labels is not None:
            if self.config.problem_type is None:  # remembered, for pipelines choose softmax or sigmoid by it
                self.config.problem_type = problem_type_of(labels, self.num_labels)
            loss = PROBLEM_LOSSES[self.config.problem_type](logits, labels, num_items_in_batch)
        return _text_output(self.config)(loss=loss, logits=logits, **read.carry())


def _text_output(config: FineryConfig) -> type[ModelOutput]:
    return Seq2SeqSequenceClassifierOutput if config.is_encoder_decoder else SequenceClassifierOutput


class FineryForTokenClassification(FineryClassificationModel):
    """One decision for each token. Devlin et al. 2019, section 5.3 and figure 4 (d)."""

    _auto_class = "AutoModelForTokenClassification"
    needs_text = False

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

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
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput | Seq2SeqSequenceClassifierOutput:
        """`logits` are (batch, query, num_labels); `labels` (batch, query) name classes, -100 for none."""
        read = self._read(
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
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.classifier(self.dropout(read.tokens))
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        kind = Seq2SeqSequenceClassifierOutput if self.config.is_encoder_decoder else TokenClassifierOutput
        return kind(loss=loss, logits=logits, **read.carry())


class FineryForQuestionAnswering(FineryClassificationModel):
    """Where an answer starts and ends in a text. Devlin et al. 2019, section 4.2 and figure 4 (c)."""

    _auto_class = "AutoModelForQuestionAnswering"
    needs_text = False

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

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
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput | Seq2SeqQuestionAnsweringModelOutput:
        """`start_logits` and `end_logits` are (batch, query); the loss is the mean of both ends' cross-entropy.

        Positions (batch,) beyond the text, where an answer was cut off, cost nothing.
        """
        read = self._read(
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
            use_cache=use_cache,
            **kwargs,
        )
        start_logits, end_logits = self.qa_outputs(read.tokens).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            ends = ((start_logits, start_positions), (end_logits, end_positions))
            loss = (
                sum(cross_entropy(logits, _within(places, logits), num_items_in_batch) for logits, places in ends) / 2
            )
        kind = Seq2SeqQuestionAnsweringModelOutput if self.config.is_encoder_decoder else QuestionAnsweringModelOutput
        return kind(loss=loss, start_logits=start_logits, end_logits=end_logits, **read.carry())


def _within(places: Tensor, logits: Tensor) -> Tensor:
    """Places (batch,) or (batch, 1), ignored where the text (batch, query) does not have them."""
    places = places.reshape(-1).to(logits.device)
    return torch.where((places >= 0) & (places < logits.shape[-1]), places, IGNORED)


class FineryForMultipleChoice(FineryClassificationModel):
    """The best of several texts, such as a passage, question and answer each. Devlin et al. 2019, section 4.4."""

    _auto_class = "AutoModelForMultipleChoice"

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

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
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput | Seq2SeqSequenceClassifierOutput:
        """Inputs are (batch, choices, query), `logits` (batch, choices), `labels` (batch,) the number of the best."""
        given = input_ids if input_ids is not None else inputs_embeds
        choices = given.shape[1]

        def flat(states: Tensor | None) -> Tensor | None:
            return None if states is None else states.flatten(0, 1)

        read = self._read(
            input_ids=flat(input_ids),
            attention_mask=flat(attention_mask),
            decoder_input_ids=flat(decoder_input_ids),
            decoder_attention_mask=flat(decoder_attention_mask),
            encoder_outputs=encoder_outputs,
            token_type_ids=flat(token_type_ids),
            position_ids=flat(position_ids),
            past_key_values=past_key_values,
            inputs_embeds=flat(inputs_embeds),
            decoder_inputs_embeds=flat(decoder_inputs_embeds),
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.classifier(self.dropout(read.text)).view(-1, choices)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        kind = Seq2SeqSequenceClassifierOutput if self.config.is_encoder_decoder else MultipleChoiceModelOutput
        return kind(loss=loss, logits=logits, **read.carry())


class FineryForReward(FineryClassificationModel):
    """How good a text is, as one number. Stiennon et al. 2020, section 3.4, arxiv.org/abs/2009.01325."""

    _auto_class = "AutoModelForReward"

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config)
        self.score = nn.Linear(config.hidden_size, 1)
        self.post_init()

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
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput | Seq2SeqSequenceClassifierOutput:
        """`logits` are (batch, 1). With `labels` (batch,), known rewards, the loss is the squared difference."""
        read = self._read(
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
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.score(self.dropout(read.text))
        loss = None if labels is None else mean_squared_error(logits, labels, num_items_in_batch)
        return _text_output(self.config)(loss=loss, logits=logits, **read.carry())

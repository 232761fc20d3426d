"""The Finery models: the encoder and the heads that learn on it.

With post-norm and learned positions this is BERT to the last digit (Devlin et al. 2019, arxiv.org/abs/1810.04805), its
pooler and masked-LM head included; with post-norm and rotary positions it is RoFormer (Su et al. 2021).
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput, SequenceClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention import FineryAttention
from .configuration_finery import FineryConfig
from .embeddings import FineryEmbeddings, FinerySinusoidalPositions
from .encoder_layer import FineryEncoderLayer
from .losses import IGNORED, PROBLEM_LOSSES, cross_entropy, problem_type_of
from .position_rotary import rotation_at
from .position_sinusoidal import sinusoidal_table


class FineryPreTrainedModel(PreTrainedModel):
    """What every model of the family tells transformers about itself."""

    config_class = FineryConfig
    config: FineryConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["FineryEmbeddings", "FineryEncoderLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs: ClassVar[dict[str, Any]] = {"hidden_states": FineryEncoderLayer, "attentions": FineryAttention}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """BERT's initialisation (the base class), and what a checkpoint does not hold."""
        super()._init_weights(module)
        if isinstance(module, FinerySinusoidalPositions):
            init.copy_(module.table, sinusoidal_table(module.num_positions, module.dim))


class FineryPooler(nn.Module):
    """A summary of the sequence from its first token: (batch, query, dim) -> (batch, dim). BERT, section 3.1."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.dense(hidden_states[:, 0]).tanh()


class FineryModel(FineryPreTrainedModel):
    """The bare encoder: token ids to one vector a token, and BERT's pooled vector of the first."""

    _auto_class = "AutoModel"

    def __init__(self, config: FineryConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.gradient_checkpointing = False
        self.embeddings = FineryEmbeddings(config)
        self.layers = nn.ModuleList([FineryEncoderLayer(config, index) for index in range(config.num_hidden_layers)])
        pre_norm = config.norm_position == "pre"  # then the last residual sum has not been normalised yet
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if pre_norm else None
        self.pooler = FineryPooler(config) if add_pooling_layer else None
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
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Encode (batch, query) tokens.

        `past_key_values` are keys and values that every token sees besides the sequence (prefix tuning supplies
        them); `attention_mask` then covers them too, first: (batch, past + query).
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass either input_ids or inputs_embeds, one of the two")
        if position_ids is None:
            past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
            sequence = input_ids if inputs_embeds is None else inputs_embeds
            position_ids = self.embeddings.positions_after(past_length, sequence)
        hidden_states = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        if self.config.position == "rotary":  # the same in every layer
            head_dim = self.config.hidden_size // self.config.num_attention_heads
            kwargs["rotation"] = rotation_at(position_ids, head_dim, self.config.rope_theta)
        mask = create_bidirectional_mask(self.config, hidden_states, attention_mask, past_key_values=past_key_values)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, past_key_values=past_key_values, **kwargs)
        if self.final_norm is not None:
            hidden_states = self.final_norm(hidden_states)
        pooled = self.pooler(hidden_states) if self.pooler is not None else None
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)


class FineryMaskedLMHead(nn.Module):
    """A vector to a score for each word: (…, dim) -> (…, vocab). BERT's transform, then the (tied) output matrix."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.decoder(self.norm(self.activation(self.dense(hidden_states))))


class FineryForMaskedLM(FineryPreTrainedModel):
    """Predict the words that were hidden. Devlin et al. 2019, section 3.1, task 1."""

    _auto_class = "AutoModelForMaskedLM"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.decoder.weight": "model.embeddings.word_embeddings.weight"}

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config)
        self.model = FineryModel(config, add_pooling_layer=False)
        self.lm_head = FineryMaskedLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head.decoder = value

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
        hidden_states = outputs.last_hidden_state
        if labels is not None and self.config.sparse_prediction:
            asked = labels != IGNORED  # (batch, query)
            hidden_states, labels = hidden_states[asked], labels[asked]  # (masked, dim), (masked,)
        logits = self.lm_head(hidden_states)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class FineryForSequenceClassification(FineryPreTrainedModel):
    """One decision, or one score, for a sequence or a pair. Devlin et al. 2019, section 4.1 and figure 4 (a, b)."""

    _auto_class = "AutoModelForSequenceClassification"

    def __init__(self, config: FineryConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = FineryModel(config)
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
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
    ) -> SequenceClassifierOutput:
        """`logits` are (batch, num_labels). `config.problem_type` picks the loss; without it, the labels do."""
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
        logits = self.classifier(self.dropout(outputs.pooler_output))
        loss = None
        if labels is not None:
            if self.config.problem_type is None:  # remembered, for pipelines choose softmax or sigmoid by it
                self.config.problem_type = problem_type_of(labels, self.num_labels)
            loss = PROBLEM_LOSSES[self.config.problem_type](logits, labels, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

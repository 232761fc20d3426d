"""The family under transformers' own model tests; `test_common_mixin.py` runs this file in a process of its own.

It needs the tests of transformers' source distribution on the path, as the package `transformers_tests`.
"""

from __future__ import annotations

import gc
import unittest
from typing import Any

import torch
from transformers.models.auto import modeling_auto
from transformers_tests.generation.test_utils import GenerationTesterMixin
from transformers_tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask

import pipelines.architectures as finery

KINDS = {
    "MODEL_MAPPING_NAMES": ("FineryModel",),
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": ("FineryForMaskedLM",),
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": ("FineryForCausalLM", "FineryForCausalLMWithValueHead"),
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": ("FineryForConditionalGeneration",),
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": ("FineryForSequenceClassification",),
    "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES": ("FineryForReward",),  # one label a sequence, of one kind
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": ("FineryForTokenClassification",),
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": ("FineryForQuestionAnswering",),
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": ("FineryForMultipleChoice",),
}
"""The tests choose a head's labels by the name of its class in these tables of transformers."""

for table, names in KINDS.items():
    getattr(modeling_auto, table)["finery"] = names

EVERYWHERE = (
    finery.FineryModel,
    finery.FineryForSequenceClassification,
    finery.FineryForTokenClassification,
    finery.FineryForQuestionAnswering,
    finery.FineryForMultipleChoice,
    finery.FineryForReward,
)

MODERN = {
    "position": "rotary", "norm_type": "rms_norm", "norm_position": "pre", "num_key_value_heads": 2, "qk_norm": True,
    "hidden_act": "silu", "is_gated_act": True, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False,
}  # fmt: skip
T5 = {
    "position": "relative",
    "norm_type": "rms_norm",
    "norm_position": "pre",
    "attention_scoring": "dot_product",
    "attention_bias": False,
    "mlp_bias": False,
    "scale_logits": True,
    "initializer": "fan_in",
}


class FineryModelTester:
    """Makes the tiny configs and inputs that the mixin asks for."""

    is_training = True
    batch_size = 5
    seq_length = encoder_seq_length = decoder_seq_length = 7
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    num_labels = 3
    num_choices = 4

    def __init__(self, parent: unittest.TestCase, family: str, **design: Any) -> None:
        self.parent, self.family, self.design = parent, family, design

    def get_config(self) -> finery.FineryConfig:
        fields = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": 37,
            "max_position_embeddings": 64,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "initializer_range": 0.02,
            "num_labels": self.num_labels,
            "family": self.family,
        }
        if self.family == "encoder-decoder":
            fields["decoder_start_token_id"] = 3
        return finery.FineryConfig(**{**fields, **self.design})

    def prepare_config_and_inputs_for_common(self) -> tuple[finery.FineryConfig, dict[str, torch.Tensor]]:
        shape = [self.batch_size, self.seq_length]
        inputs = {
            "input_ids": ids_tensor(shape, self.vocab_size - 4) + 4,
            "attention_mask": random_attention_mask(shape),
        }
        if self.family == "encoder":
            inputs["token_type_ids"] = ids_tensor(shape, 2)
        if self.family == "decoder":  # as in transformers: later tokens of a decoder's batch may be padding
            inputs["attention_mask"] = torch.tril(torch.ones(shape, dtype=torch.long), diagonal=2)
        if self.family == "encoder-decoder":
            inputs["decoder_input_ids"] = ids_tensor(shape, self.vocab_size - 4) + 4
            inputs["decoder_attention_mask"] = torch.tril(torch.ones(shape, dtype=torch.long), diagonal=3)
        return self.get_config(), inputs


class FineryTests(ModelTesterMixin):
    """What every family's tests share."""

    family: str
    design: dict[str, Any] = {}
    test_can_init_all_missing_weights_before_2023 = True  # asked of models of any age

    def setUp(self) -> None:
        self.model_tester = FineryModelTester(self, self.family, **self.design)

    def _prepare_for_class(
        self, inputs_dict: dict[str, torch.Tensor], model_class: type, return_labels: bool = False
    ) -> dict[str, torch.Tensor]:
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
        if return_labels and model_class is finery.FineryForPreTraining:
            batch, length = self.model_tester.batch_size, self.model_tester.seq_length
            inputs["labels"] = torch.zeros((batch, length), dtype=torch.long)
            inputs["next_sentence_label"] = torch.zeros(batch, dtype=torch.long)
        return inputs


class EncoderTest(FineryTests, unittest.TestCase):
    family = "encoder"
    all_model_classes = (*EVERYWHERE, finery.FineryForMaskedLM, finery.FineryForPreTraining)


class ModernEncoderTest(EncoderTest):
    design = MODERN | {"attention_pattern": "sliding_window", "sliding_window": 3, "global_attn_every_n_layers": 2}


class DecoderTest(FineryTests, GenerationTesterMixin, unittest.TestCase):
    family = "decoder"
    all_model_classes = (*EVERYWHERE, finery.FineryForCausalLM, finery.FineryForCausalLMWithValueHead)


class ModernDecoderTest(DecoderTest):
    design = MODERN


class EncoderDecoderTest(FineryTests, GenerationTesterMixin, unittest.TestCase):
    family = "encoder-decoder"
    is_encoder_decoder = True
    all_model_classes = (*EVERYWHERE, finery.FineryForConditionalGeneration)


class QuickEncoderDecoderTest(EncoderDecoderTest):
    all_model_classes = (finery.FineryModel, finery.FineryForConditionalGeneration)


class T5EncoderDecoderTest(EncoderDecoderTest):
    design = T5


gc.collect()
gc.freeze()  # these tests collect garbage after each of them, and would walk over all of torch and transformers

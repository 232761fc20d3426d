"""Counts of weights, operations and kept numbers, against models that are built and passes that are watched."""

from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipelines.architectures import (
    FineryCnnConfig,
    FineryCnnForConditionalGeneration,
    FineryCnnModel,
    FineryRnnConfig,
    FineryRnnForCausalLM,
    FineryRnnForConditionalGeneration,
    FineryRnnForPreTraining,
    FineryRnnForSequenceClassification,
    FineryRnnModel,
    convolutional_arithmetic,
    recurrent_arithmetic,
)
from pipelines.architectures.recurrent_rules import CELLS, SCORINGS
from tests.covering import covering

SHAPE = {"vocab_size": 37, "hidden_size": 16, "embedding_size": 12, "num_hidden_layers": 2, "num_decoder_layers": 3}
ALONE = {key: value for key, value in SHAPE.items() if key != "num_decoder_layers"}
RNN, CNN = recurrent_arithmetic, convolutional_arithmetic
TRANSLATOR = FineryRnnForConditionalGeneration
DESIGNS = covering(product(CELLS, SCORINGS, (None, False)), strength=2)
KEYS = ("cell", "attention_scoring", "input_feeding")
CASES = [
    *(
        pytest.param(
            *(FineryRnnConfig, TRANSLATOR, RNN, "seq2seq_lm", dict(zip(KEYS, each.values, strict=True))),
            id=each.id,
            marks=each.marks,
        )
        for each in DESIGNS
    ),
    (FineryRnnConfig, TRANSLATOR, RNN, "seq2seq_lm", {"tie_word_embeddings": False, "embedding_size": 16}),
    (FineryRnnConfig, TRANSLATOR, RNN, "seq2seq_lm", {"bidirectional": False, "num_decoder_layers": 1}),
    (FineryCnnConfig, FineryCnnForConditionalGeneration, CNN, "seq2seq_lm", {}),
    (
        FineryCnnConfig,
        FineryCnnForConditionalGeneration,
        CNN,
        "seq2seq_lm",
        {"kernel_size": 5, "tie_word_embeddings": False},
    ),
]
STACKS = [
    ({"stack": "encoder"}, "sequence_classification", FineryRnnForSequenceClassification),
    ({"stack": "decoder"}, "sequence_classification", FineryRnnForSequenceClassification),
    ({"stack": "decoder"}, "causal_lm", FineryRnnForCausalLM),
    ({"stack": "encoder", "separate_directions": True}, "sequence_classification", FineryRnnForSequenceClassification),
    ({"stack": "encoder", "separate_directions": True}, "bidirectional_lm", FineryRnnForPreTraining),
]


def operations(model, **inputs):
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(**inputs)
    return counter.get_total_flops()


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize(("config", "head_class", "arithmetic", "head", "words"), CASES)
def test_weights_and_operations_of_a_translator_are_those_of_the_model(config, head_class, arithmetic, head, words):
    shape = SHAPE | words
    model = head_class(config(**shape))
    assert arithmetic.parameter_count(shape, head)["total"] == sum(weight.numel() for weight in model.parameters())
    source, target = torch.ones(1, 9, dtype=torch.long), torch.ones(1, 5, dtype=torch.long)
    counted = operations(model, input_ids=source, decoder_input_ids=target)
    assert arithmetic.forward_flops(shape, head, 9, target_length=5)["total"] == counted
    fewer = arithmetic.forward_flops(shape, head, 9, target_length=5, predicted_tokens=2)["total"]
    assert counted - fewer == 3 * 2 * shape["embedding_size"] * 37


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize(("words", "head", "head_class"), STACKS)
def test_weights_and_operations_of_a_stack_alone_are_those_of_the_model(words, head, head_class):
    shape = ALONE | words
    model = head_class(FineryRnnConfig(**shape, num_labels=3))
    assert RNN.parameter_count(shape, head, 3)["total"] == sum(weight.numel() for weight in model.parameters())
    counted = operations(model, input_ids=torch.ones(1, 9, dtype=torch.long))
    assert RNN.forward_flops(shape, head, 9, 3)["total"] == counted


def kept_by(model, **inputs):
    """Numbers of the storages that the forward pass keeps, weights left out."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept, alive = {}, []

    def keep(tensor):
        alive.append(tensor)
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() / 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.train()(**inputs)
    return sum(count for place, count in kept.items() if place not in weights)


@pytest.mark.parametrize(
    ("cell", "scoring", "feeding"),
    covering([(cell, scoring, fed) for cell, scoring, fed in product(CELLS, SCORINGS, (None, False))]),
)
def test_what_a_recurrent_pass_keeps_is_foreseen_within_a_fifth(cell, scoring, feeding):
    shape = SHAPE | {"hidden_size": 128, "embedding_size": 128}
    shape |= {"cell": cell, "attention_scoring": scoring, "input_feeding": feeding}
    ids, target = torch.ones(4, 50, dtype=torch.long), torch.ones(4, 30, dtype=torch.long)
    kept = kept_by(FineryRnnModel(FineryRnnConfig(**shape)), input_ids=ids, decoder_input_ids=target)
    assert RNN.kept_values(shape, 50, 30) * 4 == pytest.approx(kept, rel=0.2)


def test_what_a_convolutional_pass_keeps_is_foreseen_within_a_tenth():
    shape = SHAPE | {"hidden_size": 128, "embedding_size": 128}
    ids, target = torch.ones(4, 50, dtype=torch.long), torch.ones(4, 30, dtype=torch.long)
    kept = kept_by(FineryCnnModel(FineryCnnConfig(**shape)), input_ids=ids, decoder_input_ids=target)
    assert CNN.kept_values(shape, 50, 30) * 4 == pytest.approx(kept, rel=0.1)

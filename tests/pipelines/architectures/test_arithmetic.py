import itertools
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedConfig

import pipelines.architectures
from pipelines.architectures import FineryConfig, FineryForMaskedLM, FineryForSequenceClassification, FineryModel
from pipelines.architectures.arithmetic import DEFAULTS, HEADS, forward_flops, parameter_count
from pipelines.architectures.contradictions import NORM_POSITIONS, POSITIONS

PRESETS = sorted((Path(pipelines.architectures.__file__).parents[2] / "configs" / "architectures").glob("bert-*.yaml"))
CLASSES = {
    "base": FineryModel,
    "masked_lm": FineryForMaskedLM,
    "sequence_classification": FineryForSequenceClassification,
}
PARTS = {  # where a weight's name says it belongs
    "norms": ("embeddings.norm.", "attention_norm.", "feed_forward_norm.", "final_norm."),
    "embeddings": ("embeddings.",),
    "attention": (".attention.",),
    "feed_forward": (".feed_forward.",),
    "pooler": ("pooler.",),
    "head": ("lm_head.", "classifier."),
}


def build(config: dict, head: str, num_labels: int = 2):
    """The model itself, without memory for its weights."""
    with torch.device("meta"):
        return CLASSES[head](FineryConfig(**config, num_labels=num_labels))


def counted_by_name(model) -> dict[str, int]:
    counts = dict.fromkeys(PARTS, 0)
    for name, weight in model.named_parameters():  # a shared weight appears once
        name = "." + name
        part = "head" if ".lm_head." in name else next(p for p in PARTS if any(mark in name for mark in PARTS[p]))
        counts[part] += weight.numel()
    return {**counts, "total": sum(weight.numel() for weight in model.parameters())}


def test_the_defaults_are_those_of_the_config():
    inherited = {field.name for field in fields(PreTrainedConfig)}
    live = {field.name: field.default for field in fields(FineryConfig) if field.name not in inherited}
    assert live == DEFAULTS


def test_the_arithmetic_knows_every_head():
    assert tuple(CLASSES) == HEADS


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.stem)
def test_the_count_is_that_of_the_built_model(preset, head):
    shape = dict(YAML(typ="safe").load(preset))
    for position, norm, tied in itertools.product(POSITIONS, NORM_POSITIONS, (True, False)):
        config = {**shape, "position": position, "norm_position": norm, "tie_word_embeddings": tied}
        assert parameter_count(config, head, num_labels=3) == counted_by_name(build(config, head, num_labels=3))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("norm_position", NORM_POSITIONS)
@pytest.mark.parametrize("position", POSITIONS)
def test_the_operations_are_those_that_torch_counts(head, position, norm_position):
    config = {
        "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 192,
        "vocab_size": 500, "position": position, "norm_position": norm_position,
    }  # fmt: skip
    model = CLASSES[head](FineryConfig(**config, num_labels=5, attn_implementation="eager")).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.ones(2, 50, dtype=torch.long))
    computed = forward_flops(config, head, sequence_length=50, num_labels=5)
    assert 2 * computed["total"] == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_sparse_head_costs_in_proportion_to_the_predicted_tokens():
    full = forward_flops({}, "masked_lm", 128)
    sparse = forward_flops({}, "masked_lm", 128, predicted_tokens=16)
    assert sparse["head"] * 8 == full["head"]
    assert full["total"] - sparse["total"] == full["head"] - sparse["head"]


def test_the_operations_of_one_small_layer_by_hand():
    """One layer of width 4 with 8 inside, 3 tokens: 2 operations a weight and token, and 2·2·3·3·4 for the scores."""
    config = {"hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    flops = forward_flops(config, "sequence_classification", 3, num_labels=2)
    assert flops["attention_projections"] == 2 * 3 * (4 * 16)
    assert flops["attention_scores"] == 144
    assert flops["feed_forward"] == 2 * 3 * (4 * 8 + 8 * 4)
    assert flops["pooler"] == 2 * 16
    assert flops["head"] == 2 * 8


def test_an_impossible_shape_is_refused_in_the_configs_words():
    with pytest.raises(ValueError, match="which does not divide it"):
        parameter_count({"hidden_size": 10, "num_attention_heads": 3}, "base")


def test_an_unknown_head_is_refused_with_the_known_ones():
    with pytest.raises(
        ValueError, match="head is 'causal_lm', must be one of: base, masked_lm, sequence_classification"
    ):
        parameter_count({}, "causal_lm")

"""The layers of every architecture, from the embeddings to the head, against groups written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipelines.core.interfaces import Head
from pipelines.models import opening
from pipelines.tuners.layer_groups import layer_groups
from tests import tiny

SHAPES: dict[str, dict[str, Any]] = {
    **tiny.SHAPES,
    "t5": {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2},
    "bart": {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 48,
    },
    "llama": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "num_key_value_heads": 2},
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48},
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 2},
}  # fmt: skip
CAUSAL, SEQ2SEQ = Head("causal_lm"), Head("seq2seq_lm")


def build(family: str, head: Head, **words: Any) -> Any:
    return opening.build({"model_type": family, **SHAPES[family], **words}, head, tiny.tokenizer(), 0)


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("finery", "model.layers.{}"),
        ("bert", "bert.encoder.layer.{}"),
        ("electra", "electra.encoder.layer.{}"),
        ("roberta", "roberta.encoder.layer.{}"),
        ("distilbert", "distilbert.transformer.layer.{}"),
        ("deberta-v2", "deberta.encoder.layer.{}"),
        ("modernbert", "model.layers.{}"),
        ("gpt2", "transformer.h.{}"),
        ("llama", "model.layers.{}"),
        ("xlnet", "transformer.layer.{}"),
        ("xlm", "transformer.attentions.{}"),
    ],
)
def test_a_classifier_is_embeddings_two_layers_and_a_head(family: str, layers: str) -> None:
    model = build(family, tiny.TWO)
    groups = layer_groups(model)
    assert [group.name for group in groups] == ["embeddings", layers.format(0), layers.format(1), "head"]
    every = [name for group in groups for name in group.parameters]
    assert sorted(every) == sorted(name for name, _ in model.named_parameters())
    tables = [name for name in groups[0].parameters if "embed" in name or "wte" in name or "wpe" in name]
    assert tables
    fresh = tuple(f"{module}." for module in model.finery_new_modules)
    assert {name for name in every if name.startswith(fresh)} <= set(groups[-1].parameters)
    assert len(groups[-1].parameters) <= 4
    assert not [name for group in groups[:-1] for name in group.parameters if name.startswith(fresh)]
    first, second = (
        {name.replace(".0.", ".N.").replace(".1.", ".N.") for name in group.parameters} for group in groups[1:3]
    )
    assert first <= second or family == "modernbert"  # ModernBERT's first layer has no norm before its attention
    assert all("norm" in name.lower() or "ln_f" in name for name in second - first)


@pytest.mark.parametrize(
    ("family", "head", "expected"),
    [
        ("t5", SEQ2SEQ, ["embeddings", "encoder.block.0", "encoder.block.1", "decoder.block.0"]),
        (
            "t5",
            tiny.TWO,
            [
                "embeddings",
                "transformer.encoder.block.0",
                "transformer.encoder.block.1",
                "transformer.decoder.block.0",
                "head",
            ],
        ),
        ("bart", SEQ2SEQ, ["embeddings", "model.encoder.layers.0", "model.encoder.layers.1", "model.decoder.layers.0"]),
        ("gpt2", CAUSAL, ["embeddings", "transformer.h.0", "transformer.h.1"]),  # the head's matrix is the embeddings'
        ("bert", tiny.MASKED, ["embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1", "head"]),
        ("albert", tiny.TWO, ["embeddings", "albert.encoder.albert_layer_groups.0", "head"]),  # its layers are one
    ],
)
def test_a_decoder_stands_above_its_encoder_and_tied_weights_are_the_lowest(
    family: str, head: Head, expected: list[str]
) -> None:
    assert [group.name for group in layer_groups(build(family, head))] == expected


def test_the_last_norm_goes_with_the_last_layer_of_its_stack() -> None:
    groups = {group.name: group.parameters for group in layer_groups(build("t5", SEQ2SEQ))}
    assert "encoder.final_layer_norm.weight" in groups["encoder.block.1"]
    assert "decoder.final_layer_norm.weight" in groups["decoder.block.0"]
    assert groups["embeddings"] == ("shared.weight",)


def test_a_head_of_t5_that_is_not_tied_is_a_head() -> None:
    model = build("t5", SEQ2SEQ)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    groups = {group.name: group.parameters for group in layer_groups(model)}
    assert groups["head"] == ("lm_head.weight",)
    assert groups["embeddings"] == ("shared.weight",)


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
def test_our_families_have_no_weight_without_a_layer(family: str) -> None:
    model = opening.build(
        {**tiny.shape("finery", position="relative"), "family": family}, tiny.TWO, tiny.tokenizer(), 0
    )
    groups = {group.name: group.parameters for group in layer_groups(model)}
    stacks = ("model.encoder.", "model.decoder.") if family == "encoder-decoder" else ("model.",)
    assert list(groups) == ["embeddings", *(f"{stack}layers.{index}" for stack in stacks for index in range(2)), "head"]
    assert all(f"{stack}relative_bias.weight" in groups["embeddings"] for stack in stacks)


def test_a_pooler_is_of_the_head_whether_pretraining_brought_it_or_not() -> None:
    model = build("bert", tiny.TWO)
    model.finery_new_modules = ["classifier"]
    assert "bert.pooler.dense.weight" in layer_groups(model)[-1].parameters

"""(IA)^3: what is scaled on each architecture, what the scaling computes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import IA3Config, get_peft_model
from pydantic import ValidationError

from pipelines.core.errors import IncompatibleError
from pipelines.core.interfaces import Head
from pipelines.tuners.ia3 import IA3, UNFIT
from tests import tiny

SEQ2SEQ = Head("seq2seq_lm")
FOUND = {
    "bert": ({"attention.self.key", "attention.self.value"}, {"output.dense"}),
    "electra": ({"attention.self.key", "attention.self.value"}, {"output.dense"}),
    "deberta-v2": ({"attention.self.key_proj", "attention.self.value_proj"}, {"output.dense"}),
    "distilbert": ({"attention.k_lin", "attention.v_lin"}, {"ffn.lin2"}),
    "modernbert": ({"attn.Wqkv"}, {"mlp.Wo"}),
    "gpt2": ({"attn.c_attn"}, {"mlp.c_proj"}),
    "llama": ({"self_attn.k_proj", "self_attn.v_proj"}, {"mlp.down_proj"}),
    "finery": ({"attention.key", "attention.value"}, {"feed_forward.output"}),
    "albert": ({"albert_layers.0.attention.key", "albert_layers.0.attention.value"}, {"albert_layers.0.ffn_output"}),
}


def scaled(model: Any) -> tuple[set[str], set[str]]:
    """(layers whose output is scaled, layers whose input is), by their names within a layer."""
    found: tuple[set[str], set[str]] = (set(), set())
    for name, module in model.base_model.model.named_modules():
        if hasattr(module, "ia3_l"):
            parts = name.split(".")
            number = next(place for place, part in enumerate(parts) if part.isdigit())
            found[module.is_feedforward].add(".".join(parts[number + 1 :]))
    return found


@pytest.mark.parametrize("family", FOUND)
def test_keys_values_and_inner_activations_are_found(family: str) -> None:
    assert scaled(IA3().apply(tiny.build(family, tiny.THREE))) == FOUND[family]


def test_encoder_decoders_are_scaled_in_every_attention() -> None:
    assert scaled(IA3().apply(tiny.build("bart", SEQ2SEQ))) == (
        {f"{place}.{name}_proj" for place in ("self_attn", "encoder_attn") for name in "kv"},
        {"fc2"},
    )
    keys, inner = scaled(IA3().apply(tiny.build("t5", SEQ2SEQ)))
    assert keys == {
        f"layer.{n}.{place}.{name}" for n, place in ((0, "SelfAttention"), (1, "EncDecAttention")) for name in "kv"
    }
    assert inner == {"layer.1.DenseReluDense.wo", "layer.2.DenseReluDense.wo"}


@pytest.mark.parametrize("family", ["t5", "llama", "gpt2", "bert"])
def test_it_is_what_peft_takes_where_peft_knows_the_architecture(family: str) -> None:
    """But in BERT, where PEFT's `output.dense` is the end of attention too, which the paper does not scale."""
    head = SEQ2SEQ if family == "t5" else tiny.THREE
    keys, inner = scaled(IA3().apply(tiny.build(family, head)))
    theirs = scaled(get_peft_model(tiny.build(family, head), IA3Config()))
    assert (keys, inner) == (theirs[0], theirs[1] - {"attention.output.dense"})


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_scaling_is_that_of_the_paper(family: str) -> None:
    model = IA3().apply(tiny.build(family, tiny.THREE))
    tiny.disturb(model, by=0.5)
    body = model.base_model.model
    if family == "bert":
        key, last = body.bert.encoder.layer[0].attention.self.key, body.bert.encoder.layer[0].output.dense
    else:
        key, last = body.transformer.h[0].attn.c_attn, body.transformer.h[0].mlp.c_proj
    hidden = torch.randn(2, 5, 32)
    scale = key.ia3_l["default"].flatten()
    torch.testing.assert_close(key(hidden), key.base_layer(hidden) * scale)
    inner = torch.randn(2, 5, last.ia3_l["default"].numel())
    torch.testing.assert_close(last(inner), last.base_layer(inner * last.ia3_l["default"].flatten()))


def test_layers_can_be_named() -> None:
    model = IA3(
        target_modules=("value", "intermediate.dense", "output.dense"),
        feedforward_modules=("output.dense",),
        exclude_modules=("attention.output",),
    )
    assert scaled(model.apply(tiny.build("bert", tiny.THREE))) == (
        {"attention.self.value", "intermediate.dense"},
        {"output.dense"},
    )
    assert scaled(IA3(exclude_modules=("key",)).apply(tiny.build("bert", tiny.THREE))) == (
        {"attention.self.value"},
        {"output.dense"},
    )
    with pytest.raises(IncompatibleError, match=r"ia3.target_modules nope: no linear layer of the model is named so"):
        IA3(target_modules=("nope",)).apply(tiny.build("bert", tiny.THREE))
    with pytest.raises(ValidationError, match="names output, which target_modules does not; name them in both"):
        IA3.model_validate({"target_modules": ("value",), "feedforward_modules": ("output",)})


def test_an_architecture_without_keys_and_values_is_refused_before_and_after_it_is_built() -> None:
    why = IA3().misfit({"model_type": "xlnet"}, "sequence_classification")
    assert why == (
        "scales keys, values and inner activations, but 'xlnet' multiplies bare parameters for keys and values; "
        "name its layers in target_modules, or use lora"
    )
    with pytest.raises(
        IncompatibleError,
        match="ia3 finds no projections to keys and values in XLNetForSequenceClassification; name the layers in target_modules",
    ):
        IA3().apply(tiny.build("xlnet", tiny.THREE))
    named = IA3(target_modules=("layer_2",), feedforward_modules=("layer_2",))
    assert named.misfit({"model_type": "xlnet"}, "sequence_classification") is None
    assert scaled(named.apply(tiny.build("xlnet", tiny.THREE))) == (set(), {"ff.layer_2"})
    assert "xlnet" in UNFIT

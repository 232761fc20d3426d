"""BitFit trains biases alone, and refuses models that have none."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.core.errors import IncompatibleError
from pipelines.models import opening
from pipelines.tuners.bitfit import BIAS_WORDS, BitFit
from tests import tiny

LAYERS, DIM, INNER = 2, 32, 48

SHAPES: dict[str, dict[str, Any]] = {
    **{
        kind: {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
        for kind in ("t5", "mt5", "umt5", "longt5", "switch_transformers")
    },
    "modernbert": tiny.SHAPES["modernbert"],
}
DECODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def trained(model: Any) -> dict[str, int]:
    return {name: weight.numel() for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("family", ["bert", "finery", "distilbert", "roberta", "deberta-v2", "electra"])
def test_the_small_variant_keeps_the_biases_of_queries_and_of_the_first_matrix(family: str) -> None:
    """Section 4, "fewer bias parameters": b_q and b_m2."""
    model = tiny.build(family, tiny.THREE)
    new = tuple(f"{module}." for module in model.finery_new_modules)
    found = trained(BitFit(biases="query_and_intermediate").apply(model))
    body = {name: count for name, count in found.items() if not name.startswith(new)}
    assert sum(body.values()) == LAYERS * (DIM + INNER)
    assert len(found) == len(body) + 4


@pytest.mark.parametrize("family", ["gpt2", "xlnet"])
def test_queries_without_a_bias_of_their_own_are_refused(family: str) -> None:
    shape = tiny.SHAPES.get(family) or {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48}
    model = opening.build({"model_type": family, **shape}, tiny.TWO, tiny.tokenizer(), 0)
    with pytest.raises(IncompatibleError, match="has no bias of the query alone; use all"):
        BitFit(biases="query_and_intermediate").apply(model)
    assert trained(BitFit().apply(model))


@pytest.mark.parametrize("kind", BIAS_WORDS)
def test_what_is_said_of_models_without_biases_is_true_of_them(kind: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

    shape = SHAPES.get(kind, DECODER)
    auto = (
        AutoModelForMaskedLM
        if kind == "modernbert"
        else AutoModelForSeq2SeqLM
        if kind in SHAPES
        else AutoModelForCausalLM
    )

    def build(**words: Any) -> Any:
        return auto.from_config(AutoConfig.for_model(kind, vocab_size=96, pad_token_id=0, **shape, **words))

    bare = build()
    assert BitFit().misfit({"model_type": kind, **bare.config.to_dict()}, "sequence_classification") == (
        f"trains biases, but this {kind} has none; use lora, or give the architecture biases"
    )
    with pytest.raises(IncompatibleError, match="has none; use lora"):
        BitFit().apply(bare)
    for word in BIAS_WORDS[kind]:
        with_biases = build(**{word: True})
        assert BitFit().misfit({"model_type": kind, **with_biases.config.to_dict()}, "sequence_classification") is None
        assert trained(BitFit().apply(with_biases))


def test_our_own_design_without_biases_is_refused_and_with_one_it_is_not() -> None:
    bare = {"norm_type": "rms_norm", "attention_bias": False, "mlp_bias": False}
    assert BitFit().misfit({"model_type": "finery", **bare}, "masked_lm") is not None
    with pytest.raises(IncompatibleError):
        BitFit().apply(tiny.build("finery", tiny.THREE, **bare))
    for one in ({"norm_type": "layer_norm"}, {"attention_bias": True}, {"mlp_bias": True}):
        words = bare | one
        assert BitFit().misfit({"model_type": "finery", **words}, "masked_lm") is None
        assert trained(BitFit().apply(tiny.build("finery", tiny.THREE, **words)))
    assert (
        BitFit().misfit({"model_type": "finery"} | bare | {"norm_type": "layer_norm", "norm_bias": False}, "masked_lm")
        is not None
    )

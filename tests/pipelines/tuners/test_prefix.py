"""Prefix tuning: keys and values before those of every layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from pydantic import ValidationError
from transformers import AutoConfig, AutoModel

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.tuners.prefix import NO_PLACE, Prefix
from tests import tiny


@pytest.mark.parametrize("projection", [False, True])
@pytest.mark.parametrize(
    ("family", "task", "words"),
    [("bert", "SEQ_CLS", {}), ("gpt2", "CAUSAL_LM", {}), ("llama", "CAUSAL_LM", {"num_key_value_heads": 1})],
)
def test_it_computes_what_pefts_own_classes_compute(
    family: str, task: str, words: dict[str, Any], projection: bool
) -> None:
    head = tiny.THREE if task == "SEQ_CLS" else Head("causal_lm")
    ours = Prefix(num_virtual_tokens=4, prefix_projection=projection).apply(tiny.build(family, head, **words))
    theirs = get_peft_model(
        tiny.build(family, head, **words),
        PrefixTuningConfig(task_type=task, num_virtual_tokens=4, prefix_projection=projection),
    )
    theirs.prompt_encoder.load_state_dict(ours.prompt_encoder.state_dict())
    torch.testing.assert_close(tiny.logits(ours, tiny.batch()), tiny.logits(theirs, tiny.batch()))


def test_a_prefix_of_zeros_only_dilutes_attention() -> None:
    """Keys of zero score 0, values of zero add nothing: with its own queries at zero too, a text of n tokens keeps n / (n + 4)."""
    model = tiny.build("distilbert", tiny.THREE)
    layer = model.distilbert.transformer.layer[0].attention
    seen: list[torch.Tensor] = []
    layer.out_lin.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    torch.nn.init.zeros_(layer.q_lin.weight)
    torch.nn.init.zeros_(layer.q_lin.bias)
    ids = {"input_ids": tiny.batch(length=12)["input_ids"][:1]}
    tiny.logits(model, ids)
    tiny.logits(Prefix(num_virtual_tokens=4, init_weights="zero").apply(model), ids)
    torch.testing.assert_close(seen[1], seen[0] * 12 / 16)


def test_a_width_without_an_mlp_is_refused() -> None:
    with pytest.raises(ValidationError, match="only prefix_projection: true has"):
        Prefix(encoder_hidden_size=8)


def test_a_family_without_a_place_is_refused_before_it_is_built_and_after() -> None:
    said = Prefix().misfit({"model_type": "xlnet"}, "sequence_classification")
    assert said == (
        "needs an attention in every layer that takes keys and values from outside, which xlnet does not have; use prompt, p_tuning or lora"
    )
    with pytest.raises(ModelError, match="XLNetModel has none"):
        Prefix().apply(tiny.build("xlnet", tiny.THREE))
    assert Prefix().misfit({"model_type": "bert"}, "masked_lm") is None


@pytest.mark.parametrize("family", tiny.SHAPES)
def test_the_table_of_families_without_a_place_is_true_of_those_in_the_tests(family: str) -> None:
    model = tiny.build(
        family,
        Head("seq2seq_lm")
        if family in ("t5", "bart")
        else Head("causal_lm")
        if family in ("gpt2", "llama")
        else tiny.THREE,
    )
    if family in NO_PLACE:
        with pytest.raises(ModelError):
            Prefix().check_place(model)
    else:
        Prefix().check_place(model)


@pytest.mark.long
@pytest.mark.parametrize(
    "model_type", sorted(NO_PLACE - {"funnel", "luke"})
)  # these two are not built from their default config
def test_the_table_of_families_without_a_place_is_true_of_all(model_type: str) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.for_model(model_type))
    with pytest.raises(ModelError):
        Prefix().check_place(model)

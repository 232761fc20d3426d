"""Fused attention says and learns what eager attention does, and only where a batch is large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pipelines.core import costs
from pipelines.core.interfaces import Head
from pipelines.models import attention_by_size as module
from pipelines.models.attention_by_size import EAGER, FUSED, attention_by_size
from pipelines.models.log_probabilities import without_dropout
from pipelines.objectives.attention_masks import additive, earlier
from tests import tiny

WITHOUT = {"deberta-v2", "xlnet"}
"""Of the tiny models those whose attention is written in one way alone."""


@pytest.fixture(autouse=True)
def large_from_a_few_pairs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two heads, four rows of ten tokens: 800 scores, whatever the processor."""
    monkeypatch.setattr(module, "has_amx", lambda: False)
    for name in ("SCORES_ASKED", "SCORES_LEARNT"):
        monkeypatch.setattr(costs, name, {"no": 800, "bf16": 800})


def seen(model: nn.Module) -> list[str]:
    """The attention of each call of the model from now on."""
    found: list[str] = []
    body: Any = model
    body.base_model.register_forward_hook(
        lambda module, given, output: found.append(module.config._attn_implementation)
    )
    return found


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("model_type", tiny.SHAPES)
def test_answers_are_those_of_eager_attention(model_type: str, left: bool) -> None:
    writes = model_type in ("t5", "bart")
    model = tiny.build(model_type, Head("seq2seq_lm") if writes else tiny.THREE)
    tiny.disturb(model)
    inputs = tiny.batch() | ({"decoder_input_ids": tiny.batch(seed=1)["input_ids"]} if writes else {})
    if left:
        inputs = {name: value.flip(1) for name, value in inputs.items()}
    expected = tiny.logits(model, inputs)
    asked = seen(model)
    with attention_by_size(model):
        found = tiny.logits(model, inputs)
    assert asked == [EAGER if model_type in WITHOUT else FUSED]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert model.config._attn_implementation == EAGER
    assert torch.equal(tiny.logits(model, inputs), expected)


OURS: list[dict[str, Any]] = [
    {"family": "decoder"},
    {"family": "encoder-decoder"},
    {"position": "alibi"},
    {"position": "relative"},
    {"attention_scoring": "additive"},
    {"attention_scoring": "cosine"},
    {"attention_pattern": "sliding_window", "sliding_window": 3},
    {"attention_pattern": "linear"},
    {"family": "decoder", "num_key_value_heads": 1, "position": "rotary"},
]


@pytest.mark.parametrize("words", OURS, ids=lambda words: ",".join(map(str, words.values())))
def test_our_family_is_asked_alike(words: dict[str, Any]) -> None:
    model = tiny.build("finery", tiny.TWO, **words)
    tiny.disturb(model)
    expected = tiny.logits(model, tiny.batch())
    asked = seen(model)
    with attention_by_size(model):
        torch.testing.assert_close(tiny.logits(model, tiny.batch()), expected, rtol=0, atol=1e-5)
    assert asked == [FUSED]


def test_what_is_small_or_learnt_or_shows_its_weights_stays_eager() -> None:
    model = tiny.build("bert", tiny.TWO)
    inputs = tiny.batch()
    shorter = {name: value[:, :9] for name, value in inputs.items()}
    asked = seen(model)
    with attention_by_size(model):
        with torch.no_grad():
            model(**inputs)
            model(**shorter)
            model(inputs["input_ids"], attention_mask=inputs["attention_mask"])
            weights = model(**inputs, output_attentions=True).attentions
        model(**inputs).logits.sum().backward()
    assert asked == [FUSED, EAGER, FUSED, EAGER, EAGER]
    assert weights[0].shape == (4, 2, 10, 10)
    assert model.classifier.weight.grad is not None


def gradients(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Of every weight that learns, of a sum over what the model says."""
    model.train().zero_grad(set_to_none=True)
    said = model(**inputs).logits
    (said * torch.linspace(-1, 1, said.numel()).view(said.shape)).sum().backward()
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def same_gradients(model: Any, inputs: dict[str, Any]) -> list[str]:
    """That a model learns the same by size, and which attention it then took."""
    expected = gradients(model, inputs)
    asked = seen(model)
    with attention_by_size(model, EAGER):
        found = gradients(model, inputs)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=2e-5, msg=name)
    return asked


@pytest.mark.parametrize("model_type", tiny.SHAPES)
def test_gradients_are_those_of_eager_attention(model_type: str) -> None:
    writes = model_type in ("t5", "bart")
    model = without_dropout(tiny.build(model_type, Head("seq2seq_lm") if writes else tiny.THREE))
    tiny.disturb(model)
    inputs = tiny.batch() | ({"decoder_input_ids": tiny.batch(seed=1)["input_ids"]} if writes else {})
    assert same_gradients(model, inputs) == [EAGER if model_type in {*WITHOUT, "t5"} else FUSED]


@pytest.mark.parametrize("words", OURS, ids=lambda words: ",".join(map(str, words.values())))
def test_our_family_learns_alike(words: dict[str, Any]) -> None:
    model = tiny.build("finery", tiny.TWO, **words)
    tiny.disturb(model)
    assert same_gradients(model, tiny.batch()) == [EAGER if words.get("position") in ("alibi", "relative") else FUSED]


def test_masks_that_are_handed_over_ready_are_learnt_with_alike() -> None:
    model = tiny.build("llama", Head("causal_lm"))
    tiny.disturb(model)
    ids = tiny.batch()["input_ids"]
    allowed = earlier(10, np.array([2, 0, 4, 10]))
    mask = torch.from_numpy(additive(allowed))
    assert same_gradients(model, {"input_ids": ids, "attention_mask": mask}) == [FUSED]


@pytest.mark.parametrize(
    ("model_type", "key"), [("bert", "attention_probs_dropout_prob"), ("llama", "attention_dropout")]
)
def test_where_attention_drops_weights_it_learns_as_before_and_is_asked_by_size(model_type: str, key: str) -> None:
    model = tiny.build(model_type, tiny.TWO, **{key: 0.5})
    asked = seen(model)
    with attention_by_size(model, EAGER):
        model.train()(**tiny.batch()).logits.sum().backward()
        tiny.logits(model, tiny.batch())
        model.eval()(**tiny.batch()).logits.sum().backward()
    assert asked == [EAGER, FUSED, FUSED]
    asked.clear()
    with attention_by_size(without_dropout(model), EAGER):
        model.train()(**tiny.batch())
    assert asked == [FUSED]


def test_a_model_that_learns_is_asked_by_the_bounds_of_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(costs.SCORES_LEARNT, "no", 801)
    model = tiny.build("bert", tiny.TWO)
    asked = seen(model)
    with attention_by_size(model, EAGER):
        tiny.logits(model, tiny.batch())
        with torch.autocast("cpu", torch.bfloat16):
            tiny.logits(model, tiny.batch())
        with torch.autocast("cpu", torch.float16):
            tiny.logits(model, tiny.batch())
        tiny.logits(model, tiny.batch(rows=5))
    assert asked == [EAGER, FUSED, EAGER, FUSED]


def test_options_and_vectors_count_as_the_rows_that_they_are() -> None:
    model = tiny.build("bert", Head("multiple_choice"))
    options = {name: value.view(2, 2, 10) for name, value in tiny.batch().items()}
    asked = seen(model)
    with torch.no_grad(), attention_by_size(model):
        model(**options)
        model.bert(inputs_embeds=torch.zeros(4, 10, 32))
        model.bert(inputs_embeds=torch.zeros(3, 10, 32))
    assert asked == [FUSED, FUSED, EAGER]


def test_with_amx_a_model_that_is_asked_takes_fused_attention_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_amx", lambda: True)
    model = tiny.build("bert", tiny.TWO)
    asked = seen(model)
    with attention_by_size(model):
        tiny.logits(model, tiny.batch(rows=1))
        with torch.autocast("cpu", torch.float16):
            tiny.logits(model, tiny.batch(rows=1))
    with attention_by_size(model, EAGER):
        tiny.logits(model, tiny.batch(rows=1))
    assert asked == [FUSED, EAGER, EAGER]


@pytest.mark.parametrize("small", [None, EAGER])
def test_a_mask_of_padding_is_one_row_for_all_queries(small: str | None) -> None:
    """Of an encoder; a causal one is of all pairs."""
    given: dict[str, list[tuple[int, ...]]] = {}
    for model_type in ("bert", "llama"):
        model: Any = tiny.build(model_type, tiny.TWO)
        masks = given.setdefault(model_type, [])
        attention = next(each for name, each in model.named_modules() if name.endswith(("self_attn", "attention.self")))
        attention.register_forward_pre_hook(
            lambda _, args, named, masks=masks: masks.append(tuple(named["attention_mask"].shape)), with_kwargs=True
        )
        expected = tiny.logits(model, tiny.batch())
        masks.clear()
        with attention_by_size(model, small), attention_by_size(model, small):
            torch.testing.assert_close(tiny.logits(model, tiny.batch()), expected, rtol=0, atol=1e-5)
            tiny.logits(model, tiny.batch(rows=3))
        tiny.logits(model, tiny.batch(rows=3))
    assert given["bert"] == [(4, 1, 1, 10), (3, 1, 1, 10), (3, 1, 10, 10)]
    assert given["llama"] == [(4, 1, 10, 10), (3, 1, 10, 10), (3, 1, 10, 10)]


def test_in_bfloat16_the_threshold_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(costs.SCORES_ASKED, "bf16", 801)
    model = tiny.build("llama", tiny.TWO)
    asked = seen(model)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16), attention_by_size(model):
            model(**tiny.batch())
        with attention_by_size(model):
            model(**tiny.batch())
    assert asked == [EAGER, FUSED]


@pytest.mark.parametrize("why", ["another attention", "compiled", "elsewhere", "sinks", "not a model of transformers"])
def test_a_model_that_is_left_alone(why: str) -> None:
    model: Any = tiny.build("llama", tiny.TWO)
    if why == "another attention":
        model.set_attn_implementation("flex_attention")
    elif why == "compiled":
        model.model.layers[0]._compiled_call_impl = model.model.layers[0]._call_impl
    elif why == "elsewhere":
        model.to("meta")
    elif why == "sinks":
        model.model.layers[0].self_attn.sinks = nn.Parameter(torch.zeros(2))
    else:
        model = nn.Sequential(nn.Linear(4, 4))
    hooks = sum(len(each._forward_pre_hooks) for each in model.modules())
    with attention_by_size(model):
        assert sum(len(each._forward_pre_hooks) for each in model.modules()) == hooks


def test_an_error_leaves_the_model_as_it_was_and_blocks_may_stand_in_one_another() -> None:
    model = tiny.build("bert", tiny.TWO)
    asked = seen(model)

    def ask() -> None:
        with attention_by_size(model), torch.no_grad():
            with attention_by_size(model):
                model(**tiny.batch())
            model(**tiny.batch())
            with attention_by_size(model):  # the model is fused already: nothing is left to do
                pass
            model(**tiny.batch())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask()
    assert asked == [FUSED] * 3
    assert model.config._attn_implementation == EAGER
    assert not model._forward_pre_hooks
    assert not model.bert._forward_pre_hooks


def test_an_adapter_around_a_model_is_asked_alike() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny.build("bert", tiny.TWO), LoraConfig(r=2, target_modules=["query", "value"]))
    tiny.disturb(model)
    expected = tiny.logits(model, tiny.batch())
    asked = seen(model.get_base_model())
    with attention_by_size(model):
        torch.testing.assert_close(tiny.logits(model, tiny.batch()), expected, rtol=0, atol=1e-5)
    assert asked == [FUSED]

"""The last attention of encoders that are read at the first place: what stays, and how many queries there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pipelines.models.attention_by_size import attention_by_size
from pipelines.models.read_places import RULES, ReadPlaces, last_layer, text_alone, without_wrappers
from pipelines.models.read_queries import first_queries, is_of_bert
from pipelines.trainers import training_attention
from pipelines.trainers.dropout import few_bits
from pipelines.trainers.joint_projections import joint_projections
from pipelines.tuners.lora import LoRA
from tests import tiny

MODELS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "electra": {},
    "finery": {},
    "finery rotary": {"position": "rotary", "norm_position": "pre"},
    "finery shared": {"num_key_value_heads": 1, "qk_norm": True},
    "finery alibi": {"position": "alibi"},
    "finery relative": {"position": "relative"},
    "finery window": {"attention_pattern": "sliding_window", "sliding_window": 2},
    "finery cosine": {"attention_scoring": "cosine"},
    "finery general": {"attention_scoring": "general"},
}
ATTENTIONS = ("eager", "sdpa", "training", "joint")


def built(name: str, **more: Any) -> Any:
    words = {"attention_probs_dropout_prob": 0.0} | MODELS.get(name, {}) | more
    model = tiny.build(name.split()[0], tiny.THREE, **words)
    tiny.disturb(model)
    return model


def queries_of(model: Any) -> list[int]:
    """How many queries a text has, from now on, in the last layer."""
    layer: Any = last_layer(without_wrappers(model))
    found: list[int] = []
    own = getattr(layer.attention, "self", layer.attention)
    own.query.register_forward_hook(lambda module, given, output: found.append(output.shape[1]))
    return found


def learnt(model: Any, inputs: dict[str, torch.Tensor], alone: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    if alone:
        with text_alone(model, inputs):
            logits = model(**inputs).logits
    else:
        logits = model(**inputs).logits
    logits.float().square().sum().backward()
    return logits.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_stay_and_one_query_is_asked(name: str, attention: str) -> None:
    model, inputs = built(name).train(), tiny.batch()
    if attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
    with text_alone(model, inputs):
        pass  # finds out what is read
    expected, gradients = learnt(model, inputs, alone=False)
    count = queries_of(model)
    if attention in ("eager", "sdpa"):
        found, of_found = learnt(model, inputs, alone=True)
    else:
        with attention_by_size(model, training_attention.register()), joint_projections(model):
            found, of_found = learnt(model, inputs, alone=True)
    assert count == [1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for each, gradient in gradients.items():
        got = of_found.get(each)
        torch.testing.assert_close(torch.zeros_like(gradient) if got is None else got, gradient, rtol=1e-4, atol=2e-5)
    assert "forward" not in vars(getattr(last_layer(model).attention, "self", last_layer(model).attention))


def test_with_lora_on_the_queries_they_are_asked_once_too() -> None:
    model = LoRA(r=2).apply(built("bert")).train()
    tiny.disturb(model)
    inputs = tiny.batch()
    with text_alone(model, inputs):
        pass
    expected, gradients = learnt(model, inputs, alone=False)
    count = queries_of(model)
    found, of_found = learnt(model, inputs, alone=True)
    assert count == [1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert of_found.keys() == gradients.keys()


def test_dropout_falls_on_the_scores_of_one_query() -> None:
    model, inputs = built("bert", attention_probs_dropout_prob=0.5).train(), tiny.batch()
    drawn: list[torch.Size] = []
    with few_bits() as masks:
        plain = masks.kept
        masks.kept = lambda values, p: (drawn.append(values.shape), plain(values, p))[1]  # type: ignore[method-assign]
        with text_alone(model, inputs):
            pass
        with masks.batch(1), attention_by_size(model, training_attention.register()), text_alone(model, inputs):
            model(**inputs)
    rows, length = inputs["input_ids"].shape
    assert drawn == [(2 * rows, length, length), (2 * rows, 1, length)]


@pytest.mark.parametrize("name", ["finery linear", "finery additive", "finery decoder", "deberta-v2", "distilbert"])
def test_other_attentions_do_as_before(name: str) -> None:
    words = {"linear": {"attention_pattern": "linear"}, "additive": {"attention_scoring": "additive"}}
    family, _, kind = name.partition(" ")
    model = tiny.build(family, tiny.THREE, **words.get(kind, {"family": "decoder"} if kind else {}))
    for module in model.modules():
        with first_queries(module):
            assert "forward" not in vars(module)
    assert not any(is_of_bert(module) for module in model.modules())


@pytest.mark.parametrize("why", ["weights are shown", "a cache", "one token", "another attention"])
def test_calls_that_are_not_understood_do_as_before(why: str) -> None:
    model = built("bert").eval()
    own = model.bert.encoder.layer[-1].attention.self
    states = torch.randn(2, 1 if why == "one token" else 5, 32)
    named: dict[str, Any] = {"output_attentions": True} if why == "weights are shown" else {}
    if why == "another attention":
        model.config._attn_implementation = "flex_attention"
    with torch.no_grad():
        if why in ("a cache", "another attention"):
            asked: list[Any] = []
            own.forward = lambda *given, **_: asked.append(given) or (states, None)
            past = object() if why == "a cache" else None
            with first_queries(own):
                own(states, None, past)
            assert len(asked) == 1
            del own.forward
            return
        expected = own(states, None, **named)
        with first_queries(own):
            found = own(states, None, **named)
    assert torch.equal(found[0], expected[0])


def test_only_the_rule_of_the_first_place_cuts_queries() -> None:
    layer: nn.Module = built("bert").bert.encoder.layer[-1]
    assert RULES[0] == "first"
    assert ReadPlaces().shape is None
    assert ReadPlaces.of_mask(torch.ones(2, 3, dtype=torch.bool)).shape == (2, 3)
    assert is_of_bert(layer.attention.self)  # type: ignore[union-attr]

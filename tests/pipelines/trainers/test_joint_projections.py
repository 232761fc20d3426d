"""Queries, keys and values by one product: whom it serves, and that what is said and learnt stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipelines.core.interfaces import Head
from pipelines.models.attention_by_size import attention_by_size
from pipelines.trainers import joint_projections as joint
from pipelines.trainers import training_attention
from pipelines.trainers.dropout import few_bits
from pipelines.trainers.joint_projections import joint_projections
from tests import tiny
from tests.pipelines.models.test_attention_by_size import OURS, gradients
from tests.pipelines.trainers.test_training_attention import chances, compared

BERTS = ("bert", "electra", "roberta", "finery")
"""Those of the tests' families whose attention is served."""
NOT_SERVED = (
    {"position": "rotary"},
    {"position": "alibi"},
    {"position": "relative"},
    {"qk_norm": True},
    {"num_key_value_heads": 1},
    {"attention_scoring": "general"},
    {"attention_scoring": "cosine"},
    {"attention_scoring": "additive"},
    {"attention_pattern": "linear"},
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What goes through it from now on."""
    found: list[Tensor] = []
    plain = joint._joined

    def joined(*given: Any) -> Tensor | None:
        answer = plain(*given)
        if answer is not None:
            found.append(answer)
        return answer

    monkeypatch.setattr(joint, "_joined", joined)
    return found


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(
    ("model_type", "bf16"), [*((each, False) for each in tiny.SHAPES), *((each, True) for each in BERTS)]
)
def test_a_model_says_and_learns_the_same(model_type: str, dropout: bool, bf16: bool, calls: list[Tensor]) -> None:
    writes = model_type in ("t5", "bart")
    head = Head("seq2seq_lm") if writes else tiny.THREE
    model = tiny.build(model_type, head, **chances(model_type) if dropout else {})
    tiny.disturb(model)
    inputs = tiny.batch() | ({"decoder_input_ids": tiny.batch(seed=1)["input_ids"]} if writes else {})
    compared(model, inputs, bf16, joint_projections(model))
    assert len(calls) == (4 if model_type in BERTS else 0)  # two layers, asked twice


@pytest.mark.parametrize("words", [{}, *OURS, *NOT_SERVED], ids=lambda words: ",".join(map(str, words.values())))
def test_our_family_learns_alike(words: dict[str, Any], calls: list[Tensor]) -> None:
    model = tiny.build("finery", tiny.TWO, attention_probs_dropout_prob=0.2, **words)
    tiny.disturb(model)
    compared(model, tiny.batch(), beside=joint_projections(model))
    changed = any(words.get(name) == value for each in NOT_SERVED for name, value in each.items())
    assert bool(calls) is not changed


@pytest.mark.parametrize("words", [{"attention_bias": False}, {"head_dim": 8}, {"head_dim": 24}], ids=str)
def test_projections_may_lack_a_bias_and_be_of_another_width(words: dict[str, Any], calls: list[Tensor]) -> None:
    model = tiny.build("finery", tiny.TWO, **words)
    tiny.disturb(model)
    compared(model, tiny.batch(), beside=joint_projections(model))
    assert len(calls) == 4


@pytest.mark.parametrize("frozen", [("key",), ("query.weight", "value.bias"), ("embeddings",), ("bias",)], ids=str)
def test_what_is_frozen_gets_no_gradient(frozen: tuple[str, ...], calls: list[Tensor]) -> None:
    model = tiny.build("bert", tiny.TWO)
    tiny.disturb(model)
    for name, weight in model.named_parameters():
        weight.requires_grad_(not any(each in name for each in frozen))
    compared(model, tiny.batch(), beside=joint_projections(model))
    assert len(calls) == 4


def changed_class(model: Any) -> None:
    class Changed(nn.Linear):
        pass

    model.bert.encoder.layer[0].attention.self.query.__class__ = Changed


def hooked(model: Any) -> None:
    model.bert.encoder.layer[0].attention.self.value.register_forward_hook(lambda module, given, output: 2 * output)


def replaced(model: Any) -> None:
    own = model.bert.encoder.layer[0].attention.self
    plain = own.forward
    own.forward = lambda *given, **named: plain(*given, **named)


@pytest.mark.parametrize("change", [changed_class, hooked, replaced])
def test_a_layer_that_somebody_has_changed_goes_its_own_way(change: Any, calls: list[Tensor]) -> None:
    model = tiny.build("bert", tiny.TWO)
    tiny.disturb(model)
    change(model)
    compared(model, tiny.batch(), beside=joint_projections(model))
    assert len(calls) == 2  # the other layer's


def test_only_calls_that_learn_with_training_attention_go_through_it(calls: list[Tensor]) -> None:
    model = tiny.build("bert", tiny.TWO, attention_probs_dropout_prob=0.5)
    with joint_projections(model):
        model.train()(**tiny.batch())
        with attention_by_size(model, training_attention.register()):
            model(**tiny.batch(), output_attentions=True)
            model(**tiny.batch())  # outside of a batch, where torch draws what is dropped
            with torch.no_grad():
                model.eval()(**tiny.batch())
            assert not calls
            with few_bits() as masks, masks.batch(1):
                model.train()(**tiny.batch())
            assert len(calls) == 2
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_gradient_of_gradients_is_refused() -> None:
    model = tiny.build("bert", tiny.TWO)
    with attention_by_size(model, training_attention.register()), joint_projections(model):
        said = model.train()(**tiny.batch()).logits.square().sum()
        weight = model.bert.encoder.layer[0].attention.self.query.weight
        gradient = torch.autograd.grad(said, weight, create_graph=True)[0]
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


def test_in_bfloat16_it_is_as_near_to_float32_as_three_products() -> None:
    model = tiny.build("bert", tiny.TWO)
    tiny.disturb(model)
    exact, errors = gradients(model, tiny.batch()), []
    for joined in (True, False):
        with torch.autocast("cpu", torch.bfloat16), attention_by_size(model, training_attention.register()):
            if joined:
                with joint_projections(model):
                    found = gradients(model, tiny.batch())
            else:
                found = gradients(model, tiny.batch())
        errors.append(sum(float((found[each] - exact[each]).norm() / exact[each].norm()) for each in exact))
    assert 0 < errors[0] < 1.2 * errors[1]

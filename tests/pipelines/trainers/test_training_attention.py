"""Attention written for training: what eager attention says, learns and drops, with fewer numbers kept."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipelines.core.interfaces import Head
from pipelines.models import attention_by_size as attention
from pipelines.models.attention_by_size import attention_by_size
from pipelines.models.log_probabilities import without_dropout
from pipelines.trainers import training_attention
from pipelines.trainers.dropout import few_bits
from pipelines.trainers.training_attention import FEWEST, NAME, softmax, softmax_backward
from tests import tiny
from tests.pipelines.models.test_attention_by_size import OURS, WITHOUT, gradients, seen

EAGER = "eager"


def compared(
    model: Any, inputs: dict[str, Any], bf16: bool = False, beside: AbstractContextManager[Any] | None = None
) -> list[str]:
    """That a model says and learns the same, drawing the same random bits, and which attention it then took."""

    def answers() -> tuple[Any, dict[str, torch.Tensor]]:
        with few_bits() as masks, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            with masks.batch(3, 1):
                said = model.train()(**inputs).logits.detach().float()
            with masks.batch(3, 1):
                return said, gradients(model, inputs)

    said, expected = answers()
    assert not said.isnan().any()
    asked = seen(model)
    with attention_by_size(model, training_attention.register()), beside or nullcontext():
        found, learnt = answers()
    near: dict[str, float] = {"rtol": 0.05, "atol": 0.05} if bf16 else {"rtol": 1e-4, "atol": 2e-5}
    torch.testing.assert_close(found, said, **near)
    assert learnt.keys() == expected.keys()
    for name, gradient in expected.items():
        if bf16:
            assert (learnt[name] - gradient).norm() <= 0.05 * gradient.norm() + 1e-3, name
        else:
            torch.testing.assert_close(learnt[name], gradient, **near, msg=name)
    return sorted(set(asked))


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("model_type", tiny.SHAPES)
def test_it_says_and_learns_what_eager_attention_does(model_type: str, dropout: bool) -> None:
    writes = model_type in ("t5", "bart")
    head = Head("seq2seq_lm") if writes else tiny.THREE
    model = tiny.build(model_type, head, **chances(model_type) if dropout else {})
    model = model if dropout else without_dropout(model)
    tiny.disturb(model)
    inputs = tiny.batch() | ({"decoder_input_ids": tiny.batch(seed=1)["input_ids"]} if writes else {})
    assert compared(model, inputs) == [EAGER if model_type in {*WITHOUT, "t5"} else NAME]


def chances(model_type: str) -> dict[str, float]:
    """Dropout of every kind that a family has."""
    return {name: 0.2 for name in tiny.shape(model_type) if "drop" in name} or {"attention_dropout": 0.2}


@pytest.mark.parametrize("words", OURS, ids=lambda words: ",".join(map(str, words.values())))
def test_our_family_learns_alike(words: dict[str, Any]) -> None:
    model = tiny.build("finery", tiny.TWO, attention_probs_dropout_prob=0.2, **words)
    tiny.disturb(model)
    assert compared(model, tiny.batch()) == [EAGER if words.get("position") in ("alibi", "relative") else NAME]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("words", [{"family": "decoder"}, {"attention_pattern": "sliding_window", "sliding_window": 2}])
def test_queries_that_see_nothing_spoil_no_number(words: dict[str, Any], bf16: bool) -> None:
    model = tiny.build("finery", tiny.TWO, **words)
    tiny.disturb(model)
    inputs = tiny.batch()
    inputs["attention_mask"][1, :6] = 0  # of the window, and of what comes before, nothing is left
    inputs["attention_mask"][2, 3:] = 0
    assert compared(model, inputs, bf16) == [NAME]


def test_in_bfloat16_it_is_as_near_to_float32_as_eager_attention() -> None:
    model = tiny.build("llama", Head("causal_lm"), num_key_value_heads=1)
    tiny.disturb(model)
    exact, errors = gradients(model, tiny.batch()), {}
    for name in (EAGER, NAME):
        with torch.autocast("cpu", torch.bfloat16), attention_by_size(model, name):
            found = gradients(model, tiny.batch())
        errors[name] = sum(float((found[each] - exact[each]).norm() / exact[each].norm()) for each in exact)
    assert 0 < errors[NAME] < 1.3 * errors[EAGER]


def test_outside_of_a_batch_torch_draws_and_weights_are_handed_out_by_eager_attention() -> None:
    model = tiny.build("bert", tiny.TWO, attention_probs_dropout_prob=0.5).train()
    asked = seen(model)
    with attention_by_size(model, training_attention.register()):
        torch.manual_seed(0)
        first = model(**tiny.batch()).logits
        torch.manual_seed(0)
        assert torch.equal(model(**tiny.batch()).logits, first)
        assert not torch.equal(model(**tiny.batch()).logits, first)
        weights = model(**tiny.batch(), output_attentions=True).attentions
        assert torch.equal(model.eval()(**tiny.batch()).logits, model(**tiny.batch()).logits)
    assert weights[0].shape == (4, 2, 10, 10)
    assert asked == [*[NAME] * 3, EAGER, NAME, NAME]


def test_gradients_may_be_asked_for_twice() -> None:
    model = tiny.build("bert", tiny.TWO, attention_probs_dropout_prob=0.5).train()
    with few_bits() as masks, masks.batch(1), attention_by_size(model, training_attention.register()):
        loss = model(**tiny.batch()).logits.square().sum()
        weights = [each for each in model.parameters() if each.requires_grad]
        first = torch.autograd.grad(loss, weights, retain_graph=True)
        again = torch.autograd.grad(loss, weights)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_values_may_be_of_another_width_than_queries_and_biases_and_masks_may_learn() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 5, width, requires_grad=True) for width in (8, 8, 3))
    bias, mask = (torch.randn(2, 4, 5, 5, requires_grad=True) for _ in range(2))
    module = nn.Module().eval()
    for more in (
        {},
        {"position_bias": bias},
        {"attention_mask": mask},
        {"position_bias": bias, "attention_mask": mask},
    ):
        words: dict[str, Any] = {"attention_mask": None} | more
        found = training_attention.training_attention(module, q, k, v, scaling=0.5, **words)[0]
        added = sum(more.values(), torch.zeros(()))
        expected = ((q @ k.transpose(2, 3) * 0.5 + added).softmax(-1) @ v).transpose(1, 2)
        assert found.shape == (2, 5, 4, 3)
        torch.testing.assert_close(found, expected)
        leaves = [q, k, v, *more.values()]
        pairs = zip(*(torch.autograd.grad(each.square().sum(), leaves) for each in (found, expected)), strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other)
    with pytest.raises(ValueError, match="softcap"):
        training_attention.training_attention(module, q, k, v, None, softcap=30.0)


@pytest.mark.parametrize("why", ["by name", "capped", "in another type"])
def test_families_that_compute_something_else_for_names_they_know_stay_eager(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.build("llama", tiny.TWO)
    if why == "capped":
        model.config.attn_logit_softcapping = 30.0
    elif why == "in another type":
        model.config.reorder_and_upcast_attn = True
    else:
        source = 'if self.config._attn_implementation in ("eager", "sdpa"):'
        monkeypatch.setattr(inspect, "getsource", lambda module: source)
        monkeypatch.setattr(attention, "_asks_by_name", attention._asks_by_name.__wrapped__)  # reads it anew
    asked = seen(model)
    with attention_by_size(model, training_attention.register()):
        model(**tiny.batch())
    assert asked == [EAGER]


# -- the softmax -------------------------------------------------------------------------------------------------------

CLOSE = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float64: 1e-12}
"""Of the largest: two roundings."""


@pytest.fixture(params=[0, 8, 16])
def vector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """As on machines that compute no, 8 and 16 numbers at once."""
    monkeypatch.setattr(training_attention, "VECTOR", request.param)
    return int(request.param)


@pytest.mark.parametrize("kind", CLOSE)
@pytest.mark.parametrize("keys", [1, 2, 7, 8, 13, 16, 20, 31, 32, 33, 40, 63, 64, 127, 130])
def test_the_softmax_is_torchs_and_so_is_its_gradient(keys: int, kind: torch.dtype, vector: int) -> None:
    generator = torch.Generator().manual_seed(keys)
    scores = (4 * torch.randn(FEWEST // keys + 1, keys, generator=generator)).to(kind)
    gradient = torch.randn(scores.shape, generator=generator).to(kind)
    exact = scores.double().softmax(-1)
    found = softmax(scores)
    assert found.dtype is kind
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=CLOSE[kind])
    wanted = exact * (gradient.double() - (exact * gradient.double()).sum(-1, keepdim=True))
    of_scores = softmax_backward(gradient, found)
    assert of_scores.dtype is kind
    torch.testing.assert_close(of_scores.double(), wanted, rtol=0, atol=8 * CLOSE[kind] * float(gradient.abs().max()))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_hidden_keys_get_nothing_and_rows_that_see_nothing_are_even(kind: torch.dtype, vector: int) -> None:
    scores = torch.randn(1000, 6).to(kind)
    hidden = torch.finfo(kind).min / 2
    scores[:, 4:] = hidden
    scores[7] = hidden
    scores[8] = 1e4
    found = softmax(scores).float()
    seen = torch.cat([found[:7], found[9:]])
    assert (seen[:, 4:] == 0).all()
    torch.testing.assert_close(seen.sum(-1), torch.ones(998), rtol=0, atol=0.02)
    torch.testing.assert_close(found[7:9], torch.full((2, 6), 1 / 6), rtol=0, atol=1e-3)
    scores[3, 0] = torch.nan
    assert softmax(scores)[3].isnan().all()


@given(keys=st.integers(1, 40), halves=st.booleans(), shift=st.floats(-1e4, 1e4), seed=st.integers(0, 9))
def test_rows_of_the_softmax_sum_to_one_wherever_they_lie(keys: int, halves: bool, shift: float, seed: int) -> None:
    kind = torch.bfloat16 if halves else torch.float32
    scores = torch.randn(FEWEST // keys + 1, keys, generator=torch.Generator().manual_seed(seed)) + shift
    found = softmax(scores.to(kind))
    assert (found >= 0).all()
    torch.testing.assert_close(found.float().sum(-1), torch.ones(len(found)), rtol=0, atol=0.03 if halves else 1e-5)


def test_what_the_softmax_is_given_stays_as_it_was(vector: int) -> None:
    scores = torch.randn(1000, 6)
    before = scores.clone()
    found = softmax(scores)
    kept = found.clone()
    softmax_backward(scores, found)
    assert torch.equal(scores, before)
    assert torch.equal(found, kept)

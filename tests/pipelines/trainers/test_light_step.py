"""Steps with little beside their batch: AdamW with shared counts, and models that are not walked."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import AdamW, Optimizer

from pipelines.trainers.light_step import SharedStepAdamW, few_walks

SHAPES = ((3,), (2, 5), (4, 4), (1,), (7,))


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    kinds = (torch.float32, torch.float32, torch.bfloat16, torch.float32, torch.bfloat16)
    drawn = (torch.randn(shape, generator=generator) for shape in SHAPES)
    return [nn.Parameter(each.to(kind)) for each, kind in zip(drawn, kinds, strict=True)]


def optimizer(kind: type[AdamW], learning: list[nn.Parameter]) -> AdamW:
    groups = [
        {"params": learning[:3], "weight_decay": 0.1, "lr": 1e-2},
        {"params": learning[3:], "weight_decay": 0.0, "lr": 3e-2},
    ]
    words = {"fused": True} if kind is AdamW else {}
    return kind(groups, betas=(0.8, 0.95), eps=1e-6, **words)


def steps(taken: Optimizer, learning: list[nn.Parameter], which: list[int], seed: int) -> None:
    """One step for each number, whose bits say which of the weights have a gradient."""
    generator = torch.Generator().manual_seed(seed)
    for bits in which:
        for at, weight in enumerate(learning):
            gradient = torch.randn(weight.shape, generator=generator).to(weight.dtype)
            weight.grad = gradient if bits >> at & 1 else None
        taken.step()


def assert_equal(one: list[nn.Parameter], other: list[nn.Parameter]) -> None:
    assert all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


@given(st.lists(st.integers(0, 2 ** len(SHAPES) - 1), max_size=6))
@settings(max_examples=60, deadline=None)
def test_moves_what_has_a_gradient_as_torch_does_to_the_bit(which: list[int]) -> None:
    ours, theirs = weights(), weights()
    ours_optimizer, theirs_optimizer = optimizer(SharedStepAdamW, ours), optimizer(AdamW, theirs)
    steps(ours_optimizer, ours, which, 1)
    steps(theirs_optimizer, theirs, which, 1)
    assert_equal(ours, theirs)
    for mine, of_torch in zip(ours, theirs, strict=True):
        assert ours_optimizer.state[mine].keys() == theirs_optimizer.state[of_torch].keys()
        for name, value in ours_optimizer.state[mine].items():
            assert torch.equal(value, theirs_optimizer.state[of_torch][name])


@pytest.mark.parametrize(
    ("first", "second"), [(SharedStepAdamW, AdamW), (AdamW, SharedStepAdamW), (SharedStepAdamW, SharedStepAdamW)]
)
def test_goes_on_from_the_state_of_torch_and_torch_from_its(first: type[AdamW], second: type[AdamW]) -> None:
    through, apart = weights(), weights()
    reference = optimizer(AdamW, through)
    steps(reference, through, [0b11111, 0b01101], 1)
    steps(reference, through, [0b11011, 0b11111], 2)
    begun = optimizer(first, apart)
    steps(begun, apart, [0b11111, 0b01101], 1)
    file = io.BytesIO()
    torch.save(begun.state_dict(), file)
    file.seek(0)
    resumed = optimizer(second, apart)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    steps(resumed, apart, [0b11011, 0b11111], 2)
    assert_equal(through, apart)


def test_goes_on_from_a_state_that_is_loaded_between_its_steps() -> None:
    learning = weights()
    taken = optimizer(SharedStepAdamW, learning)
    steps(taken, learning, [0b11111] * 3, 1)
    kept = copy.deepcopy(taken.state_dict())
    steps(taken, learning, [0b11111], 2)
    taken.load_state_dict(kept)
    steps(taken, learning, [0b11111], 3)
    assert {float(taken.state[weight]["step"]) for weight in learning} == {4.0}


def test_counts_each_weights_steps_once_after_its_groups_were_divided() -> None:
    learning = weights()
    taken = optimizer(SharedStepAdamW, learning)
    steps(taken, learning, [0b11111, 0b00101], 1)
    group = taken.param_groups.pop(0)
    taken.param_groups[:0] = [group | {"params": [weight]} for weight in group["params"]]
    steps(taken, learning, [0b11111], 2)
    assert [float(taken.state[weight]["step"]) for weight in learning] == [3.0, 2.0, 3.0, 2.0, 2.0]


def test_calls_hooks_of_steps_and_closures() -> None:
    learning = weights()
    taken, seen = optimizer(SharedStepAdamW, learning), []
    taken.register_step_post_hook(lambda *_: seen.append(True))
    assert taken.step(lambda: 2.5) == 2.5
    assert seen == [True]


def test_a_model_is_walked_where_something_is_to_be_done() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout()))
    with few_walks(model) as learning:
        assert [id(each) for each in learning] == [id(each) for each in model.parameters()]
        model[1].eval()
        assert model.train() is model
        assert all(module.training for module in model.modules())
        model.eval()
        assert not any(module.training for module in model.modules())
        model(torch.ones(1, 2)).sum().backward()
        model.zero_grad(set_to_none=False)
        assert [float(weight.grad.abs().sum()) for weight in learning] == [0.0, 0.0]
        model.zero_grad()
        assert all(weight.grad is None for weight in learning)
    assert "train" not in vars(model)
    assert "zero_grad" not in vars(model)

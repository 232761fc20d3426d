from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.tasks.preference.training import bradley_terry, distance_from_zero

SCORE = st.floats(-20, 20)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def by_hand(chosen, rejected, margin=0.0, smoothing=0.0):
    preferred = 1 / (1 + math.exp(-(chosen - rejected - margin)))
    turned = 1 / (1 + math.exp(chosen - rejected - margin))
    return -(1 - smoothing) * math.log(preferred) - smoothing * math.log(turned)


def test_arithmetic_done_by_hand():
    assert bradley_terry(tensor(2.0), tensor(2.0)).item() == pytest.approx(math.log(2))
    assert bradley_terry(tensor(1.0), tensor(0.0)).item() == pytest.approx(0.3132616875182228)  # ln(1 + 1/e)
    assert bradley_terry(tensor(3.0), tensor(0.0), tensor(2.0)).item() == pytest.approx(0.3132616875182228)
    assert distance_from_zero(tensor(3.0), tensor(-1.0)).item() == 4.0


@settings(deadline=None)
@given(SCORE, SCORE, st.floats(0, 5), st.floats(0, 0.5))
def test_it_is_the_formula(chosen, rejected, margin, smoothing):
    found = bradley_terry(tensor(chosen), tensor(rejected), tensor(margin), smoothing).item()
    assert found == pytest.approx(by_hand(chosen, rejected, margin, smoothing), rel=1e-4, abs=1e-5)


@settings(deadline=None)
@given(SCORE, SCORE, st.floats(-10, 10))
def test_only_the_difference_counts(chosen, rejected, shift):
    one = bradley_terry(tensor(chosen), tensor(rejected)).item()
    assert bradley_terry(tensor(chosen + shift), tensor(rejected + shift)).item() == pytest.approx(
        one, rel=1e-3, abs=1e-4
    )


def test_far_scores_overflow_nowhere():
    far = bradley_terry(torch.tensor([1e4, -1e4]), torch.tensor([-1e4, 1e4]))
    assert far.tolist() == [0.0, 2e4]


def test_a_judge_s_probability_is_the_share_that_is_as_it_stands():
    chosen, rejected, sure = tensor(2.0, -1.0), tensor(0.5, 0.0), tensor(0.9, 0.6)
    found = bradley_terry(chosen, rejected, smoothing=1 - sure)
    expected = [by_hand(2.0, 0.5, smoothing=0.1), by_hand(-1.0, 0.0, smoothing=0.4)]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_smoothing_half_says_that_nothing_is_known():
    chosen = torch.tensor([3.0], requires_grad=True)
    bradley_terry(chosen, torch.tensor([3.0]), smoothing=0.5).sum().backward()
    assert chosen.grad.item() == pytest.approx(0.0)

"""KL estimators against the exact divergence, by hand and by sampling; controllers against the paper's arithmetic."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.trainers.ppo_losses import AdaptiveKL, FixedKL, estimated_kl


def test_estimators_by_hand():
    """p = 0.5 and q = 0.25: r = 0.5, log r = -ln 2."""
    p, q = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    assert float(estimated_kl(p, q, "k1")) == pytest.approx(math.log(2))
    assert float(estimated_kl(p, q, "k2")) == pytest.approx(math.log(2) ** 2 / 2)
    assert float(estimated_kl(p, q, "k3")) == pytest.approx(0.5 - 1 + math.log(2))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_every_estimator_is_0_where_the_models_agree(estimator: str):
    same = torch.tensor([-0.3, -2.0])
    assert estimated_kl(same, same, estimator).tolist() == [0, 0]  # type: ignore[arg-type]


logits = st.lists(st.floats(-2, 2, allow_nan=False), min_size=4, max_size=4)


@settings(max_examples=50, deadline=None)
@given(policy=logits, reference=logits)
def test_the_expectation_of_k1_and_k3_is_the_divergence(policy: list[float], reference: list[float]):
    p, q = (torch.tensor(each, dtype=torch.float64).log_softmax(-1) for each in (policy, reference))
    exact = float((p.exp() * (p - q)).sum())
    for estimator in ("k1", "k3"):
        assert float((p.exp() * estimated_kl(p, q, estimator)).sum()) == pytest.approx(exact, abs=1e-9)  # type: ignore[arg-type]
    assert (estimated_kl(p, q, "k3") >= -1e-12).all()
    assert (estimated_kl(p, q, "k2") >= 0).all()


def test_k3_varies_less_than_k1_where_the_models_are_close():
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(50, generator=generator, dtype=torch.float64).log_softmax(-1)
    q = (p + 0.1 * torch.randn(50, generator=generator, dtype=torch.float64)).log_softmax(-1)
    drawn = torch.multinomial(p.exp(), 5000, replacement=True, generator=generator)
    assert estimated_kl(p[drawn], q[drawn], "k3").std() < 0.2 * estimated_kl(p[drawn], q[drawn], "k1").std()


def test_a_fixed_penalty_stays():
    controller = FixedKL(0.05)
    controller.update(100.0, 512)
    assert controller.coefficient == 0.05


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (6.0, 1.0),
        (6.6, 1 + 0.1 * 256 / 10_000),
        (60.0, 1 + 0.2 * 256 / 10_000),  # the error counts as 0.2 at most
        (0.0, 1 - 0.2 * 256 / 10_000),
    ],
)
def test_the_adaptive_penalty_by_hand(kl: float, factor: float):
    controller = AdaptiveKL(0.15, target=6.0, horizon=10_000)
    controller.update(kl, 256)
    assert controller.coefficient == pytest.approx(0.15 * factor)


def test_the_adaptive_penalty_never_becomes_a_bonus():
    controller = AdaptiveKL(0.1, target=1.0, horizon=10)
    controller.update(0.0, 512)
    assert controller.coefficient == 0.0


def test_the_state_goes_through_json_to_the_bit():
    controller = AdaptiveKL(0.1, target=3.0, horizon=977)
    for kl in (1.0, 7.0, 2.9):
        controller.update(kl, 31)
    other = AdaptiveKL(0.5, target=3.0, horizon=977)
    other.restore(json.loads(json.dumps(controller.state())))
    assert other.coefficient == controller.coefficient

"""Uncertainty weighting against Kendall's formula, and where its minimum lies."""

from __future__ import annotations

import math

import pytest
import torch

from pipelines.trainers.multi_task_trainer import weighed


def test_the_formula_by_hand():
    losses = torch.tensor([2.0, 3.0], dtype=torch.float64)
    log_variances = torch.tensor([0.0, math.log(4)], dtype=torch.float64)
    # cross-entropy: 2 / 1 + log(1) = 2; squared error with sigma^2 = 4: 3 / (2 * 4) + log(2)
    found = weighed(losses, log_variances, torch.tensor([False, True]), torch.ones(2))
    assert found.item() == pytest.approx(2 + 3 / 8 + math.log(2))


def test_a_task_that_is_absent_adds_nothing():
    log_variances = torch.tensor([0.7, -2.0], requires_grad=True)
    found = weighed(torch.tensor([2.0, 0.0]), log_variances, torch.tensor([False, False]), torch.tensor([1.0, 0.0]))
    found.backward()
    assert log_variances.grad is not None
    assert log_variances.grad[1].item() == 0
    assert found.item() == pytest.approx(2 * math.exp(-0.7) + 0.35)


def test_the_parts_of_a_step_add_up_to_the_step():
    log_variances = torch.tensor([0.4])
    squared = torch.tensor([True])
    whole = weighed(torch.tensor([3.0]), log_variances, squared, torch.ones(1))
    parts = [
        weighed(torch.tensor([3.0 * share]), log_variances, squared, torch.tensor([share])) for share in (0.25, 0.75)
    ]
    assert sum(part.item() for part in parts) == pytest.approx(whole.item())


def test_the_best_variance_of_a_squared_error_is_the_error():
    log_variances = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([log_variances], lr=0.5)
    for _ in range(400):
        optimizer.zero_grad()
        weighed(torch.tensor([0.3], dtype=torch.float64), log_variances, torch.tensor([True]), torch.ones(1)).backward()
        optimizer.step()
    assert log_variances.exp().item() == pytest.approx(0.3, rel=1e-3)

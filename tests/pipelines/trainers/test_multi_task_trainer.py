"""PCGrad by hand on the plane, and what the paper's theorem needs: no projected gradient conflicts any more.

Uncertainty weighting against Kendall's formula, and where its minimum lies.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipelines.trainers.multi_task_trainer import MultiTaskTrainer, cosines, project, weighed


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(*gradients: list[float]) -> Tensor:
    return torch.tensor(gradients, dtype=torch.float64)


def test_two_conflicting_gradients_by_hand():
    # g1 . g2 = -1; g1 - (-1 / 2) g2 = (1, 0) + (-1, 1) / 2 = (0.5, 0.5); g2 - (-1 / 1) g1 = (-1, 1) + (1, 0) = (0, 1)
    assert project(rows([1, 0], [-1, 1]), (1,)).tolist() == pytest.approx([0.5, 1.5])


def test_gradients_that_agree_are_added():
    assert project(rows([1, 0], [1, 2]), (1,)).tolist() == [2.0, 2.0]


def test_orthogonal_and_vanishing_gradients_are_left_alone():
    assert project(rows([1, 0], [0, 3], [0, 0]), (1,)).tolist() == [1.0, 3.0]


def slowly(gradients: list[list[float]], orders: list[list[int]]) -> list[float]:
    """Algorithm 1 of the paper, number by number, in given orders."""
    total = [0.0] * len(gradients[0])
    for here, order in enumerate(orders):
        mine = list(gradients[here])
        for there in order:
            along = sum(a * b for a, b in zip(mine, gradients[there], strict=True))
            if there != here and along < 0:
                square = sum(b * b for b in gradients[there])
                mine = [a - along / square * b for a, b in zip(mine, gradients[there], strict=True)]
        total = [a + b for a, b in zip(total, mine, strict=True)]
    return total


NUMBER = st.integers(-5, 5).map(float)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(NUMBER, min_size=3, max_size=3).filter(any), min_size=2, max_size=3), st.integers(0, 50))
def test_it_is_the_papers_algorithm_in_one_of_its_orders(gradients: list[list[float]], seed: int):
    found = project(rows(*gradients), (seed,)).tolist()
    tasks = range(len(gradients))
    possible = itertools.product(itertools.permutations(tasks), repeat=len(gradients))
    assert any(
        all(
            math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6)
            for a, b in zip(found, slowly(gradients, [list(each) for each in orders]), strict=True)
        )
        for orders in possible
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBER, min_size=3, max_size=3).filter(any), st.lists(NUMBER, min_size=3, max_size=3).filter(any))
def test_of_two_tasks_none_is_harmed_by_the_others_projected_gradient(one: list[float], other: list[float]):
    first, second = vector(*one), vector(*other)
    mine = project(rows(one, other), (0,)) - project(rows(other, [0.0] * 3), (0,))
    if first.dot(second) < 0:
        theirs = second - second.dot(first) / first.dot(first) * first
        total = project(rows(one, other), (0,))
        assert total.dot(first) >= -1e-9
        assert total.dot(second) >= -1e-9
        assert theirs.dot(first).abs() < 1e-9
    else:
        torch.testing.assert_close(mine, first)


def test_the_order_is_drawn_by_the_seed():
    gradients = rows([1, -2, 0.5], [-1, 1, 1], [-0.5, 0.25, -2])
    assert torch.equal(project(gradients, (3, 1)), project(gradients, (3, 1)))
    assert len({tuple(project(gradients, (seed,)).tolist()) for seed in range(20)}) > 1


def test_cosines_by_hand():
    found = cosines(rows([1, 0], [1, 1], [-2, 0], [0, 0]))
    assert found[0, 1] == pytest.approx(math.sqrt(0.5))
    assert found[0, 2] == pytest.approx(-1)
    assert found[0, 3] == 0
    assert len(found) == 6


def test_conflicts_are_those_of_the_bodys_weights_wherever_they_stand():
    told: list[dict[str, float]] = []
    variances, body, head = (torch.nn.Parameter(torch.zeros(size)) for size in (2, 3, 1))
    trainer = SimpleNamespace(
        context=SimpleNamespace(
            world=SimpleNamespace(is_main=True),
            events=SimpleNamespace(emit=lambda name, step, metrics: told.append(metrics)),
        ),
        bare=SimpleNamespace(body=torch.nn.ParameterList([body])),
        _learning=lambda: [variances, body, head],
        plan=SimpleNamespace(ids=("a", "b")),
        state=SimpleNamespace(global_step=1),
    )
    one, other = torch.tensor([5.0, 5.0, 1.0, 0.0, 0.0, 7.0]), torch.tensor([5.0, 5.0, 3.0, 4.0, 0.0, 7.0])
    MultiTaskTrainer._tell_conflicts(trainer, [0, 1], torch.stack([one, other]))
    assert told == [{"cosine_a_b": pytest.approx(0.6)}]


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

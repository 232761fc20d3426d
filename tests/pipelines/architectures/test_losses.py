import math

import pytest
import torch

from pipelines.architectures.layers import (
    PROBLEM_LOSSES,
    binary_cross_entropy,
    cross_entropy,
    mean_squared_error,
    problem_type_of,
)

# Two classes with equal logits: each label costs log 2. The third row's label is ignored.
LOGITS = torch.zeros(3, 2)
LABELS = torch.tensor([0, 1, -100])


def test_without_a_count_cross_entropy_is_the_mean_over_the_labels_asked_for():
    assert cross_entropy(LOGITS, LABELS).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("count", [8, torch.tensor(8)])
def test_with_a_count_cross_entropy_is_the_sum_over_it(count):
    assert cross_entropy(LOGITS, LABELS, count).item() == pytest.approx(2 * math.log(2) / 8)


def test_a_batch_without_labels_costs_nothing_and_has_a_gradient_of_zero():
    logits = torch.zeros(3, 2, requires_grad=True)
    loss = cross_entropy(logits, torch.full((3,), -100))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.eq(0).all()


def test_squared_error_of_distances_one_and_three_is_five_on_average():
    assert mean_squared_error(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 0.0])).item() == 5
    assert mean_squared_error(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]), 20).item() == 0.5


def test_binary_cross_entropy_of_even_odds_is_log_two_a_label():
    assert binary_cross_entropy(torch.zeros(2, 3), torch.ones(2, 3)).item() == pytest.approx(math.log(2))
    assert binary_cross_entropy(torch.zeros(2, 3), torch.ones(2, 3), 12).item() == pytest.approx(math.log(2) / 2)


def test_half_precision_logits_are_summed_in_float32():
    assert cross_entropy(torch.zeros(4096, 2, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.long)).dtype == (
        torch.float32
    )


@pytest.mark.parametrize(
    ("labels", "num_labels", "problem"),
    [
        (torch.tensor([1.5]), 1, "regression"),
        (torch.tensor([1]), 1, "regression"),
        (torch.tensor([1]), 2, "single_label_classification"),
        (torch.tensor([1], dtype=torch.int32), 3, "single_label_classification"),
        (torch.tensor([[1.0, 0.0]]), 2, "multi_label_classification"),
        (torch.tensor([[True, False]]), 2, "multi_label_classification"),
    ],
)
def test_labels_choose_the_problem(labels, num_labels, problem):
    assert problem_type_of(labels, num_labels) == problem


@pytest.mark.parametrize("problem", PROBLEM_LOSSES)
def test_parts_of_a_batch_add_up_to_the_whole(problem):
    """Unequal parts: a mean of means would be wrong."""
    torch.manual_seed(0)
    outputs = 1 if problem == "regression" else 3
    logits = torch.randn(7, outputs)
    labels = {
        "regression": torch.randn(7),
        "single_label_classification": torch.randint(0, 3, (7,)),
        "multi_label_classification": torch.randint(0, 2, (7, 3)).float(),
    }[problem]
    loss = PROBLEM_LOSSES[problem]
    parts = loss(logits[:2], labels[:2], labels.numel()) + loss(logits[2:], labels[2:], labels.numel())
    torch.testing.assert_close(parts, loss(logits, labels))

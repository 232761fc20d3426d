import cmath

import pytest
import torch

from pipelines.architectures.positions import rotate, rotation_at


def turned_as_complex_numbers(states: torch.Tensor, position_ids: torch.Tensor, theta: float) -> torch.Tensor:
    """Equation 12 of the paper, number by number: the pair (a, b) at position m is (a + bi)·e^(i·m·frequency)."""
    batch, heads, length, head_dim = states.shape
    turned = torch.empty(states.shape, dtype=torch.float64)
    for row in range(batch):
        for head in range(heads):
            for place in range(length):
                for pair in range(head_dim // 2):
                    here = (row, head, place, slice(2 * pair, 2 * pair + 2))
                    angle = position_ids[row, place].item() * theta ** (-2 * pair / head_dim)
                    number = complex(*states[here].tolist()) * cmath.exp(1j * angle)
                    turned[here] = torch.tensor([number.real, number.imag], dtype=torch.float64)
    return turned


@pytest.mark.parametrize("theta", [10000.0, 50, 500_000.0])
@pytest.mark.parametrize("head_dim", [2, 6, 16])
def test_each_pair_turns_as_a_complex_number_does(head_dim, theta):
    torch.manual_seed(0)
    states = torch.randn(2, 3, 5, head_dim)
    position_ids = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 40, 7, 11]])
    found = rotate(states, rotation_at(position_ids, head_dim, theta))
    expected = turned_as_complex_numbers(states, position_ids, theta)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


def test_scores_depend_on_the_distance_alone():
    """Equation 16: the same query and key three places apart score the same wherever they stand."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8)
    scores = [
        rotate(query, rotation_at(torch.tensor([[place + 3]]), 8, 10000.0))
        @ rotate(key, rotation_at(torch.tensor([[place]]), 8, 10000.0)).mT
        for place in (0, 1, 17, 400)
    ]
    torch.testing.assert_close(torch.cat(scores), scores[0].expand(4, 1, 1, 1), rtol=0, atol=1e-4)
    nearer = query @ key.mT
    assert (nearer - scores[0]).abs() > 1e-2


def test_positions_may_be_given_once_for_the_whole_batch():
    states = torch.randn(2, 3, 5, 4)
    shared, each = torch.arange(5), torch.arange(5).expand(2, 5)
    assert torch.equal(rotate(states, rotation_at(shared, 4, 100.0)), rotate(states, rotation_at(each, 4, 100.0)))


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16])
def test_bfloat16_states_turn_by_float32_angles_and_are_rounded_once(default):
    """Angles in bfloat16 would put positions 256 and 257 in the same place."""
    states = torch.randn(1, 1, 2, 8).to(torch.bfloat16)
    torch.set_default_dtype(default)
    try:
        rotation = rotation_at(torch.tensor([[256, 257]]), 8, 10000.0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {part.dtype for part in rotation} == {torch.float32}
    found = rotate(states, rotation)
    assert found.dtype == torch.bfloat16
    exact = turned_as_complex_numbers(states.float(), torch.tensor([[256, 257]]), 10000.0)
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-4)

import cmath
import math

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from pipelines.architectures.positions import (
    alibi_bias,
    alibi_slopes,
    relative_bucket,
    rotate,
    rotation_at,
    sinusoidal_table,
)


def test_the_table_is_the_papers_formula():
    """Section 3.5, element by element."""
    expected = torch.zeros(50, 12)
    for position in range(50):
        for pair in range(6):
            angle = position / 10000 ** (2 * pair / 12)
            expected[position, 2 * pair] = math.sin(angle)
            expected[position, 2 * pair + 1] = math.cos(angle)
    torch.testing.assert_close(sinusoidal_table(50, 12), expected, rtol=0, atol=1e-7)


def test_position_zero_is_zeros_and_ones():
    assert sinusoidal_table(1, 6).tolist() == [[0, 1, 0, 1, 0, 1]]


def test_a_fixed_offset_is_the_same_rotation_everywhere():
    """The paper's reason for its choice: PE(pos + k) is linear in PE(pos). Each pair turns by k·frequency."""
    table, offset = sinusoidal_table(40, 8), 5
    for pair in range(4):
        turn = offset / 10000 ** (2 * pair / 8)
        rotation = torch.tensor([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
        waves = table[:, 2 * pair : 2 * pair + 2]
        torch.testing.assert_close(waves[offset:], waves[:-offset] @ rotation.T, rtol=0, atol=1e-6)


def test_far_positions_keep_float32_precision():
    exact = [math.sin(100_000), math.cos(100_000)]
    torch.testing.assert_close(sinusoidal_table(100_001, 4)[-1, :2], torch.tensor(exact), rtol=0, atol=1e-7)


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_compiler_is_given_the_same_numbers_and_gradients(dtype, monkeypatch):
    torch.manual_seed(0)
    states = torch.randn(2, 5, 3 * 8, dtype=dtype)
    weights = torch.randn(2, 3, 5, 8, dtype=dtype)
    rotation = rotation_at(torch.arange(5), 8, 10000.0)

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        leaf = states.clone().requires_grad_()
        turned = rotate(leaf.unflatten(-1, (3, 8)).transpose(1, 2), rotation)
        turned.backward(weights)
        assert turned.dtype == dtype
        assert leaf.grad is not None
        return turned.detach(), leaf.grad

    at_once = both()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for found, expected in zip(at_once, both(), strict=True):
        tolerance = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-7}[dtype]
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_slopes_of_eight_heads_are_the_ones_printed_in_the_paper():
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_slopes_of_sixteen_heads_lie_at_their_geometric_means_too():
    """Section 3: for 16 heads, those of 8 interpolated by geometrically averaging every pair."""
    slopes = alibi_slopes(16)
    assert slopes[1::2] == pytest.approx(alibi_slopes(8))
    assert slopes[0] == pytest.approx(2**-0.5)


def test_slopes_of_twelve_heads_are_those_of_eight_and_every_second_of_sixteen():
    assert alibi_slopes(12) == pytest.approx([*alibi_slopes(8), *alibi_slopes(16)[0:8:2]])


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 7, 12, 25])
def test_every_number_of_heads_has_as_many_different_slopes_between_zero_and_one(heads):
    slopes = alibi_slopes(heads)
    assert len(set(slopes)) == heads
    assert all(0 < slope < 1 for slope in slopes)


def test_scores_fall_in_proportion_to_the_distance_on_both_sides():
    distance = torch.arange(4)[None, None, :] - torch.arange(4)[None, :, None]
    bias = alibi_bias(4, distance)
    for head, slope in enumerate([1 / 4, 1 / 16, 1 / 64, 1 / 256]):
        for query in range(4):
            for key in range(4):
                assert bias[0, head, query, key].item() == -slope * abs(query - key)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 16), (4, 3), (10, 40)])
def test_buckets_are_those_of_t5(bidirectional, buckets, farthest):
    distance = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(distance, bidirectional, buckets, farthest)
    assert torch.equal(relative_bucket(distance, bidirectional, buckets, farthest), theirs)


def test_near_distances_have_a_bucket_each_and_far_ones_share_the_last():
    """32 buckets for what lies before: 0 to 15 alone, then ranges that grow to 128, as section 2.1 says."""
    bucket = relative_bucket(-torch.arange(0, 1000), False, 32, 128)
    assert bucket[:16].tolist() == list(range(16))
    assert bucket[128:].eq(31).all()
    assert (bucket.diff() >= 0).all()
    # 16 more for a factor of 128 / 16 = 2^3: a doubling is 16 / 3 buckets
    assert bucket[[16, 32, 64, 127]].tolist() == [16, 21, 26, 31]


def test_what_lies_behind_has_its_own_half_in_an_encoder_and_no_bucket_in_a_decoder():
    behind = torch.arange(1, 200)
    assert relative_bucket(behind, True, 32, 128).ge(16).all()
    assert relative_bucket(-behind, True, 32, 128).lt(16).all()
    assert relative_bucket(behind, False, 32, 128).eq(0).all()

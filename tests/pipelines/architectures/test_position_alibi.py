import pytest
import torch

from pipelines.architectures.positions import alibi_bias, alibi_slopes


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

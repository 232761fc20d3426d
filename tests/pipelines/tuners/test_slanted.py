"""The slanted triangle is equation 3 of Howard and Ruder 2018."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from pipelines.tuners.full import SlantedTriangular


def equation_three(t: int, total: int, cut_frac: float = 0.1, ratio: float = 32) -> float:
    """As printed, divided by the largest rate."""
    cut = math.floor(total * cut_frac)
    p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
    return (1 + p * (ratio - 1)) / ratio


@pytest.mark.parametrize(("total", "cut_frac", "ratio"), [(100, 0.1, 32), (40, 0.25, 8), (2000, 0.1, 32)])
def test_it_is_the_equation_where_the_cut_is_whole(total: int, cut_frac: float, ratio: float) -> None:
    schedule = SlantedTriangular(cut_frac=cut_frac, ratio=ratio)
    found = [schedule.factor(step, total) for step in range(total)]
    assert found == pytest.approx([equation_three(step, total, cut_frac, ratio) for step in range(total)])


def test_the_numbers_by_hand() -> None:
    """200 steps: up over 20, down over 180, between 1/32 and 1."""
    factor = SlantedTriangular().factor
    assert factor(0, 200) == 1 / 32
    assert factor(10, 200) == (1 + 0.5 * 31) / 32
    assert factor(20, 200) == 1
    assert factor(110, 200) == (1 + 0.5 * 31) / 32
    assert factor(200, 200) == 1 / 32


@pytest.mark.parametrize("total", [1, 2, 3, 9, 19, 29, 101])
def test_the_rates_fall_to_the_end_and_never_below_the_smallest(total: int) -> None:
    found = [SlantedTriangular().factor(step, total) for step in range(total)]
    assert all(1 / 32 <= each <= 1 for each in found)
    top = found.index(max(found))
    assert all(later < earlier for earlier, later in zip(found[top:], found[top + 1 :], strict=False))
    assert min(equation_three(step, 19) for step in range(19)) < 0  # as printed, with a cut that is not whole


@pytest.mark.parametrize("words", [{"cut_frac": 0.0}, {"cut_frac": 1.0}, {"ratio": 1.0}])
def test_a_triangle_without_a_side_is_refused(words: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SlantedTriangular(**words)

"""Pearson's and Spearman's correlations are those of scipy, and of arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.metrics.correlation import Pearson, Spearmanr


@given(
    st.lists(
        st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False)),
        min_size=1,
        max_size=20,
    )
)
def test_is_always_a_number_between_minus_one_and_one(pairs):
    predictions, references = np.array(pairs).T
    assert -1 <= Pearson().compute(predictions, references)["pearson"] <= 1


def test_tiny_and_huge_numbers_keep_their_correlation():
    for scale in (1e-300, 1e300):
        assert Pearson().compute(np.array([1, 2, 3]) * scale, [1, 3, 2])["pearson"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("predictions", "references"), [([0.1] * 3, [1, 2, 3]), ([1, 2, 3], [0.3] * 3), ([1.0], [2.0])]
)
def test_constants_correlate_with_nothing(predictions, references):
    assert Pearson().compute(predictions, references) == {"pearson": 0.0}


@pytest.mark.parametrize(
    ("predictions", "references"), [([2, 2, 2], [1, 2, 3]), ([1, 2, 3], [5, 5, 5]), ([1.0], [2.0])]
)
def test_constants_have_no_ranks_to_correlate(predictions, references):
    assert Spearmanr().compute(predictions, references) == {"spearmanr": 0.0}


def test_by_hand():
    # centred: (-1, 0, 1) and (-1, 1, 0): 1 / √(2·2)
    assert Pearson().compute([1, 2, 3], [1, 3, 2])["pearson"] == pytest.approx(0.5)


def test_by_hand_of_ranks():
    # ranks (1, 2, 3, 4) and (1, 2, 4, 3): 1 - 6·2 / (4·15)
    assert Spearmanr().compute([10, 20, 30, 1000], [0.1, 0.2, 0.9, 0.8])["spearmanr"] == pytest.approx(0.8)

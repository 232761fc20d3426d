import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import pearsonr

from pipelines.metrics.pearson import compute

numbers = st.floats(-1000, 1000, allow_nan=False, width=32)
pairs = st.lists(st.tuples(numbers, numbers), min_size=3, max_size=60)


def test_by_hand():
    # centred: (-1, 0, 1) and (-1, 1, 0): 1 / √(2·2)
    assert compute([1, 2, 3], [1, 3, 2])["pearson"] == pytest.approx(0.5)


@given(pairs)
def test_equals_scipy(pairs):
    predictions, references = np.array(pairs).T
    assume(predictions.std() > 1e-3 * (1 + abs(predictions).max()))  # nearer to a constant, both lose their digits
    assume(references.std() > 1e-3 * (1 + abs(references).max()))
    assert compute(predictions, references)["pearson"] == pytest.approx(pearsonr(predictions, references)[0], abs=1e-9)


@given(
    st.lists(
        st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False)),
        min_size=1,
        max_size=20,
    )
)
def test_is_always_a_number_between_minus_one_and_one(pairs):
    predictions, references = np.array(pairs).T
    assert -1 <= compute(predictions, references)["pearson"] <= 1


def test_tiny_and_huge_numbers_keep_their_correlation():
    for scale in (1e-300, 1e300):
        assert compute(np.array([1, 2, 3]) * scale, [1, 3, 2])["pearson"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("predictions", "references"), [([0.1] * 3, [1, 2, 3]), ([1, 2, 3], [0.3] * 3), ([1.0], [2.0])]
)
def test_constants_correlate_with_nothing(predictions, references):
    assert compute(predictions, references) == {"pearson": 0.0}

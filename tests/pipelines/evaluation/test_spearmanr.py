import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from pipelines.metrics.spearmanr import compute, ranks

few = st.integers(-4, 4)  # so that there are ties
pairs = st.lists(st.tuples(few, few), min_size=3, max_size=60)


def test_by_hand():
    # ranks (1, 2, 3, 4) and (1, 2, 4, 3): 1 - 6·2 / (4·15)
    assert compute([10, 20, 30, 1000], [0.1, 0.2, 0.9, 0.8])["spearmanr"] == pytest.approx(0.8)


def test_ties_share_the_mean_of_their_ranks():
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0, 3.0])).tolist() == [4, 1, 4, 2, 4]


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=60))
def test_ranks_equal_scipys(values):
    assert ranks(np.array(values)).tolist() == rankdata(values).tolist()


@given(pairs)
def test_equals_scipy(pairs):
    predictions, references = np.array(pairs).T
    assume(len(set(predictions.tolist())) > 1 and len(set(references.tolist())) > 1)
    assert compute(predictions, references)["spearmanr"] == pytest.approx(
        spearmanr(predictions, references)[0], abs=1e-12
    )


@pytest.mark.parametrize(
    ("predictions", "references"), [([2, 2, 2], [1, 2, 3]), ([1, 2, 3], [5, 5, 5]), ([1.0], [2.0])]
)
def test_constants_correlate_with_nothing(predictions, references):
    assert compute(predictions, references) == {"spearmanr": 0.0}

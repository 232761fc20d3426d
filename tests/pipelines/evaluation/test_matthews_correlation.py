import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import matthews_corrcoef

from pipelines.metrics.matthews_correlation import compute

pairs = st.integers(2, 6).flatmap(
    lambda classes: st.lists(
        st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=60
    )
)


def test_by_hand():
    # 3 true positives, 2 true negatives, 1 false positive, 2 false negatives: (3·2 - 1·2) / √(4·5·3·4)
    predictions, references = [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 1, 1]
    assert compute(predictions, references)["matthews_correlation"] == pytest.approx(4 / 240**0.5)


@given(pairs)
def test_equals_scikit_learn(pairs):
    predictions, references = np.array(pairs).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = matthews_corrcoef(references, predictions)
    assert compute(predictions, references)["matthews_correlation"] == pytest.approx(expected, abs=1e-12)


def test_large_counts_do_not_overflow():
    random = np.random.default_rng(0)
    references = random.integers(0, 2, 400_000)
    predictions = np.where(random.random(400_000) < 0.8, references, 1 - references)
    expected = matthews_corrcoef(references, predictions)
    assert compute(predictions, references, classes=2)["matthews_correlation"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("predictions", "references"), [([1, 1, 1], [0, 1, 1]), ([0, 1, 1], [1, 1, 1]), ([0], [0])])
def test_constants_correlate_with_nothing(predictions, references):
    assert compute(predictions, references) == {"matthews_correlation": 0.0}

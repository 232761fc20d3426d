import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix

from pipelines.metrics.base import confusion


def test_rows_are_the_true_classes():
    counts = confusion(np.array([1, 1, 0]), np.array([0, 1, 0]), 2)
    assert counts.tolist() == [[1, 1], [0, 1]]


@given(st.lists(st.tuples(st.integers(-3, 9), st.integers(-3, 9)), min_size=1, max_size=50))
def test_found_classes_equal_scikit_learns(pairs):
    predictions, references = np.array(pairs).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a single class
        expected = confusion_matrix(references, predictions)
    assert confusion(predictions, references).tolist() == expected.tolist()


@pytest.mark.parametrize("strange", [-1, 3])
def test_other_ids_are_refused(strange):
    with pytest.raises(ValueError, match="outside 0 … 2"):
        confusion(np.array([0, strange]), np.array([0, 1]), 3)

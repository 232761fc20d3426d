import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from pipelines.metrics.f1 import compute


def labels(classes: int):
    return st.lists(st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=60)


def reference(references, predictions, average: str) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it is 0 / 0, scikit-learn says so and gives 0
        return f1_score(references, predictions, average=average)


def test_binary_by_hand():
    # class 1: one hit, one false alarm, two misses: precision 1/2, recall 1/3, F1 2/5
    assert compute([1, 1, 0, 0, 0], [1, 0, 1, 1, 0])["f1"] == pytest.approx(0.4)


def test_macro_by_hand():
    # class 0: 2·1/(1+2) = 2/3; class 1: 2·1/(2+1) = 2/3; class 2: 2·1/(1+1) = 1
    assert compute([0, 1, 1, 2], [0, 0, 1, 2], classes=3)["f1"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


@given(labels(2))
def test_two_classes_equal_scikit_learns_binary(pairs):
    predictions, references = np.array(pairs).T
    expected = reference(references, predictions, "binary")
    assert compute(predictions, references, classes=2)["f1"] == pytest.approx(expected, abs=1e-12)
    assert compute(predictions, references)["f1"] == pytest.approx(expected, abs=1e-12)


@given(st.integers(3, 7).flatmap(lambda classes: st.tuples(st.just(classes), labels(classes))))
def test_more_classes_equal_scikit_learns_macro(case):
    classes, pairs = case
    predictions, references = np.array(pairs).T
    expected = reference(references, predictions, "macro")
    assert compute(predictions, references, classes=classes)["f1"] == pytest.approx(expected, abs=1e-12)


def test_nothing_positive_is_zero_not_nan():
    assert compute([0, 0], [0, 0]) == {"f1": 0.0}


def test_an_unknown_class_is_refused():
    with pytest.raises(ValueError, match="outside 0 … 1"):
        compute([0, 2], [0, 1], classes=2)

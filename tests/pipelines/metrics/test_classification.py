"""Accuracy, F1, Matthews' correlation and the confusion matrix are those of scikit-learn, and of arithmetic by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, matthews_corrcoef

from pipelines.metrics.classification import F1, Accuracy, MatthewsCorrelation, confusion


def test_binary_by_hand():
    # class 1: one hit, one false alarm, two misses: precision 1/2, recall 1/3, F1 2/5
    assert F1().compute([1, 1, 0, 0, 0], [1, 0, 1, 1, 0])["f1"] == pytest.approx(0.4)


def test_macro_by_hand():
    # class 0: 2·1/(1+2) = 2/3; class 1: 2·1/(2+1) = 2/3; class 2: 2·1/(1+1) = 1
    assert F1().compute([0, 1, 1, 2], [0, 0, 1, 2], classes=3)["f1"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_nothing_positive_is_zero_not_nan():
    assert F1().compute([0, 0], [0, 0]) == {"f1": 0.0}


def test_an_unknown_class_is_refused():
    with pytest.raises(ValueError, match="outside 0 … 1"):
        F1().compute([0, 2], [0, 1], classes=2)


def test_matthews_by_hand():
    # 3 true positives, 2 true negatives, 1 false positive, 2 false negatives: (3·2 - 1·2) / √(4·5·3·4)
    predictions, references = [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 1, 1]
    assert MatthewsCorrelation().compute(predictions, references)["matthews_correlation"] == pytest.approx(4 / 240**0.5)


def test_large_counts_do_not_overflow():
    random = np.random.default_rng(0)
    references = random.integers(0, 2, 400_000)
    predictions = np.where(random.random(400_000) < 0.8, references, 1 - references)
    expected = matthews_corrcoef(references, predictions)
    assert MatthewsCorrelation().compute(predictions, references, classes=2)["matthews_correlation"] == pytest.approx(
        expected, abs=1e-12
    )


@pytest.mark.parametrize(("predictions", "references"), [([1, 1, 1], [0, 1, 1]), ([0, 1, 1], [1, 1, 1]), ([0], [0])])
def test_constants_correlate_with_nothing(predictions, references):
    assert MatthewsCorrelation().compute(predictions, references) == {"matthews_correlation": 0.0}


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


def test_three_of_four_are_right():
    assert Accuracy().compute([0, 1, 2, 2], [0, 1, 2, 1]) == {"accuracy": 0.75}


def test_the_result_is_a_plain_float():
    assert type(Accuracy().compute([1], [1])["accuracy"]) is float

"""What metrics are given is checked once: lists of one length, finite, not empty, and of the right kind."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.metrics.base import paired_labels, paired_numbers, paired_texts


def test_whole_floats_are_class_ids():
    predicted, true = paired_labels([1.0, 0.0], [True, False])
    assert predicted.tolist() == [1, 0]
    assert true.tolist() == [1, 0]
    assert predicted.dtype == true.dtype == np.int64


def test_numbers_are_read_in_double_precision():
    predicted, true = paired_numbers(np.array([0.5], dtype=np.float32), [1])
    assert predicted.dtype == true.dtype == np.float64


@pytest.mark.parametrize(
    ("predictions", "references", "sentence"),
    [
        ([1, 0], [1], "lists of one length"),
        ([[1, 0]], [[1, 0]], "lists of one length"),
        ([], [], "no example"),
        ([0.5], [1], "whole numbers"),
        (["a"], [1], "must be numbers"),
        ([float("nan")], [1], "finite"),
        ([1], [float("inf")], "finite"),
    ],
)
def test_what_cannot_be_scored_is_refused(predictions, references, sentence):
    with pytest.raises(ValueError, match=sentence):
        paired_labels(predictions, references)


def test_arrays_and_lists_are_taken():
    assert paired_texts(np.asarray(["a"], dtype=object), ["b"]) == (["a"], ["b"])


@pytest.mark.parametrize(
    ("written", "true", "why"),
    [
        (["a"], ["a", "b"], "as many, found 1 and 2"),
        ([], [], "no example"),
        ([1], ["a"], "predictions must be texts, found int"),
        (["a"], [None], "references must be texts"),
    ],
)
def test_what_cannot_be_scored_is_refused_of_texts(written, true, why):
    with pytest.raises(ValueError, match=why):
        paired_texts(written, true)

"""Predictions as people read them, for kinds that bring no words of their own."""

from __future__ import annotations

import numpy as np

from pipelines.evaluation.prediction_tables import columns_of
from pipelines.tasks.preference.evaluation import PairPredictions
from tests.pipelines.tasks.preference.test_pairs import rows


def test_a_kind_without_words_of_its_own_shows_what_its_predictions_hold():
    pairs = rows(("the cat", " runs", " sleeps on it"), ("a dog", " is", " is bad"))
    scores = np.array([[2.0, 1.0], [0.0, 1.0]], dtype=np.float32)
    predictions = PairPredictions("p", "test", "", pairs, scores)
    columns = columns_of(predictions, None)
    assert columns["prediction"] == [0, 1]
    assert columns["score_chosen"] == [2.0, 0.0]
    assert columns["index"] == [10, 11]
    assert "benchmark" not in columns

from __future__ import annotations

import math

import numpy as np
import pytest

from pipelines.metrics.calibration import calibration
from pipelines.tasks.preference import scores as pair_scores


def test_accuracy_counts_ties_half():
    assert pair_scores.accuracy([[2.0, 1.0], [0.0, 3.0], [1.0, 1.0], [5.0, -5.0]]) == 2.5 / 4


def test_likelihood_is_that_of_bradley_and_terry():
    scores = [[1.0, 0.0], [-2.0, 1.0]]
    expected = -sum(math.log(1 / (1 + math.exp(-(one - other)))) for one, other in scores) / 2
    assert pair_scores.negative_log_likelihood(scores) == pytest.approx(expected)
    assert pair_scores.negative_log_likelihood([[0.0, 1000.0]]) == pytest.approx(1000.0)


def test_calibration_is_that_of_a_classifier_of_the_two_sides():
    scores = np.random.default_rng(3).normal(size=(200, 2)) * 2
    assert pair_scores.calibration_error(scores) == pytest.approx(calibration(scores, np.zeros(200, dtype=int))["ece"])


def test_every_answer_is_in_the_histogram():
    scores = np.random.default_rng(4).normal(size=(50, 2))
    found = pair_scores.histogram(scores, 7)
    assert (len(found["edges"]), sum(found["chosen"]), sum(found["rejected"])) == (8, 50, 50)
    assert sum(pair_scores.histogram([[1.0, 1.0]])["chosen"]) == 1

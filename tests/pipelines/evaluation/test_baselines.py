import numpy as np
import pytest

from pipelines.core.interfaces import Rows
from pipelines.evaluation.baselines import score_baselines

TRAIN = Rows(["good film", "fine film", "bad film"], None, [1, 1, 0], [0, 1, 2])
FIRST = Rows(["good", "bad"], None, [1, 0], [0, 1])
SECOND = Rows(["bad", "bad", "fine", "good"], None, [0, 0, 1, 0], [0, 1, 2, 3])


def accuracy(logits, labels):
    return {"accuracy": float(np.mean(logits.argmax(axis=1) == np.asarray(labels)))}


def test_every_split_is_guessed_under_its_own_metric_names():
    scores, skipped = score_baselines(["majority", "naive_bayes"], accuracy, 2, TRAIN, {"": FIRST, "_mm": SECOND})
    assert skipped == {}
    assert scores == {
        "majority": {"accuracy": 0.5, "accuracy_mm": 0.25},
        "naive_bayes": {"accuracy": 1.0, "accuracy_mm": 0.75},
    }


def test_what_makes_no_sense_is_skipped_with_the_reason():
    numbers = Rows(["a"], None, [0.5], [0])
    scores, skipped = score_baselines(["majority", "naive_bayes"], accuracy, 1, numbers, {"": numbers})
    assert scores == {}
    assert list(skipped) == ["majority", "naive_bayes"]
    assert "numbers" in skipped["majority"]


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="Did you mean 'majority'"):
        score_baselines(["majorty"], accuracy, 2, TRAIN, {"": FIRST})

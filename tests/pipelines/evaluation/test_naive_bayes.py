import math

import numpy as np
import pytest

from pipelines.core.interfaces import Rows
from pipelines.evaluation.baselines import NotDefined, naive_bayes


def rows(texts, labels=None, pairs=None):
    return Rows(texts, pairs, labels, list(range(len(texts))))


def test_by_hand():
    # vocabulary {bad, good}; class 0: bad bad good, class 1: good; add-one smoothing over two words
    train = rows(["bad bad", "good", "good"], [0, 0, 1])
    scores = naive_bayes(train, rows(["bad", "Good good", "unseen"]), outputs=2)
    prior = [math.log(2 / 3), math.log(1 / 3)]
    bad, good = [math.log(3 / 5), math.log(1 / 3)], [math.log(2 / 5), math.log(2 / 3)]
    expected = [[prior[c] + bad[c] for c in (0, 1)], [prior[c] + 2 * good[c] for c in (0, 1)], prior]
    np.testing.assert_allclose(scores, expected, rtol=1e-9)


def test_words_of_one_letter_and_of_the_second_text_count():
    train = rows(["x", "x"], [0, 1], pairs=["a", "i"])
    assert naive_bayes(train, rows(["x", "x"], pairs=["i", "a"]), outputs=2).argmax(axis=1).tolist() == [1, 0]


def test_a_class_without_training_rows_is_never_guessed():
    scores = naive_bayes(rows(["good", "bad"], [0, 2]), rows(["good", "bad"]), outputs=4)
    assert np.isfinite(scores).all()
    assert scores.argmax(axis=1).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("texts", "labels", "outputs"), [(["a"], [0.5], 1), (["a"], None, 2), ([], [], 2), (["!", "?"], [0, 1], 2)]
)
def test_it_says_where_it_makes_no_sense(texts, labels, outputs):
    with pytest.raises(NotDefined):
        naive_bayes(rows(texts, labels), rows(["a"]), outputs)


def test_it_reads_sentiment_from_words(mirror, monkeypatch):
    monkeypatch.setenv("FINERY_DATA", str(mirror))
    from pipelines.core.registry import TASKS

    SST2 = TASKS.load("glue/sst2")
    from pipelines.tasks.scoring import score

    validation = SST2.rows("validation")
    scores = score(SST2)(naive_bayes(SST2.rows("train", 20_000), validation, 2), validation.labels)
    assert 0.75 < scores["accuracy"] < 0.85

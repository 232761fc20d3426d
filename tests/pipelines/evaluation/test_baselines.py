"""Baselines without a network, by hand on a few rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipelines.core.interfaces import Rows
from pipelines.evaluation.baselines import (
    NotDefined,
    copy_source,
    longer,
    majority,
    majority_by_word,
    naive_bayes,
    score_baselines,
    shorter,
)
from pipelines.tasks.token_classification.task import WordRows
from tests.pipelines.tasks.preference.test_pairs import rows as pairs_of_answers

TRAIN = Rows(["good film", "fine film", "bad film"], None, [1, 1, 0], [0, 1, 2])
FIRST = Rows(["good", "bad"], None, [1, 0], [0, 1])
SECOND = Rows(["bad", "bad", "fine", "good"], None, [0, 0, 1, 0], [0, 1, 2, 3])


def accuracy(logits, labels):
    return {"accuracy": float(np.mean(logits.argmax(axis=1) == np.asarray(labels)))}


def test_every_split_is_guessed_under_its_own_metric_names():
    found = score_baselines(["majority", "naive_bayes"], accuracy, 2, TRAIN, {"": FIRST, "_mm": SECOND})
    assert found.skipped == {}
    assert found.scores == {
        "majority": {"accuracy": 0.5, "accuracy_mm": 0.25},
        "naive_bayes": {"accuracy": 1.0, "accuracy_mm": 0.75},
    }


def test_what_makes_no_sense_is_skipped_with_the_reason():
    numbers = Rows(["a"], None, [0.5], [0])
    found = score_baselines(["majority", "naive_bayes"], accuracy, 1, numbers, {"": numbers})
    assert found.scores == found.answers == {}
    assert list(found.skipped) == ["majority", "naive_bayes"]
    assert "numbers" in found.skipped["majority"]


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="Did you mean 'majority'"):
        score_baselines(["majorty"], accuracy, 2, TRAIN, {"": FIRST})


def labelled(count: int, labels):
    return Rows(["text"] * count, None, labels, list(range(count)))


def test_the_most_frequent_training_class_is_guessed_for_everything():
    scores = majority(labelled(4, [2, 0, 2, 1]), labelled(3, [0, 0, 0]), outputs=4)
    assert scores.tolist() == [[0.25, 0.25, 0.5, 0.0]] * 3
    assert scores.argmax(axis=1).tolist() == [2, 2, 2]


def test_numbers_have_no_majority():
    with pytest.raises(NotDefined, match="no most frequent class"):
        majority(labelled(2, [0.5, 1.5]), labelled(1, [1.0]), outputs=1)


def test_the_majority_of_mrpc_by_hand(mirror, monkeypatch):
    # 2,474 of 3,668 training pairs are paraphrases; so are 279 of the 408 for validation: F1 = 2·279 / (408 + 279)
    monkeypatch.setenv("FINERY_DATA", str(mirror))
    from pipelines.core.registry import TASKS

    MRPC = TASKS.load("glue/mrpc")
    from pipelines.tasks.scoring import score

    train, validation = MRPC.rows("train"), MRPC.rows("validation")
    scores = score(MRPC)(majority(train, validation, 2), validation.labels)
    assert scores == pytest.approx({"accuracy": 279 / 408, "f1": 558 / 687})


def tagged(*texts: str, tags: list[list[int]] | None = None) -> WordRows:
    return WordRows(list(texts), None, tags, range(len(texts)), [text.split() for text in texts])


TAGGED = tagged("a b a", "a c", tags=[[1, 2, 1], [0, 2]])


def test_known_words_get_their_own_tag_and_others_the_most_frequent_of_all():
    # a: 1 twice, 0 once; b: 2; c: 2. Of all tags 1 and 2 are twice: the smaller wins
    guesses = majority_by_word(TAGGED, tagged("c a", "z"), 1)
    assert [guess.tolist() for guess in guesses] == [[2, 1], [1]]


def test_it_is_not_defined_where_there_are_no_words_or_no_tags():
    with pytest.raises(NotDefined, match="only words with a tag each"):
        majority_by_word(Rows(["a"], None, [0], [0]), tagged("a"), 2)
    with pytest.raises(NotDefined, match="no tags to count"):
        majority_by_word(tagged("a"), tagged("a"), 1)


def texts_of(texts, labels=None, pairs=None):
    return Rows(texts, pairs, labels, list(range(len(texts))))


def test_naive_bayes_by_hand():
    # vocabulary {bad, good}; class 0: bad bad good, class 1: good; add-one smoothing over two words
    train = texts_of(["bad bad", "good", "good"], [0, 0, 1])
    scores = naive_bayes(train, texts_of(["bad", "Good good", "unseen"]), outputs=2)
    prior = [math.log(2 / 3), math.log(1 / 3)]
    bad, good = [math.log(3 / 5), math.log(1 / 3)], [math.log(2 / 5), math.log(2 / 3)]
    expected = [[prior[c] + bad[c] for c in (0, 1)], [prior[c] + 2 * good[c] for c in (0, 1)], prior]
    np.testing.assert_allclose(scores, expected, rtol=1e-9)


def test_words_of_one_letter_and_of_the_second_text_count():
    train = texts_of(["x", "x"], [0, 1], pairs=["a", "i"])
    assert naive_bayes(train, texts_of(["x", "x"], pairs=["i", "a"]), outputs=2).argmax(axis=1).tolist() == [1, 0]


def test_a_class_without_training_rows_is_never_guessed():
    scores = naive_bayes(texts_of(["good", "bad"], [0, 2]), texts_of(["good", "bad"]), outputs=4)
    assert np.isfinite(scores).all()
    assert scores.argmax(axis=1).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("texts", "labels", "outputs"), [(["a"], [0.5], 1), (["a"], None, 2), ([], [], 2), (["!", "?"], [0, 1], 2)]
)
def test_it_says_where_it_makes_no_sense(texts, labels, outputs):
    with pytest.raises(NotDefined):
        naive_bayes(texts_of(texts, labels), texts_of(["a"]), outputs)


def test_it_reads_sentiment_from_words(mirror, monkeypatch):
    monkeypatch.setenv("FINERY_DATA", str(mirror))
    from pipelines.core.registry import TASKS

    SST2 = TASKS.load("glue/sst2")
    from pipelines.tasks.scoring import score

    validation = SST2.rows("validation")
    scores = score(SST2)(naive_bayes(SST2.rows("train", 20_000), validation, 2), validation.labels)
    assert 0.75 < scores["accuracy"] < 0.85


def test_the_source_is_the_answer():
    train = Rows(["a"], None, ["ein"], [0])
    assert copy_source(train, Rows(["a dog", "two"], None, ["x", "y"], [0, 1]), 1).tolist() == ["a dog", "two"]


@pytest.mark.parametrize("labels", [[1], [0.5], None, []])
def test_classes_and_numbers_have_nothing_to_copy(labels):
    with pytest.raises(NotDefined, match="only a text that is to become another text"):
        copy_source(Rows(["a"], None, labels, [0]), Rows(["a"], None, None, [0]), 2)


def test_lengths_are_counted_in_letters_and_the_two_guessers_are_opposites():
    pairs = pairs_of_answers(("the cat", " runs", " sleeps on it"), ("a dog", " is", " is bad"))
    assert longer(None, pairs, 1).tolist() == [[5.0, 13.0], [3.0, 7.0]]
    assert (shorter(None, pairs, 1) == -longer(None, pairs, 1)).all()

"""What every guesser in the BASELINES table must do."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from pipelines.core.interfaces import Rows
from pipelines.core.registry import BASELINES
from pipelines.evaluation.baselines import NotDefined

TRAIN = Rows(
    ["good film", "a bad film", "very good", "dull", "the dog runs"],
    ["x", "y", "x y", "z", "x"],
    [1, 0, 1, 2, 1],
    range(5),
)
TEXTS = ("copy_source",)
"""Guessers that answer with texts."""
TAGS = ("majority_by_word",)
"""Guessers that answer with a tag a word: tested in test_majority_by_word.py."""
ANSWERS = ("longer", "shorter")
"""Guessers that prefer one of two answers: tested in test_answer_length.py."""
CLASSES = [name for name in BASELINES if name not in (*TEXTS, *TAGS, *ANSWERS)]
ASKED = Rows(["good", "bad", "dull dull"], ["x", "y", "z"], [1, 0, 2], range(3))


@pytest.mark.parametrize("name", CLASSES)
def test_one_finite_score_for_each_example_and_class(name):
    scores = BASELINES.load(name)(TRAIN, ASKED, 3)
    assert scores.shape == (3, 3)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("name", CLASSES)
def test_the_answers_are_not_looked_at(name):
    guess = BASELINES.load(name)
    expected = guess(TRAIN, ASKED, 3)
    np.testing.assert_array_equal(guess(TRAIN, replace(ASKED, labels=[2, 2, 0]), 3), expected)
    np.testing.assert_array_equal(guess(TRAIN, replace(ASKED, labels=None), 3), expected)


@pytest.mark.parametrize("name", CLASSES)
def test_the_guess_depends_on_the_training_labels(name):
    guess = BASELINES.load(name)
    turned = guess(replace(TRAIN, labels=[0, 1, 0, 2, 0]), ASKED, 3)
    assert guess(TRAIN, ASKED, 3).argmax(axis=1)[0] == 1
    assert turned.argmax(axis=1)[0] == 0


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_that_was_never_seen_is_never_guessed(name):
    assert BASELINES.load(name)(TRAIN, ASKED, 5).argmax(axis=1).max() < 3


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize(
    ("train", "outputs"),
    [(replace(TRAIN, labels=[0.5] * 5), 1), (replace(TRAIN, labels=None), 3), (Rows([], [], [], []), 3)],
)
def test_it_says_where_it_makes_no_sense(name, train, outputs):
    with pytest.raises(NotDefined):
        BASELINES.load(name)(train, ASKED, outputs)


@pytest.mark.parametrize("name", TEXTS)
def test_one_text_for_each_example_and_the_answers_are_not_looked_at(name):
    train = replace(TRAIN, pairs=None, labels=["ein", "zwei", "drei", "vier", "fünf"])
    asked = replace(ASKED, pairs=None, labels=["x", "y", "z"])
    texts = BASELINES.load(name)(train, asked, 1)
    assert texts.shape == (3,)
    assert all(isinstance(text, str) for text in texts)
    np.testing.assert_array_equal(BASELINES.load(name)(train, replace(asked, labels=None), 1), texts)


@pytest.mark.parametrize("name", CLASSES)
def test_guessers_of_classes_say_that_texts_have_none(name):
    train = replace(TRAIN, pairs=None, labels=["ein", "zwei", "drei", "vier", "fünf"])
    with pytest.raises(NotDefined, match="texts"):
        BASELINES.load(name)(train, ASKED, 1)


def test_naming_them_costs_nothing():
    code = "import sys, pipelines.evaluation.evaluate; assert not {'numpy', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

"""What every guesser in the BASELINES table must do."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from pipelines.core.interfaces import Rows
from pipelines.core.registry import BASELINES
from pipelines.evaluation.baselines import NotDefined
from pipelines.tasks.token_classification.task import WordRows
from tests.pipelines.tasks.preference.test_pairs import rows as pairs

TRAIN = Rows(
    ["good film", "a bad film", "very good", "dull", "the dog runs"],
    ["x", "y", "x y", "z", "x"],
    [1, 0, 1, 2, 1],
    range(5),
)
ASKED = Rows(["good", "bad", "dull dull"], ["x", "y", "z"], [1, 0, 2], range(3))
WORDS = WordRows(["the dog", "a dog"], None, [[0, 1], [0, 1]], range(2), [["the", "dog"], ["a", "dog"]])
WRITTEN = ["ein", "zwei", "drei", "vier", "fünf"]
PAIRS = pairs(("the cat", " runs", " sleeps on it"), ("a dog", " is", " is bad"))
ROWS = {
    "classes": (TRAIN, ASKED, 3),
    "texts": (replace(TRAIN, pairs=None, labels=WRITTEN), replace(ASKED, pairs=None, labels=["x", "y", "z"]), 1),
    "tags": (WORDS, WORDS, 1),
    "preferences": (PAIRS, PAIRS, 2),
}
"""By kind of answers: the rows to learn from, those to guess, and how many classes there are."""


def defined(name, kind):
    """Whether a guesser makes sense of such rows."""
    try:
        BASELINES.load(name)(*ROWS[kind])
    except NotDefined:
        return False
    return True


CLASSES = [name for name in BASELINES if defined(name, "classes")]
EVERY = [(name, kind) for name in BASELINES for kind in ROWS if defined(name, kind)]


def test_every_guesser_guesses_something():
    assert {name for name, _ in EVERY} == set(BASELINES)


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_one_guess_for_each_example_and_the_answers_are_not_looked_at(name, kind):
    train, asked, outputs = ROWS[kind]
    guesses = BASELINES.load(name)(train, asked, outputs)
    assert len(guesses) == len(asked)
    if kind == "texts":
        assert all(isinstance(text, str) for text in guesses)
    elif kind == "tags":
        assert [len(tags) for tags in guesses] == [len(words) for words in asked.words]
    else:
        assert guesses.shape == (len(asked), outputs)
        assert np.isfinite(guesses).all()
    if kind != "preferences":  # whose labels say nothing: the first answer is the better one
        hidden = BASELINES.load(name)(train, replace(asked, labels=None), outputs)
        assert [np.array_equal(one, other) for one, other in zip(hidden, guesses, strict=True)] == [True] * len(asked)


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


@pytest.mark.parametrize("name", CLASSES)
def test_guessers_of_classes_say_that_texts_have_none(name):
    train = replace(TRAIN, pairs=None, labels=["ein", "zwei", "drei", "vier", "fünf"])
    with pytest.raises(NotDefined, match="texts"):
        BASELINES.load(name)(train, ASKED, 1)


def test_naming_them_costs_nothing():
    code = "import sys, pipelines.evaluation.evaluate; assert not {'numpy', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

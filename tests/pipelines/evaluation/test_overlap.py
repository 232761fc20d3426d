import re
from types import SimpleNamespace

import numpy as np

from pipelines.core.interfaces import Rows
from pipelines.evaluation.contamination import Examined, answers_of, fields_of, run_length
from pipelines.tasks.multiple_choice.task import ChoiceRows

LONG = "it was the best of times it was the worst of times it was the age of wisdom it was the age of foolishness"


def test_the_length_of_a_run_is_gpt3s():
    # the 5th percentile of the lengths, between 8 and 13
    assert run_length(np.full(100, 50)) == 13
    assert run_length(np.array([5] * 100)) == 8
    assert run_length(np.array([10] * 10 + [40] * 90)) == 10


def test_a_duplicate_is_found_whatever_its_case_and_punctuation():
    found = Examined([["A film, good!"], ["another film"]])
    assert found.look(["a FILM good", "something else"], 3) == (2, 5)
    assert found.exact.tolist() == [3, -1]
    assert found.partly.tolist() == [-1, -1]
    assert found.short.tolist() == [True, True]


def test_a_run_of_thirteen_words_is_found_inside_a_document_and_twelve_are_not():
    words = LONG.split()
    found = Examined([[LONG]])
    found.look(["so " + " ".join(words[2:14]) + " they say"], 0)
    assert found.partly.tolist() == [-1]
    found.look(["so " + " ".join(words[2:15]) + " they say"], 1)
    assert found.partly.tolist() == [1]
    assert found.run_of(0) == " ".join(words[2:15])
    assert found.share() == 1 / (len(words) - 12)


def test_the_two_texts_of_a_pair_are_no_single_run():
    words = LONG.split()
    found = Examined([[" ".join(words[:10]), " ".join(words[10:])]])
    found.look([" ".join(words[3:16])], 0)  # seven words of one, six of the other
    assert found.partly.tolist() == [-1]
    found.look([LONG], 0)
    assert found.exact.tolist() == [0]


def test_the_first_source_that_has_it_is_named():
    found = Examined([["one two"], ["three"]])
    found.look(["three"], 0)
    found.look(["three", "one two"], 1)
    assert found.exact.tolist() == [1, 0]


def test_texts_without_words_overlap_with_nothing():
    found = Examined([["…"], [""]])
    found.look(["", "!!!"], 0)
    assert found.exact.tolist() == [-1, -1]
    assert Examined([]).look(["a"], 0) == (1, 1)


def test_random_texts_agree_with_a_plain_search():
    random = np.random.default_rng(0)
    words = np.array([f"w{at}" for at in range(4)])
    examples = [" ".join(random.choice(words, random.integers(3, 30))) for _ in range(60)]
    documents = [" ".join(random.choice(words, 400)) for _ in range(20)]
    found = Examined([[text] for text in examples])
    found.look(documents, 0)
    for at, text in enumerate(examples):
        parts = text.split()
        runs = {" ".join(parts[start : start + found.run]) for start in range(len(parts) - found.run + 1)}
        seen = any(re.search(rf"\b{run}\b", document) for run in runs for document in documents)
        assert (found.partly[at] >= 0) == seen


def test_what_is_asked_is_compared_and_answers_that_are_texts_stand_apart():
    assert fields_of(Rows(["a"], ["b"], [1], [0])) == [["a", "b"]]
    assert fields_of(ChoiceRows(["a"], None, [0], [0], [["x", "y"]])) == [["a", "x", "y"]]
    assert answers_of(Rows(["a"], None, ["ein"], [0])) == ["ein"]
    assert answers_of(Rows(["a"], None, [1], [0])) is None
    assert answers_of(SimpleNamespace(labels=None)) is None
    # a question with another answer is the same question; its answer is found in a run only
    found = Examined([["what is it"]], [LONG])
    found.look(["what is it", LONG], 2)
    assert (found.exact.tolist(), found.partly.tolist()) == ([2], [2])

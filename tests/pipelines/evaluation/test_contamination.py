"""Overlap with what was trained on: hashes of words, exact duplicates, runs of words, and the report."""

from __future__ import annotations

import json
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pipelines.core.interfaces import Rows
from pipelines.core.load import loads
from pipelines.evaluation import contamination
from pipelines.evaluation.contamination import Examined, answers_of, batched, fields_of, run_length, words_of
from pipelines.tasks.multiple_choice.task import ChoiceRows
from pipelines.tasks.scoring import score

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


TEXTS = some.lists(some.text(alphabet="abAB1 .,'é\n-\0世", max_size=40), max_size=8)


def plain(text):
    """The words as a regular expression finds them: slower, and plainly right."""
    return re.findall(r"[0-9a-z\u0080-\U0010ffff]+", text.replace("\0", " ").lower())


@settings(deadline=None)
@given(TEXTS)
def test_words_have_the_same_hash_exactly_when_they_are_the_same(texts):
    words = words_of(texts)
    expected = [word for text in texts for word in plain(text)]
    assert len(words.hashes) == len(expected)
    assert np.diff(words.starts).tolist() == [len(plain(text)) for text in texts]
    assert len(set(words.hashes.tolist())) == len(set(expected))
    by_word = dict(zip(expected, words.hashes.tolist(), strict=True))
    assert [by_word[word] for word in expected] == words.hashes.tolist()


@settings(deadline=None)
@given(TEXTS, some.integers(1, 4))
def test_runs_stay_within_a_text_and_match_exactly_when_their_words_do(texts, length):
    hashes, first = words_of(texts).runs(length)
    expected = [
        tuple(found[at : at + length])
        for text in texts
        for found in [plain(text)]
        for at in range(len(found) - length + 1)
    ]
    assert len(hashes) == len(expected)
    assert len(set(hashes.tolist())) == len(set(expected))
    assert (np.diff(first) >= 1).all()


@settings(deadline=None)
@given(TEXTS)
def test_whole_texts_match_exactly_when_their_words_do(texts):
    whole = words_of(texts).whole()
    words = [tuple(plain(text)) for text in texts]
    for one in range(len(texts)):
        for other in range(len(texts)):
            assert (whole[one] == whole[other]) == (words[one] == words[other])


def test_a_hash_does_not_depend_on_what_stands_around_it():
    one, two = words_of(["the cat sat"]), words_of(["x" * 5000, "… on THE Cat, sat!"])
    assert one.hashes.tolist() == two.hashes[-3:].tolist()
    assert one.runs(3)[0][0] == two.runs(3)[0][-1]


def test_texts_are_read_in_portions_that_lose_nothing():
    texts = ["a" * 10] * 25
    portions = list(batched(iter(texts), 45))
    assert [len(each) for each in portions] == [5] * 5
    assert list(batched([], 10)) == []


RECIPE = """
name: t
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: novels.jsonl}], arguments: {max_steps: 1}}
  - {stage: supervised, id: mine, task: {kind: classification, columns: [text], label: label, train: train.csv, validation: dev.csv}}
  - {stage: supervised, id: other, from: pretrain, task: {kind: classification, columns: [text], label: label, train: other.csv, validation: dev.csv}}
  - {stage: evaluate, from: mine}
"""
SHIPS = "an entirely different piece of writing about ships and harbours of the north"
SENTENCE = "we hold these truths to be self evident that all men are created equal"


@pytest.fixture
def made(tmp_path, context):
    rows = [f"sentence number {at} of a file with many rows that are all different from each other" for at in range(40)]
    files = {
        "train.csv": ["text,label", *(f"{text},{'yes' if at % 2 else 'no'}" for at, text in enumerate(rows[:10]))],
        "other.csv": ["text,label", f"{SHIPS},yes", "x,no"],
        "dev.csv": [
            "text,label",
            f"{rows[3].upper()},yes",
            f"{SHIPS},no",
            f"he said {SENTENCE} and left,yes",
            *(f"short {at},no" for at in range(17)),
        ],
        "novels.jsonl": [json.dumps({"text": f"once upon a time. {SENTENCE}, they wrote."})],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    recipe = loads(RECIPE, folder=tmp_path)
    return context(recipe, "evaluate", {}), recipe.stages[1].resolved("mine")


def test_everything_that_led_to_the_model_is_compared_and_nothing_else(made):
    given, task = made
    rows = task.rows("validation")
    logits = np.eye(2, dtype=np.float32)[np.zeros(len(rows), dtype=int)]
    told = contamination.overlap_report(given, "mine", rows, score(task), logits, np.array(rows.labels))
    assert (told["examples"], told["exact"], told["partly"], told["seen"]) == (
        20,
        1,
        2,
        2,
    )  # the duplicate shares runs as well
    assert [each["stage"] for each in told["sources"]] == ["pretrain", "mine"]  # `other` led to another model
    assert [(each["index"], each["stage"], each["exact"]) for each in told["found"]] == [
        (0, "mine", True),
        (2, "pretrain", False),
    ]
    assert told["found"][1]["words"] in SENTENCE
    assert told["clean"]["examples"] == 18
    assert told["clean"]["scores"]["accuracy"] == 1.0  # the 18 others are all 'no', which is what was said
    assert "overlap with what was trained on (mine, pretrain)" in contamination.overlap_warning(
        "mine", "validation", told
    )


def test_the_answer_is_kept_by_content(made, tmp_path, monkeypatch):
    given, task = made
    rows = task.rows("validation")
    first = contamination.overlap_of(given, "mine", rows)
    began = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(contamination, "_look", lambda *_: pytest.fail("looked again"))
        again = contamination.overlap_of(given, "mine", rows)
    assert time.monotonic() - began < 5
    assert (again.exact.tolist(), again.found) == (first.exact.tolist(), first.found)
    with open(tmp_path / "train.csv", "a") as file:
        file.write("short 3,no\n")
    assert len(contamination.overlap_of(given, "mine", task.rows("validation")).exact) == 2


def test_a_model_that_this_recipe_did_not_train_is_not_compared(made):
    given, task = made
    assert contamination.overlap_report(given, "model", task.rows("validation")) is None


def test_training_data_that_is_gone_is_said_to_be_unchecked(made, tmp_path):
    given, task = made
    rows = task.rows("validation")
    (tmp_path / "novels.jsonl").unlink()
    told = contamination.overlap_report(given, "mine", rows)
    assert "novels.jsonl" in told["unchecked"]
    assert "could not be checked" in contamination.overlap_warning("mine", "validation", told)


def test_little_overlap_is_no_warning():
    told = {"share": 0.05, "found": [], "seen": 5, "examples": 100}
    assert contamination.overlap_warning("a", "validation", told) is None

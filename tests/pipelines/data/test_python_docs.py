"""Text and tasks made from Python's own documentation."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pipelines.core.registry import TASK_KINDS
from pipelines.data import python_docs
from pipelines.data.python_docs import LABELS, SPLITS, labelled_rows, sentences_of, text_rows
from tests.covering import LONG


def test_there_is_enough_to_learn_from():
    assert len(labelled_rows("train")) > 10_000
    assert len(labelled_rows("validation")) > 800
    assert sum(len(row["text"]) for row in text_rows("train")) > 1_000_000


@pytest.mark.parametrize("split", SPLITS)
def test_neighbouring_rows_hold_the_same_words_and_opposite_labels(split: python_docs.Split):
    """So whoever counts words, or guesses the majority, is right half of the time."""
    rows = labelled_rows(split)
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert sorted(first["text"].split()) == sorted(second["text"].split())
        assert first["text"] != second["text"]
        assert {first["label"], second["label"]} == set(range(len(LABELS)))
        assert [first["text"].split()[end] for end in (0, -1)] == [second["text"].split()[end] for end in (0, -1)]


def test_the_row_of_a_pair_that_comes_first_tells_nothing():
    firsts = Counter(row["label"] for row in labelled_rows("train")[::2])
    assert abs(firsts[0] - firsts[1]) < 5 * (firsts[0] + firsts[1]) ** 0.5


@pytest.mark.parametrize("split", SPLITS)
def test_originals_stand_in_the_text_of_their_split(split: python_docs.Split):
    text = "\n".join(row["text"] for row in text_rows(split))
    originals = [row["text"] for row in labelled_rows(split) if LABELS[row["label"]] == "original"]
    assert all(sentence in text for sentence in originals[:500])


def test_nothing_of_the_validation_split_is_in_the_training_split():
    for rows in (text_rows, labelled_rows):
        train, validation = rows("train"), rows("validation")
        assert {row["text"] for row in train}.isdisjoint(row["text"] for row in validation)
        packages = [{row["source"].partition(".")[0] for row in part} for part in (train, validation)]
        assert packages[0].isdisjoint(packages[1])


@pytest.mark.wider
def test_every_process_makes_the_same_rows(repository: Path):
    split = "train" if os.environ.get(LONG) else "validation"
    code = (
        "import json, hashlib; from pipelines.data.python_docs import *\n"
        f"rows = [text_rows('{split}')[:2000], labelled_rows('validation')]\n"
        "print(hashlib.sha256(json.dumps(rows).encode()).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(repository)}
    made = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    rows = [text_rows(split)[:2000], labelled_rows("validation")]
    assert made.stdout.strip() == hashlib.sha256(json.dumps(rows).encode()).hexdigest()


NESTED = """
if one:
    class A:
        "in a branch"
        async def f(self):
            "a method"
else:
    def g():
        "in the other branch"
try:
    def h(): "tried"
except Wrong:
    for each in many:
        def i(): "in a loop of a handler"
    else:
        def j(): "after a loop"
finally:
    match it:
        case 1:
            with here:
                def k(): "in a case"
def last():
    "no docstring" + "s"
"""


def test_docstrings_come_in_the_order_of_a_walk_through_the_whole_tree(tmp_path):
    (tmp_path / "nested.py").write_text(NESTED)
    nodes = [node for node in ast.walk(ast.parse(NESTED)) if isinstance(node, python_docs.DOCUMENTED)]
    texts = [text for text in map(ast.get_docstring, nodes) if text]
    assert len(texts) == 7
    assert list(python_docs._docstrings(tmp_path / "nested.py")) == texts


BLOCKS = {
    "words": {"kind": "token_classification"},
    "questions": {"kind": "qa", "id": "id"},
    "endings": {"kind": "multiple_choice"},
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_recipe_reads_them_as_tasks(name: str, tmp_path):
    keys = BLOCKS[name] | {"name": name, "train": "builtin/python-docs", "validation": "builtin/python-docs"}
    task = TASK_KINDS.load(keys["kind"]).model_validate(keys, context={"folder": tmp_path}).task("mine")
    for split in ("train", "validation"):
        assert len(task.rows(split)) > 100
        assert task.rows(split).labels is not None


def test_the_turned_words_are_the_sentence_when_they_are_turned_back():
    known = set(sentences_of("validation"))
    for row in python_docs.word_rows("validation"):
        begin = row["tags"].index("B-TURNED")
        count = row["tags"].count("I-TURNED") + 1
        back = row["tokens"][begin : begin + count][::-1]
        assert " ".join([*row["tokens"][:begin], *back, *row["tokens"][begin + count :]]) in known


def test_an_answer_follows_the_words_that_are_asked_for():
    for row in python_docs.question_rows("validation"):
        asked = row["question"].removeprefix("What follows ").removesuffix("?")
        (text,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
        assert row["context"][start:].startswith(text)
        assert row["context"][:start].endswith(f"{asked} ")


def test_one_ending_makes_a_sentence_of_the_documentation():
    known = set(sentences_of("validation"))
    rows = python_docs.ending_rows("validation")
    for row in rows:
        right = row["options"]["ABCD".index(row["answer"])]
        assert f"{row['question']} {right}" in known
        assert len(set(row["options"])) == 4
    letters = [row["answer"] for row in rows]
    assert min(letters.count(letter) for letter in "ABCD") > len(rows) / 8

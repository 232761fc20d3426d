"""The embedded tasks of other shapes ask what they say they ask."""

from __future__ import annotations

import pytest

from pipelines.core.registry import TASK_KINDS
from pipelines.data import python_docs
from pipelines.data.python_docs import SPLITS, sentences_of

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


def test_the_same_python_gives_the_same_rows():
    for split in SPLITS:
        for rows in python_docs.ROWS.values():
            assert rows(split) == rows(split)

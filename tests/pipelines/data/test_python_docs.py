"""The embedded data: balanced so that words alone decide nothing, without leaks, and the same in every process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pipelines.data import python_docs
from pipelines.data.python_docs import LABELS, SPLITS, labelled_rows, text_rows


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


def test_every_process_makes_the_same_rows(repository: Path):
    code = (
        "import json, hashlib; from pipelines.data.python_docs import *\n"
        "rows = [text_rows('train')[:2000], labelled_rows('validation')]\n"
        "print(hashlib.sha256(json.dumps(rows).encode()).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(repository)}
    made = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    rows = [text_rows("train")[:2000], labelled_rows("validation")]
    assert made.stdout.strip() == hashlib.sha256(json.dumps(rows).encode()).hexdigest()

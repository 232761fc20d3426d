"""Words, files of vectors, means, and the cache of trained tables."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.core.config import ConfigIssues
from pipelines.core.errors import DataError
from pipelines.evaluation.features.base import Reading
from pipelines.evaluation.features.glove import GloVe
from pipelines.evaluation.features.word2vec import Word2Vec
from pipelines.evaluation.features.word_vectors import (
    StaticVectors,
    WordMeans,
    WordVectors,
    read_vectors,
    words_of,
    written,
)


def read(text: str, *wanted: str) -> dict[str, list[float]]:
    table = read_vectors(io.BytesIO(text.encode()), set(wanted), "v.txt")
    return dict(zip(table.words, table.matrix.tolist(), strict=True))


def test_words_are_runs_of_letters_or_single_signs() -> None:
    assert words_of("Don't panic: 42 Ärger_x!") == ["don", "'", "t", "panic", ":", "42", "ärger_x", "!"]
    assert words_of("It", lowercase=False) == ["It"]


def test_both_text_formats_are_read_and_only_the_words_that_are_needed() -> None:
    glove = "the 1 2 3\ncat 4 5 6\n. . . 7 8 9\nthe 0 0 0\n"
    assert read(glove, "the", "cat", ". . .") == {"the": [1, 2, 3], "cat": [4, 5, 6], ". . .": [7, 8, 9]}
    assert read("2 3\nthe 1 2 3\ncat 4 5 -6e-1\n", "cat") == {"cat": [4, 5, pytest.approx(-0.6)]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("the 1 2 3\ncat 4 5\n", "v.txt, line 2, has 2 numbers, must have 3"),
        ("3 2\nthe 1\n", "v.txt, line 2, has 1 numbers, must have 2"),
        ("the\n", "line 1, has 0 numbers, must have 1"),
        ("the 1 x 3\n", "line 1, holds something that is no number in the vector of 'the'"),
        ("the 1 nan 3\n", "line 1, holds a number that is not finite"),
        ("dog 1 2 3\n", "has a vector for none of the 2 words of the task"),
        ("", "has a vector for none"),
    ],
)
def test_a_file_that_is_no_table_is_refused_at_its_line(text: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read(text, "the", "cat")


def test_a_text_is_the_mean_of_its_known_words_and_the_others_are_counted(running: Any) -> None:
    table = WordVectors(["good", "film"], np.array([[1, 0], [0, 3]], dtype=np.float32))
    means = WordMeans(table, True, Reading(running, "model", 128, {}))
    got = means.vectors("train", ["Good good film", "dull dog", "film very"])
    np.testing.assert_allclose(got, [[[2 / 3, 1], [0, 0], [0, 3]]], rtol=1e-6)
    means.vectors("validation", ["good"])
    assert means.details()["unknown_words"] == {"train": pytest.approx(3 / 7), "validation": 0.0}


def test_texts_end_where_the_tokenizer_cuts_them(running: Any) -> None:
    table = WordVectors(["good", "film"], np.eye(2, dtype=np.float32))
    means = WordMeans(table, True, Reading(running, "model", 4, {}))  # [CLS], two words, [SEP]
    assert means.vectors("train", ["good good film film"]).tolist() == [[[1, 0]]]


class Counted(StaticVectors):
    """Vectors that count how often they are trained."""

    name: str = "counted"

    def train(self, corpus: Any, context: Any) -> WordVectors:
        context.trained.append(corpus.counts)
        return WordVectors(list(corpus.counts), np.ones((len(corpus.counts), self.size), np.float32), {"size": 2})


def write(file: Path, *texts: str) -> None:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.jsonl"
    write(file, "a b", "a b", "b c", "a b")
    return file


def test_a_trained_table_is_kept_by_what_it_depends_on(text: Path, running: Any) -> None:
    running.trained = []

    def opened(**words: Any) -> WordVectors:
        block = Counted.model_validate({"datasets": ({"path": str(text)},), "size": 2, "min_count": 1} | words)
        return block.open(Reading(running, "model", 128, {}), ()).table

    first, again = opened(), opened()
    assert len(running.trained) == 1
    assert list(first.words) == list(again.words)
    assert np.array_equal(first.matrix, again.matrix)
    assert again.facts == {"size": 2}
    opened(window=3)
    running.seed = 5
    opened()
    write(text, "a b c d")
    opened()
    assert len(running.trained) == 4
    assert not list(running.cache.glob("corpus-*"))  # the text is not kept
    for file in running.cache.glob("vectors-*.npz"):
        file.write_bytes(b"broken")
    opened()
    assert len(running.trained) == 5


def test_a_document_that_repeats_the_one_before_is_read_once_and_rare_words_are_left_out(
    text: Path, running: Any
) -> None:
    block = Counted.model_validate({"datasets": ({"path": str(text)},), "min_count": 2})
    corpus = written(running.cache / "corpus", block, running)
    assert dict(corpus.counts) == {"b": 3, "a": 2}
    assert corpus.words == 6
    assert list(corpus.sequences()) == [["a", "b"], ["b", "c"], ["a", "b"]]
    few = block.model_copy(update={"min_count": 9})
    with pytest.raises(DataError, match="0 words that stand in it 9 times or more"):
        written(running.cache / "corpus", few, running)
    assert list(written(running.cache / "corpus", block.model_copy(update={"max_vocab_size": 2}), running).counts) == [
        "b",
        "a",
    ]


@pytest.mark.parametrize("kind", [Word2Vec, GloVe])
def test_text_or_a_file_not_both_and_no_training_of_a_file(kind: Any, text: Path, tmp_path: Path) -> None:
    file = tmp_path / "v.txt"
    file.write_text("a 1\n")
    dataset = {"path": str(text)}
    for words, sentence in (
        ({}, "neither was given"),
        ({"datasets": (dataset,), "vectors": str(file)}, "both were given"),
        ({"vectors": str(file), "size": 50}, "is about training"),
        ({"vectors": "missing.txt"}, "is no file"),
    ):
        with pytest.raises((ConfigIssues, ValueError), match=sentence):
            kind.model_validate(words)
    assert len(kind.model_validate({"vectors": str(file)}).content()["features.vectors"]) == 64

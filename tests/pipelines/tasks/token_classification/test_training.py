"""The first token of a word carries its class, in whichever part of a long text it stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipelines.core.registry import TOKENIZERS
from pipelines.tasks.token_classification.task import WordRows
from pipelines.tasks.token_classification.training import collate_words, encode_words
from tests import tiny

SENTENCES = [["the", "catalogue", "was", "bad"], ["dogs'", "film", ",", "it", "runs"], tiny.WORDS]


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "byte_bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS.load(request.param)().train([*tiny.TEXTS, "catalogue dogs' , z"] * 3, 300)


def rows(words: list[list[str]] = SENTENCES) -> WordRows:
    return WordRows(
        [" ".join(row) for row in words], None, [list(range(len(row))) for row in words], range(len(words)), words
    )


@pytest.mark.parametrize("length", [64, 9])
def test_each_word_has_one_token_which_begins_it(tokenizer, length):
    parts = encode_words(tokenizer, rows(), length)
    read: dict[tuple[int, int], str] = {}
    for row, words, ids in zip(parts.rows, parts.words, parts.input_ids, strict=True):
        for place in np.flatnonzero(np.asarray(words) >= 0):
            key = int(row), int(words[place])
            assert key not in read
            read[key] = tokenizer.decode([ids[place]]).replace("#", "").strip()
    assert set(read) == {(row, place) for row, words in enumerate(SENTENCES) for place in range(len(words))}
    assert all(SENTENCES[row][place].startswith(text) for (row, place), text in read.items())
    assert (parts.truncated > 0) == (length == 9)
    assert parts.lengths.max() <= length


def test_labels_stand_at_the_beginnings_of_words_and_nowhere_else(tokenizer):
    parts = encode_words(tokenizer, rows(), 64)
    for words, labels in zip(map(np.asarray, parts.words), map(np.asarray, parts.labels or ()), strict=True):
        assert (labels[words >= 0] == words[words >= 0]).all()
        assert (labels[words < 0] == -100).all()


def test_a_word_that_becomes_no_token_is_left_out():
    given = rows([["the", "", "cat"]])
    assert sorted(encode_words(tiny.tokenizer(), given, 16).words[0])[-2:] == [0, 2]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_pads_labels_with_what_is_ignored(side):
    import copy

    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.padding_side = side
    parts = encode_words(tokenizer, rows(), 64)
    batch = collate_words(tokenizer, [parts[0], parts[2]])
    assert batch["labels"].shape == batch["input_ids"].shape
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
    assert batch["labels"][0][batch["attention_mask"][0] == 1].tolist() == parts.labels[0]

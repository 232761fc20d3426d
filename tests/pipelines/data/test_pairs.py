"""Pairs as token ids."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.core.interfaces import Rows
from pipelines.data.encoding import encode_pairs
from pipelines.data.tokenizers.bpe import BPE

ROWS = Rows(["a dog", "a cat sat on the mat"], None, ["ein Hund", "eine Katze sass auf der Matte"], [0, 1])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return BPE().train([*ROWS.texts, *ROWS.labels] * 3, 330)  # type: ignore[list-item]


def test_both_sides_are_what_the_tokenizer_says(tokenizer: Any):
    examples = encode_pairs(tokenizer, ROWS, 100, 100)
    assert examples.input_ids == tokenizer(list(ROWS.texts))["input_ids"]
    assert examples.labels == tokenizer(list(ROWS.labels or ()))["input_ids"]
    assert examples.lengths.tolist() == [
        len(s) + len(t) for s, t in zip(examples.input_ids, examples.labels, strict=True)
    ]
    assert examples.truncated == 0
    assert "token_type_ids" not in examples[0]
    assert examples.select([1])[0]["labels"] == examples.labels[1]


def test_each_side_is_cut_to_its_own_length(tokenizer: Any):
    examples = encode_pairs(tokenizer, ROWS, 4, 6)
    assert max(map(len, examples.input_ids)) == 4
    assert max(map(len, examples.labels or ())) == 6
    assert all(row[-1] == tokenizer.sep_token_id for row in [*examples.input_ids, *(examples.labels or ())])
    long = [
        len(s) > 4 or len(t) > 6
        for s, t in zip(
            tokenizer(list(ROWS.texts))["input_ids"], tokenizer(list(ROWS.labels or ()))["input_ids"], strict=True
        )
    ]
    assert examples.truncated == sum(long)
    assert tokenizer.backend_tokenizer.truncation is None


def test_pairs_that_just_fit_are_not_cut(tokenizer: Any):
    full = encode_pairs(tokenizer, ROWS, 100, 100)
    source, target = max(map(len, full.input_ids)), max(map(len, full.labels or ()))
    assert encode_pairs(tokenizer, ROWS, source, target).truncated == 0
    assert encode_pairs(tokenizer, ROWS, source - 1, target).truncated == 1
    assert encode_pairs(tokenizer, ROWS, source, target - 1).truncated == 1

"""Encoding and padding against what transformers does by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.core.interfaces import Rows
from pipelines.data import encoding
from pipelines.data.encoding import collate, encode
from pipelines.data.tokenizers.wordpiece import WordPiece

TEXTS = ["the cat sat on the mat", "a dog", "", "the dog sat and sat and sat on the cat and the mat", "mat cat"]
PAIRS = ["where did it sit", "the dog and the cat and the mat and the rest of all the things", "yes", "no", "mat"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return WordPiece(min_frequency=1).train(TEXTS + PAIRS, 200)


def rows(pairs: bool = True, labels: Any = (0, 1, 1, 0, 1)) -> Rows:
    return Rows(TEXTS, PAIRS if pairs else None, labels, range(10, 15))


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 4])
def test_batches_are_those_of_transformers(
    tokenizer: Any, pairs: bool, side: str, multiple: int | None, monkeypatch: Any
):
    monkeypatch.setattr(tokenizer, "padding_side", side)
    examples = encode(tokenizer, rows(pairs), max_length=12)
    batch = collate(tokenizer, [examples[position] for position in range(len(examples))], multiple)
    expected = tokenizer(
        TEXTS,
        PAIRS if pairs else None,
        truncation=True,
        max_length=12,
        padding=True,
        pad_to_multiple_of=multiple,
        return_tensors="pt",
    )
    assert set(batch) == {*expected, "labels"}
    for key, value in expected.items():
        assert torch.equal(batch[key], value), key
        assert batch[key].dtype == value.dtype
    assert batch["labels"].tolist() == [0, 1, 1, 0, 1]
    assert batch["labels"].dtype == torch.int64


def test_lengths_and_truncation_are_counted(tokenizer: Any):
    full = tokenizer(TEXTS, PAIRS)["input_ids"]
    lengths = [len(ids) for ids in full]
    assert encode(tokenizer, rows(), max_length=max(lengths)).truncated == 0
    for limit in sorted(set(lengths))[:-1]:
        examples = encode(tokenizer, rows(), max_length=max(limit, 5))
        assert examples.truncated == sum(length > max(limit, 5) for length in lengths)
        assert examples.lengths.tolist() == [min(length, max(limit, 5)) for length in lengths]


def test_truncation_is_counted_alike_without_the_fast_backend(tokenizer: Any):
    texts, pairs = list(TEXTS), list(PAIRS)
    batch = tokenizer(texts, pairs, truncation=True, max_length=12)
    fast = encoding._count_truncated(tokenizer, batch, texts, pairs, 12)
    batch._encodings = None
    assert encoding._count_truncated(tokenizer, batch, texts, pairs, 12) == fast > 0


def test_encoding_leaves_the_tokenizer_as_it_was(tokenizer: Any):
    before = tokenizer.backend_tokenizer.to_str()
    encode(tokenizer, rows(), max_length=12)
    assert tokenizer.backend_tokenizer.to_str() == before
    tokenizer.backend_tokenizer.enable_truncation(9, stride=2)
    before = tokenizer.backend_tokenizer.to_str()
    encode(tokenizer, rows(), max_length=12)
    assert tokenizer.backend_tokenizer.to_str() == before
    tokenizer.backend_tokenizer.no_truncation()


def test_chunks_do_not_show(tokenizer: Any, monkeypatch: pytest.MonkeyPatch):
    whole = encode(tokenizer, rows(), max_length=12)
    monkeypatch.setattr(encoding, "CHUNK", 2)
    parts = encode(tokenizer, rows(), max_length=12)
    assert parts.input_ids == whole.input_ids
    assert parts.token_type_ids == whole.token_type_ids
    assert parts.truncated == whole.truncated


def test_an_example_carries_what_its_row_has(tokenizer: Any):
    examples = encode(tokenizer, rows(labels=None), max_length=64)
    assert set(examples[0]) == {"input_ids", "index", "token_type_ids"}
    assert [examples[position]["index"] for position in range(len(examples))] == [10, 11, 12, 13, 14]
    assert "labels" not in collate(tokenizer, [examples[0]])


def test_a_model_without_segments_gets_none(tokenizer: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenizer, "model_input_names", ["input_ids", "attention_mask"])
    examples = encode(tokenizer, rows(), max_length=64)
    assert examples.token_type_ids is None
    assert set(collate(tokenizer, [examples[0]])) == {"input_ids", "attention_mask", "labels"}


def test_numbers_become_floats(tokenizer: Any):
    examples = encode(tokenizer, rows(labels=[0.5, 1.0, 2.0, 3.0, 4.0]), max_length=64)
    labels = collate(tokenizer, [examples[0], examples[1]])["labels"]
    assert labels.dtype == torch.float32
    assert labels.tolist() == [0.5, 1.0]


def test_selecting_keeps_columns_together(tokenizer: Any):
    examples = encode(tokenizer, rows(), max_length=64)
    chosen = examples.select(np.array([3, 0]))
    assert len(chosen) == 2
    assert [chosen[0], chosen[1]] == [examples[3], examples[0]]
    assert chosen.lengths.tolist() == [len(examples.input_ids[3]), len(examples.input_ids[0])]
    unlabelled = encode(tokenizer, rows(labels=None), max_length=64).select([1])
    assert unlabelled.labels is None


def test_a_padded_example_does_not_depend_on_its_neighbours(tokenizer: Any):
    examples = encode(tokenizer, rows(), max_length=64)
    alone, together = collate(tokenizer, [examples[1]]), collate(tokenizer, [examples[1], examples[3]])
    length = alone["input_ids"].shape[1]
    assert torch.equal(alone["input_ids"][0], together["input_ids"][0, :length])
    assert (together["input_ids"][0, length:] == tokenizer.pad_token_id).all()
    assert (together["attention_mask"][0, length:] == 0).all()


def test_real_pairs_equal_transformers_own_bert_tokenizer(mirror: Path, monkeypatch: pytest.MonkeyPatch):
    from transformers import BertTokenizerFast

    from pipelines.core.registry import TASKS

    MRPC = TASKS.load("glue/mrpc")

    monkeypatch.setenv("FINERY_DATA", str(mirror))
    bert = BertTokenizerFast(str(mirror / "tokenizers" / "bert-base-uncased" / "vocab.txt"))
    data = MRPC.rows("validation")
    examples = encode(bert, data, max_length=64)
    expected = bert(list(data.texts), list(data.pairs or ()), truncation=True, max_length=64)
    assert examples.input_ids == expected["input_ids"]
    assert examples.token_type_ids == expected["token_type_ids"]
    uncut = bert(list(data.texts), list(data.pairs or ()))["input_ids"]
    assert examples.truncated == sum(len(ids) > 64 for ids in uncut) > 0

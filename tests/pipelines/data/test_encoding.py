"""Tokenised rows as columns, against transformers' own tokenising and padding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.interfaces import Rows
from pipelines.data import encoding
from pipelines.data.encoding import Columns, PartedColumns, collate, encode, encode_pairs, few_lengths, read_part
from pipelines.data.tokenizers.bpe import BPE
from pipelines.data.tokenizers.wordpiece import WordPiece


@dataclass(frozen=True, kw_only=True)
class Named(PartedColumns):
    names: list[str]
    left_out: int


def table(rows: int) -> Named:
    return Named(
        input_ids=[[row] * (row + 1) for row in range(rows)],
        token_type_ids=None,
        lengths=np.arange(1, rows + 1),
        truncated=7,
        rows=np.arange(rows) // 2,
        names=[f"row {row}" for row in range(rows)],
        left_out=3,
    )


@given(st.lists(st.integers(0, 9), max_size=20))
def test_every_column_follows_the_places_and_counts_stay(positions: list[int]):
    whole = table(10)
    chosen = whole.select(positions)
    assert type(chosen) is Named
    assert len(chosen) == len(positions)
    assert chosen.names == [f"row {position}" for position in positions]
    assert chosen.lengths.tolist() == [len(ids) for ids in chosen.input_ids] == [position + 1 for position in positions]
    assert chosen.index == [position // 2 for position in positions]
    assert (chosen.truncated, chosen.left_out, chosen.token_type_ids) == (7, 3, None)


def test_places_in_an_array_choose_the_same_as_in_a_list():
    assert table(5).select(np.array([4, 0])).input_ids == table(5).select([4, 0]).input_ids == [[4] * 5, [0]]


def test_a_row_has_segments_only_where_the_model_has():
    bare = Columns(input_ids=[[5, 6]], token_type_ids=None, lengths=np.array([2]), truncated=0)
    paired = Columns(input_ids=[[5, 6]], token_type_ids=[[0, 1]], lengths=np.array([2]), truncated=0)
    assert bare[0] == {"input_ids": [5, 6]}
    assert paired[0] == {"input_ids": [5, 6], "token_type_ids": [0, 1]}


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


@pytest.mark.parametrize(("at_most", "expected"), [(16, 16), (20, 16), (13, 13), (11, 11), (5, 11)])
def test_batches_are_padded_to_few_lengths_and_never_beyond_what_a_model_reads(
    at_most: int, expected: int, tokenizer: Any
):
    examples = [{"input_ids": list(range(2, 2 + length))} for length in (4, 11)]
    batch = collate(tokenizer, examples, pad_to_multiple_of=8, at_most=at_most)
    assert batch["input_ids"].shape == (2, expected)
    assert batch["attention_mask"].sum(-1).tolist() == [4, 11]


@pytest.mark.parametrize("there", [True, False])
def test_few_lengths_are_for_gpus(there: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert few_lengths(20) == ({"pad_to_multiple_of": 8, "at_most": 20} if there else {})


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


@pytest.mark.parametrize("max_length", [4, 5, 7, 30])
@pytest.mark.parametrize("paired", [False, True])
def test_the_part_that_is_read_has_the_same_tokens_and_nothing_more(tokenizer: Any, paired: bool, max_length: int):
    texts = ["the cat saw the dog and ran on", "dog", ""]
    rows = Rows(texts, texts[::-1] if paired else None, [0, 1, 0], [0, 1, 2])
    part = read_part(tokenizer, rows, max_length)
    whole, kept = (encode(tokenizer, each, max_length) for each in (rows, part))
    assert kept.input_ids == whole.input_ids
    assert kept.truncated == 0
    assert part.labels == rows.labels
    assert list(part.index) == [0, 1, 2]
    assert all(text.startswith(shown) for text, shown in zip(rows.texts, part.texts, strict=True))
    if max_length == 30:
        assert part == rows


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


ROWS = Rows(["a dog", "a cat sat on the mat"], None, ["ein Hund", "eine Katze sass auf der Matte"], [0, 1])


@pytest.fixture(scope="module")
def pair_tokenizer() -> Any:
    return BPE().train([*ROWS.texts, *ROWS.labels] * 3, 330)  # type: ignore[list-item]


def test_both_sides_are_what_the_tokenizer_says(pair_tokenizer: Any):
    examples = encode_pairs(pair_tokenizer, ROWS, 100, 100)
    assert examples.input_ids == pair_tokenizer(list(ROWS.texts))["input_ids"]
    assert examples.labels == pair_tokenizer(list(ROWS.labels or ()))["input_ids"]
    assert examples.lengths.tolist() == [
        len(s) + len(t) for s, t in zip(examples.input_ids, examples.labels, strict=True)
    ]
    assert examples.truncated == 0
    assert "token_type_ids" not in examples[0]
    assert examples.select([1])[0]["labels"] == examples.labels[1]


def test_each_side_is_cut_to_its_own_length(pair_tokenizer: Any):
    examples = encode_pairs(pair_tokenizer, ROWS, 4, 6)
    assert max(map(len, examples.input_ids)) == 4
    assert max(map(len, examples.labels or ())) == 6
    assert all(row[-1] == pair_tokenizer.sep_token_id for row in [*examples.input_ids, *(examples.labels or ())])
    long = [
        len(s) > 4 or len(t) > 6
        for s, t in zip(
            pair_tokenizer(list(ROWS.texts))["input_ids"],
            pair_tokenizer(list(ROWS.labels or ()))["input_ids"],
            strict=True,
        )
    ]
    assert examples.truncated == sum(long)
    assert pair_tokenizer.backend_tokenizer.truncation is None


def test_pairs_that_just_fit_are_not_cut(pair_tokenizer: Any):
    full = encode_pairs(pair_tokenizer, ROWS, 100, 100)
    source, target = max(map(len, full.input_ids)), max(map(len, full.labels or ()))
    assert encode_pairs(pair_tokenizer, ROWS, source, target).truncated == 0
    assert encode_pairs(pair_tokenizer, ROWS, source - 1, target).truncated == 1
    assert encode_pairs(pair_tokenizer, ROWS, source, target - 1).truncated == 1

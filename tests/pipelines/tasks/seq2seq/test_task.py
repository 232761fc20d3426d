"""Tasks of rewriting described in a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.core.errors import DataError
from pipelines.tasks.seq2seq.task import Seq2Seq


def task(folder: Path, **words: Any) -> Any:
    return Seq2Seq.model_validate({"kind": "seq2seq"} | words, context={"folder": folder}).task("mine")


def test_rows_are_sources_and_targets(tmp_path: Path):
    (tmp_path / "train.tsv").write_text("en\tde\na dog\tein Hund\na cat\teine Katze\n")
    made = task(tmp_path, source="en", target="de", train="train.tsv", validation="train.tsv")
    rows = made.rows("train")
    assert list(rows.texts) == ["a dog", "a cat"]
    assert list(rows.labels) == ["ein Hund", "eine Katze"]
    assert rows.pairs is None
    assert made.metrics == ("bleu", "chrf")
    assert made.head.kind == "seq2seq_lm"
    assert made.evaluation_splits == {"": "validation"}


def test_entries_of_objects_are_columns(tmp_path: Path):
    lines = [{"translation": {"en": "a dog", "de": "ein Hund"}}, {"translation": {"en": "a cat", "de": "eine Katze"}}]
    (tmp_path / "wmt.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rows = task(
        tmp_path, source="translation.de", target="translation.en", train="wmt.jsonl", validation="wmt.jsonl"
    ).rows("train")
    assert list(zip(rows.texts, rows.labels, strict=True)) == [("ein Hund", "a dog"), ("eine Katze", "a cat")]
    with pytest.raises(DataError, match=r"no column 'translation.fr'.* Columns found: translation.en, translation.de"):
        task(
            tmp_path, source="translation.en", target="translation.fr", train="wmt.jsonl", validation="wmt.jsonl"
        ).rows("train")


def test_a_column_whose_name_has_a_dot_is_itself(tmp_path: Path):
    (tmp_path / "train.csv").write_text("text.en,text.de\na,b\nc,d\n")
    rows = task(tmp_path, source="text.en", target="text.de", train="train.csv", validation="train.csv").rows("train")
    assert list(rows.labels) == ["b", "d"]


def test_missing_targets_are_named_by_row(tmp_path: Path):
    (tmp_path / "train.csv").write_text("en,de\na,b\nc,\n")
    with pytest.raises(DataError, match=r"row 2 \(the first is 1\), holds an empty text in the column 'de'"):
        task(tmp_path, source="en", target="de", train="train.csv", validation="train.csv").rows("train")


def test_rows_to_be_written_need_no_target(tmp_path: Path):
    (tmp_path / "train.csv").write_text("en,de\na,b\nc,d\n")
    (tmp_path / "test.csv").write_text("en\nx\ny\n")
    made = task(tmp_path, source="en", target="de", train="train.csv", validation="train.csv", test="test.csv")
    rows = made.rows("test")
    assert list(rows.texts) == ["x", "y"]
    assert rows.labels is None


def test_one_column_cannot_be_both(tmp_path: Path):
    (tmp_path / "train.csv").write_text("en\na\n")
    with pytest.raises(ValidationError) as caught:
        task(tmp_path, source="en", target="en", train="train.csv")
    assert flatten(caught.value) == [
        (("target",), "is 'en', the source too: there would be nothing to learn but to copy")
    ]

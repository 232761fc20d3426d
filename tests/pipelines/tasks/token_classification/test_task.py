"""Words and tags are read as they stand, and what cannot be learnt from is refused with its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.core.errors import DataError
from pipelines.tasks.token_classification.task import TokenClassification

GOOD = [
    {"tokens": ["Ada", "Lovelace", "wrote"], "tags": ["B-PER", "I-PER", "O"]},
    {"tokens": ["Paris"], "tags": ["B-LOC"]},
]


def task(folder: Path, rows: list[dict[str, Any]], validation: list[dict[str, Any]] | None = None, **keys: Any) -> Any:
    for name, content in (("train", rows), ("dev", validation or GOOD)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))
    data = {"kind": "token_classification", "train": "train.jsonl", "validation": "dev.jsonl"} | keys
    return TokenClassification.model_validate(data, context={"folder": folder}).task("ner")


def test_tags_are_ids_in_natural_order(tmp_path: Path):
    made = task(tmp_path, GOOD)
    assert made.head.labels == ("B-LOC", "B-PER", "I-PER", "O")
    rows = made.rows("train")
    assert (list(rows.words), list(rows.labels)) == ([["Ada", "Lovelace", "wrote"], ["Paris"]], [[1, 2, 3], [0]])
    assert list(rows.texts) == ["Ada Lovelace wrote", "Paris"]
    assert made.metrics == ("seqeval",)


def test_numbers_stand_for_the_names_in_labels(tmp_path: Path):
    rows = [{"tokens": ["a", "b"], "tags": [0, 1]}]
    assert task(tmp_path, rows, rows, labels=("O", "B-X")).rows("train").labels == [[0, 1]]


def test_names_that_the_file_declares_are_taken(tmp_path: Path):
    from datasets import ClassLabel, Dataset, Features, Sequence, Value

    features = Features({"tokens": Sequence(Value("string")), "tags": Sequence(ClassLabel(names=["O", "B-X"]))})
    Dataset.from_list([{"tokens": ["a", "b"], "tags": [1, 0]}], features=features).to_parquet(
        str(tmp_path / "t.parquet")
    )
    data = {"kind": "token_classification", "train": "t.parquet", "validation": "t.parquet"}
    made = TokenClassification.model_validate(data, context={"folder": tmp_path}).task("ner")
    assert made.head.labels == ("O", "B-X")
    assert made.rows("validation").labels == [[1, 0]]


def test_plain_tags_are_scored_word_by_word(tmp_path: Path):
    rows = [{"tokens": ["a", "b"], "tags": ["DET", "NOUN"]}]
    made = task(tmp_path, rows, rows, scheme="plain")
    assert (made.head.labels, made.metrics) == (("DET", "NOUN"), ("accuracy",))


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "row 3 .* has 2 words in 'tokens' but 1 tags in 'tags'"),
        (
            {"tokens": ["a"], "tags": ["NOUN"]},
            "row 3 .* has the tag 'NOUN', which is not of the scheme IOB2 .*scheme: plain",
        ),
        ({"tokens": [], "tags": []}, "row 3 .* holds no words in the column 'tokens'"),
        ({"tokens": ["a"], "tags": [""]}, "row 3 .* has the tag ''"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: dict[str, Any], sentence: str):
    with pytest.raises(DataError, match=sentence):
        task(tmp_path, [*GOOD, row]).rows("train")


def test_a_tag_that_training_does_not_have_is_named_with_its_word(tmp_path: Path):
    with pytest.raises(
        DataError,
        match=r"row 1 .* has the tag 'B-ORG' at word 2 \('Bell'\), which is none of those that the training rows have",
    ):
        task(tmp_path, GOOD, [{"tokens": ["at", "Bell"], "tags": ["O", "B-ORG"]}]).rows("validation")


def test_a_number_beyond_the_labels_is_refused(tmp_path: Path):
    rows = [{"tokens": ["a"], "tags": [2]}]
    with pytest.raises(DataError, match="has the tag 2, must be one of 0 to 1"):
        task(tmp_path, rows, rows, labels=("O", "B-X")).rows("train")


@pytest.mark.parametrize(
    ("keys", "place", "sentence"),
    [
        ({"tags": "tokens"}, ("tags",), "the column of the words too"),
        ({"labels": ("O", "NOUN")}, ("labels",), "names 'NOUN', which is not of the scheme IOB2"),
        ({"labels": ("O",)}, ("labels",), "must name at least two tags"),
    ],
)
def test_a_wrong_block_is_refused_at_its_key(tmp_path: Path, keys: dict[str, Any], place: Any, sentence: str):
    with pytest.raises(ValidationError) as caught:
        task(tmp_path, GOOD, **keys)
    assert [(at, sentence in said) for at, said in flatten(caught.value)] == [(place, True)]

"""Options are read from lists or columns, answers by letter, number or text, and what does not fit is refused with its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.core.errors import DataError
from pipelines.tasks.multiple_choice.task import MultipleChoice

ROW = {"article": "It rained.", "question": "Was it _ ?", "options": ["wet", "dry", "cold"], "answer": "A"}


def task(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> Any:
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = {"kind": "multiple_choice", "train": "train.jsonl", "validation": "train.jsonl"} | keys
    return MultipleChoice.model_validate(data, context={"folder": folder}).task("mine")


def test_without_a_context_the_question_is_shared(tmp_path: Path):
    rows = task(tmp_path, [ROW]).rows("train")
    assert (list(rows.texts), rows.pairs, list(rows.options), rows.choices) == (
        ["Was it _ ?"],
        None,
        [["wet", "dry", "cold"]],
        3,
    )


def test_with_a_context_the_question_stands_before_each_option(tmp_path: Path):
    rows = task(tmp_path, [ROW], context="article").rows("train")
    assert (list(rows.texts), list(rows.options)) == (
        ["It rained."],
        [["Was it _ ? wet", "Was it _ ? dry", "Was it _ ? cold"]],
    )


def test_a_gap_is_filled_by_each_option(tmp_path: Path):
    rows = task(tmp_path, [ROW, ROW | {"question": "And?"}], context="article", blank="_").rows("train")
    assert list(rows.options) == [
        ["Was it wet ?", "Was it dry ?", "Was it cold ?"],
        ["And? wet", "And? dry", "And? cold"],
    ]


@pytest.mark.parametrize(
    ("answer", "first", "number"), [("B", 0, 1), ("c", 0, 2), (1, 0, 1), (1, 1, 0), ("3", 1, 2), ("dry", 0, 1)]
)
def test_answers_are_letters_numbers_or_texts(tmp_path: Path, answer: Any, first: int, number: int):
    assert task(tmp_path, [ROW | {"answer": answer}], first=first).rows("train").labels == [number]


def test_options_may_be_columns_or_lists_inside_of_objects(tmp_path: Path):
    columns = [{"goal": "x", "sol1": "a", "sol2": "b", "label": 1}]
    rows = task(tmp_path, columns, question="goal", options=("sol1", "sol2"), answer="label").rows("train")
    assert (list(rows.options), rows.labels) == ([["a", "b"]], [1])
    inside = [{"question": "x", "choices": {"text": ["a", "b"]}, "answer": "B"}]
    assert task(tmp_path, inside, options="choices.text").rows("train").options == [["a", "b"]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"answer": "D"}, "row 2 .* has the answer 'D' .*, must be a letter from A to C, a number from 0 to 2"),
        ({"answer": "3"}, "row 2 .* has the answer '3'"),
        ({"answer": ""}, "row 2 .* has no answer in the column 'answer'"),
        ({"options": ["wet", "dry"]}, "row 2 .* has 2 options where row 1 has 3"),
        ({"options": ["wet", "dry", " "]}, "row 2 .* must be a list of texts, none empty"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, change: dict[str, Any], sentence: str):
    with pytest.raises(DataError, match=sentence):
        task(tmp_path, [ROW, ROW | change]).rows("train")


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"options": ("a", "a")}, ("options",)),
        ({"answer": "options"}, ("answer",)),
        ({"context": "question"}, ("context",)),
        ({"blank": "_"}, ("blank",)),
    ],
)
def test_a_wrong_block_is_refused_at_its_key(tmp_path: Path, keys: dict[str, Any], place: Any):
    with pytest.raises(ValidationError) as caught:
        task(tmp_path, [ROW], **keys)
    assert [at for at, _ in flatten(caught.value)] == [place]

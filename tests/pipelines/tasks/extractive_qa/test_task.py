"""Questions are read in SQuAD's layout, and answers that do not stand where they are said to are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.core.errors import DataError
from pipelines.tasks.extractive_qa.task import ExtractiveQA

CONTEXT = "Ada wrote the letter in London."


def row(text: str = "Ada", start: int = 0, **others: Any) -> dict[str, Any]:
    return {"question": "Who?", "context": CONTEXT, "answers": {"text": [text], "answer_start": [start]}} | others


def task(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> Any:
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = {"kind": "qa", "train": "train.jsonl", "validation": "train.jsonl"} | keys
    return ExtractiveQA.model_validate(data, context={"folder": folder}).task("mine")


def test_rows_hold_questions_contexts_answers_and_their_places(tmp_path: Path):
    rows = task(tmp_path, [row(), row("London", 24)]).rows("train")
    assert (list(rows.texts), list(rows.pairs)) == (["Who?"] * 2, [CONTEXT] * 2)
    assert (list(rows.labels), list(rows.starts)) == ([("Ada",), ("London",)], [(0,), (24,)])
    assert list(rows.ids) == ["0", "1"]


def test_a_list_of_answers_says_the_same(tmp_path: Path):
    listed = row() | {"answers": [{"text": "Ada", "answer_start": 0}, {"text": "London", "answer_start": 24}]}
    assert task(tmp_path, [listed]).rows("train").labels == [("Ada", "London")]


def test_a_question_may_have_no_answer_where_the_task_says_so(tmp_path: Path):
    rows = [row(), row() | {"answers": {"text": [], "answer_start": []}}]
    made = task(tmp_path, rows, version_2_with_negative=True)
    assert made.rows("train").labels == [("Ada",), ()]
    assert made.metrics == ("squad_v2",)
    with pytest.raises(DataError, match=r"row 2 .* has no answer; .*version_2_with_negative: true"):
        task(tmp_path, rows).rows("train")


def test_answers_that_stand_elsewhere_are_counted_and_named(tmp_path: Path):
    with pytest.raises(
        DataError,
        match=r"in 2 of 4 rows .*\(rows 2, 4; the first is 1\): row 2 says 'London' at character 23, where ' Londo' stands",
    ):
        task(tmp_path, [row(), row("London", 23), row(), row("Ada", -1)]).rows("train")


def test_where_answers_are_only_scored_their_places_do_not_matter(tmp_path: Path):
    """As for the official scorer, which never reads them."""
    assert task(tmp_path, [row("London", 23)]).rows("validation").labels == [("London",)]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (row(" "), "row 1 .* has an answer that is empty"),
        (
            row() | {"answers": {"text": ["Ada"], "answer_start": [0, 1]}},
            "row 1 .* has 1 answers but 2 places of answers",
        ),
        (
            row() | {"answers": "Ada"},
            r'row 1 .* holds .Ada. in the column .answers., must be {"text": \["the answer"\]',
        ),
        (row() | {"question": ""}, "row 1 .* holds an empty text in the column 'question'"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, wrong: dict[str, Any], sentence: str):
    with pytest.raises(DataError, match=sentence):
        task(tmp_path, [wrong]).rows("train")


def test_ids_are_a_column_of_their_own_and_differ(tmp_path: Path):
    assert task(tmp_path, [row(key="x"), row(key="y")], id="key").rows("train").ids == ["x", "y"]
    with pytest.raises(DataError, match=r"row 2 .* has the id 'x' of an earlier row"):
        task(tmp_path, [row(key="x"), row(key="x")], id="key").rows("train")
    with pytest.raises(DataError, match="has no column 'kye' for the questions' ids"):
        task(tmp_path, [row(key="x")], id="kye").rows("train")


def test_a_column_cannot_be_two_things(tmp_path: Path):
    with pytest.raises(ValidationError) as caught:
        task(tmp_path, [row()], context="question")
    assert flatten(caught.value) == [
        (("context",), "is 'question', which is named twice; question, context and answers are three columns")
    ]

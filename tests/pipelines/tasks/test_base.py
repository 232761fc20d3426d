"""Tasks read their columns, classes and splits, hold rows out, and refuse rows that do not fit."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.core.config import Block, flatten
from pipelines.core.errors import DataError
from pipelines.core.interfaces import Head
from pipelines.core.registry import TASK_KINDS
from pipelines.tasks import base
from pipelines.tasks.base import (
    LabelledTask,
    SplitLocation,
    TaskField,
    class_name,
    held_out_rows,
    is_missing,
    natural_order,
    resolve,
)


class Holder(Block):
    task: TaskField
    """A task."""


def write(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


def task(folder: Path, train: list[Any], validation: list[Any] | None = None, **changes: Any) -> LabelledTask:
    """A classification task whose rows are numbered texts with these labels."""
    places = {"train": SplitLocation(write(folder / "train.jsonl", rows_of(train)), None, None)}
    if validation is not None:
        places["validation"] = SplitLocation(write(folder / "dev.jsonl", rows_of(validation)), None, None)
    about: dict[str, Any] = {"kind": "classification", "columns": ("text",), "metrics": ("accuracy",)}
    about |= {"name": "mine", "label": "label", "places": places} | changes
    return TASK_KINDS.load(about["kind"]).task_class()(**about)


def rows_of(labels: list[Any]) -> list[dict[str, Any]]:
    return [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]


@pytest.mark.parametrize(
    ("labels", "names", "ids"),
    [
        (["yes", "no", "yes"], ("no", "yes"), [1, 0, 1]),
        ([10, 9, 10], ("9", "10"), [1, 0, 1]),
        (["10", "9", "10"], ("9", "10"), [1, 0, 1]),
        ([True, False, True], ("false", "true"), [1, 0, 1]),
        ([1.0, 0.0, 1.0], ("0", "1"), [1, 0, 1]),
    ],
)
def test_classes_are_found_in_the_training_rows_in_natural_order(
    tmp_path: Path, labels: list[Any], names: Any, ids: Any
):
    found = task(tmp_path, labels, labels[:1])
    assert found.head == Head("sequence_classification", names)
    assert found.rows("train").labels == ids
    assert found.rows("validation").labels == ids[:1]


def test_given_class_names_set_the_ids(tmp_path: Path):
    found = task(tmp_path, ["yes", "no", "maybe"], ["no"], labels=("yes", "maybe", "no"))
    assert found.rows("train").labels == [0, 2, 1]


def test_whole_numbers_are_ids_of_given_names_unless_they_are_the_names(tmp_path: Path):
    assert task(tmp_path, [1, 0], [1], labels=("bad", "good")).rows("train").labels == [1, 0]
    assert task(tmp_path, [1, 0], [1], labels=("1", "0")).rows("train").labels == [0, 1]
    with pytest.raises(DataError, match=r"row 2 \(the first is 1\), has the label 2, must be one of 0 to 1"):
        task(tmp_path, [1, 2], [1], labels=("bad", "good")).rows("train")


def test_rows_carry_texts_pairs_and_their_numbers(tmp_path: Path):
    rows = [{"a": f"a{n}", "b": f"b{n}", "label": n % 2} for n in range(5)]
    place = SplitLocation(write(tmp_path / "pairs.jsonl", rows), None, None)
    found = task(tmp_path, [0, 1], columns=("a", "b"), places={"train": place, "validation": place})
    first = found.rows("train", limit=2)
    assert (list(first.texts), list(first.pairs or ())) == (["a0", "a1"], ["b0", "b1"])
    assert (list(first.index), first.labels, len(first)) == ([0, 1], [0, 1], 2)
    assert found.rows("train").texts == ["a0", "a1", "a2", "a3", "a4"]


BAD_CELLS: list[tuple[dict[str, Any], str]] = [
    ({"text": None}, r"holds nothing in the column 'text', must be a text"),
    ({"text": " "}, r"holds an empty text in the column 'text'"),
    ({"label": None}, r"has no label in the column 'label'"),
    ({"label": ""}, r"has no label in the column 'label'"),
]


@pytest.mark.parametrize(("change", "expected"), BAD_CELLS)
def test_a_bad_cell_is_named_with_its_file_and_row(tmp_path: Path, change: dict[str, Any], expected: str):
    rows = rows_of(["a", "b", "a", "b"])
    rows[2] |= change
    place = SplitLocation(write(tmp_path / "bad.jsonl", rows), None, None)
    found = task(tmp_path, ["a", "b"], places={"train": place, "validation": place})
    with pytest.raises(
        DataError, match=rf"{tmp_path}/bad.jsonl, row 3 \(the first is 1\), {expected}; correct or remove"
    ):
        found.rows("train")


def test_a_bad_cell_behind_the_limit_does_not_matter(tmp_path: Path):
    rows = rows_of(["a", "b", "a"])
    rows[2]["text"] = ""
    place = SplitLocation(write(tmp_path / "bad.jsonl", rows), None, None)
    assert len(task(tmp_path, ["a", "b"], places={"train": place, "validation": place}).rows("train", limit=2)) == 2


def test_a_number_is_no_text(tmp_path: Path):
    place = SplitLocation(
        write(tmp_path / "n.jsonl", [{"text": 5, "label": "a"}, {"text": 6, "label": "b"}]), None, None
    )
    with pytest.raises(DataError, match=r"row 1 .*, holds '5' \(int\) in the column 'text', must be a text"):
        task(tmp_path, ["a"], places={"train": place, "validation": place}).rows("train")


def test_fractions_are_no_classes(tmp_path: Path):
    with pytest.raises(DataError, match=r"row 1 .* has the label '0.5', which is a number; .* 'kind: regression'"):
        task(tmp_path, [0.5, 1.5], [0.5]).rows("train")


def test_a_label_that_training_never_showed_is_named_with_its_row(tmp_path: Path):
    found = task(tmp_path, ["a", "b"], ["a", "c"])
    with pytest.raises(
        DataError,
        match=r"dev.jsonl, row 2 .* the label 'c', which is none of those that the training rows have \(a, b\)",
    ):
        found.rows("validation")


def test_one_class_is_not_enough_and_a_class_a_row_is_too_many(tmp_path: Path):
    with pytest.raises(DataError, match="has the single label 'a'"):
        _ = task(tmp_path, ["a", "a"], ["a"]).head
    with pytest.raises(
        DataError, match="has 1500 different labels in 1500 rows of the column 'label'; is it the right"
    ):
        _ = task(tmp_path, [f"id{n}" for n in range(1500)], ["a"]).head


def test_missing_columns_and_splits_are_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"train.jsonl has no column 'sentence'. Columns found: text, label"):
        task(tmp_path, ["a", "b"], ["a"], columns=("sentence",)).rows("train")
    with pytest.raises(DataError, match=r"has no column 'labels'. Did you mean 'label'\?"):
        _ = task(tmp_path, ["a", "b"], ["a"], label="labels").head
    with pytest.raises(
        DataError, match=r"task 'mine' has no split 'validaton'. Did you mean 'validation'\? Splits: train, "
    ):
        task(tmp_path, ["a", "b"], ["a"]).rows("validaton")


def test_test_rows_need_no_labels(tmp_path: Path):
    found = task(tmp_path, ["a", "b"], ["a"])
    for name, rows in {
        "none": [{"text": "x"}],
        "empty": [{"text": "x", "label": None}],
        "hidden": [{"text": "x", "label": ""}],
    }.items():
        places = {**found.places, "test": SplitLocation(write(tmp_path / f"{name}.jsonl", rows), None, None)}
        assert task(tmp_path, ["a", "b"], places=places).rows("test").labels is None


def test_numbers_of_a_regression_are_read_also_from_texts(tmp_path: Path):
    (tmp_path / "r.csv").write_text("text,label\na,1\nb,2.5\nc,-3e-1\n")
    place = SplitLocation(str(tmp_path / "r.csv"), None, None)
    found = task(tmp_path, [1], kind="regression", places={"train": place, "validation": place})
    assert found.rows("train").labels == [1.0, 2.5, -0.3]
    assert found.head == Head("sequence_classification", ())


@pytest.mark.parametrize(
    ("cell", "expected"),
    [("", "has no number"), ("much", "holds 'much'"), ("nan", "holds 'nan'"), ("inf", "holds 'inf'")],
)
def test_what_is_no_finite_number_is_named_with_its_row(tmp_path: Path, cell: str, expected: str):
    (tmp_path / "r.csv").write_text(f"text,label\na,1\nb,{cell}\n")
    place = SplitLocation(str(tmp_path / "r.csv"), None, None)
    with pytest.raises(DataError, match=rf"r.csv, row 2 \(the first is 1\), {expected}"):
        task(tmp_path, [1], kind="regression", places={"train": place, "validation": place}).rows("train")


def test_without_a_validation_file_a_tenth_is_held_out_and_not_learnt_from(tmp_path: Path):
    found = task(tmp_path, [number % 2 for number in range(200)])
    train, held_out = found.rows("train"), found.rows("validation")
    assert (len(train), len(held_out)) == (180, 20)
    assert sorted([*train.index, *held_out.index]) == list(range(200))
    assert all(
        text == f"text {number}"
        for rows in (train, held_out)
        for text, number in zip(rows.texts, rows.index, strict=True)
    )
    assert list(train.index) == sorted(train.index)
    assert list(held_out.index) != list(range(20))
    again = task(tmp_path, [number % 2 for number in range(200)])
    assert list(again.rows("validation").index) == list(held_out.index)
    assert list(found.rows("train", limit=7).index) == list(train.index)[:7]


@pytest.mark.parametrize(("count", "held_out"), [(1, 1), (2, 1), (14, 1), (200, 20), (20_000, 2_000), (50_000, 2_000)])
def test_how_much_is_held_out(count: int, held_out: int):
    rows = held_out_rows(count)
    assert len(rows) == len(set(rows)) == held_out
    assert min(rows) >= 0
    assert max(rows) < count


def test_nothing_is_held_out_of_nothing():
    assert held_out_rows(0) == []


def test_a_single_row_is_too_few_to_hold_some_out(tmp_path: Path):
    with pytest.raises(DataError, match="has 1 rows, too few to hold some out; give a 'validation' file"):
        task(tmp_path, ["a"], labels=("a", "b")).rows("train")


def test_content_follows_the_data_of_each_split(tmp_path: Path):
    found = task(tmp_path, ["a", "b"], ["a"])
    before = found.content()
    assert set(before) == {"train", "validation"}
    assert before["train"] != before["validation"]
    write(tmp_path / "dev.jsonl", rows_of(["b"]))
    after = found.content()
    assert after["train"] == before["train"]
    assert after["validation"] != before["validation"]


def test_holding_out_changes_what_train_is(tmp_path: Path):
    labels = ["a", "b"] * 10
    whole, less = task(tmp_path, labels, ["a"]).content(), task(tmp_path, labels).content()
    assert len({whole["train"], less["train"], less["validation"]}) == 3


def test_a_role_takes_its_own_split_or_the_only_one(tmp_path: Path):
    for split in ("train", "validation", "test"):
        write(tmp_path / f"{split}.jsonl", rows_of([split, "b"]))
    place = SplitLocation(str(tmp_path), None, None)
    assert place.open("validation")[1] == "validation"
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(DataError, match="has no split 'train'; splits found: validation, test"):
        place.open("train")
    (tmp_path / "test.jsonl").unlink()
    assert place.open("train")[1] == "validation"


def test_a_field_takes_a_name_or_a_description_and_reads_itself_back(tmp_path: Path):
    write(tmp_path / "train.jsonl", rows_of(["a", "b"]))
    inline = {"kind": "classification", "columns": ("text",), "label": "label", "train": "train.jsonl"}
    for value in ("glue/mrpc", inline):
        holder = Holder.model_validate({"task": value}, context={"folder": tmp_path})
        plain = holder.plain()
        assert Holder.model_validate({"task": _tuples(plain["task"])}, context={"folder": Path("/")}) == holder
    assert plain["task"] == {
        "kind": "classification",
        "columns": ["text"],
        "label": "label",
        "train": str(tmp_path / "train.jsonl"),
    }


def _tuples(value: Any) -> Any:
    """Lists as the recipe reader gives them."""
    if isinstance(value, dict):
        return {key: _tuples(entry) for key, entry in value.items()}
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("value", "key", "expected"),
    [
        ("glue/mrcp", "task", "is \"glue/mrcp\": unknown task 'glue/mrcp'. Did you mean 'glue/mrpc'? Available: "),
        (3, "task", "is 3, must be a task's name or a task such as {kind: classification"),
        ({"columns": ("text",)}, "task", "'kind' is missing; available: causal, classification, instruction_pairs"),
        ({"kind": "clasification"}, "task.kind", "unknown task kind 'clasification'. Did you mean 'classification'?"),
        (
            {"kind": "regression", "columns": ("a",), "label": "b", "train": "no.csv"},
            "task.train",
            "'no.csv' does not exist",
        ),
        ({"kind": "regression", "columns": ("a",), "train": "wikitext"}, "task.label", "is missing"),
    ],
)
def test_a_wrong_field_says_what_is_allowed(tmp_path: Path, value: Any, key: str, expected: str):
    with pytest.raises(ValidationError) as caught:
        Holder.model_validate({"task": value}, context={"folder": tmp_path})
    ((place, message),) = flatten(caught.value)
    assert ".".join(map(str, place)) == key
    assert message.startswith(expected), message


def test_the_json_schema_offers_names_and_kinds():
    schema = Holder.model_json_schema()["properties"]["task"]
    assert "glue/mrpc" in schema["anyOf"][0]["enum"]
    kinds = [choice["properties"]["kind"]["const"] for choice in schema["anyOf"][1:]]
    assert kinds == list(TASK_KINDS)


def test_a_task_in_place_is_named_after_its_stage(tmp_path: Path):
    write(tmp_path / "train.jsonl", rows_of(["a", "b"]))
    inline = {"kind": "classification", "columns": ("text",), "label": "label", "train": "train.jsonl"}
    holder = Holder.model_validate({"task": inline}, context={"folder": tmp_path})
    assert resolve(holder.task, "my-stage").name == "my-stage"
    assert resolve("glue/mrpc", "my-stage").name == "glue/mrpc"
    assert base.HELD_OUT in resolve(holder.task, "my-stage").splits


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ("yes", "yes"),
        (" yes ", "yes"),
        (3, "3"),
        (-1, "-1"),
        (True, "true"),
        (False, "false"),
        (2.0, "2"),
        (2.5, None),
        (["a"], None),
        ({"a": 1}, None),
    ],
)
def test_cells_are_named_as_they_are_written(cell: object, name: str | None):
    assert class_name(cell) == name


def test_numbers_sort_by_value_also_inside_names_and_before_words():
    expected = ["-2", "0", "9", "10", "1.5", "2 stars", "10 stars", "class 2", "class 10", "class a", "no", "yes"]
    shuffled = random.Random(0).sample(expected, len(expected))
    assert sorted(shuffled, key=natural_order) == expected


@given(st.lists(st.text(max_size=6)))
def test_any_names_can_be_sorted_and_the_order_does_not_depend_on_where_they_stood(names: list[str]):
    backwards = names[::-1]
    assert sorted(names, key=natural_order) == sorted(backwards, key=natural_order)


@pytest.mark.parametrize(
    ("cell", "missing"),
    [(None, True), ("", True), (" \n", True), (float("nan"), True), (0, False), (False, False), ("0", False)],
)
def test_what_counts_as_missing(cell: object, missing: bool):
    assert is_missing(cell) is missing

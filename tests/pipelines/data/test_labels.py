"""Names and order of classes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.tasks.base import class_name, is_missing, natural_order


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

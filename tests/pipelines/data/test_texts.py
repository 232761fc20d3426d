"""The texts of a column."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.core.errors import DataError
from pipelines.data.references import texts_of


def column(*cells: Any) -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"text": list(cells)})


def test_texts_keep_their_order_and_white_space_and_empty_ones_are_left_out():
    assert texts_of(column(" b\n", "", None, "a", "\t"), "text", "it") == [" b\n", "a"]


@pytest.mark.parametrize(
    ("cells", "given"), [((None, 3), "row 2, holds '3' (int)"), ((["a"], None), "row 1, holds \"['a']\" (list)")]
)
def test_what_is_no_text_is_named_with_its_row(cells: tuple[Any, ...], given: str):
    with pytest.raises(DataError) as caught:
        texts_of(column(*cells), "text", "it")
    assert str(caught.value).startswith(f"it, {given} in the column 'text', must be a text")


def test_a_column_without_text_is_refused():
    with pytest.raises(DataError, match="it has no text in the column 'text': all 2 cells are empty"):
        texts_of(column(None, " "), "text", "it")

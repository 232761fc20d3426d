"""Rows are chosen by their places, whatever their columns are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.encoding import Columns, PartedColumns


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

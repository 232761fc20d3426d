"""Every token of every document is predicted exactly once, from the token before it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.interfaces import IGNORED
from pipelines.data.documents import Documents
from pipelines.evaluation.language_modeling import pieces, rolling

END, PADDING = 99, -1


def documents(lengths: list[int]) -> Documents:
    starts = np.cumsum([0, *lengths])
    return Documents(np.arange(1, starts[-1] + 1), np.ones(starts[-1], dtype=np.int64), starts, np.arange(len(lengths)))


@given(st.lists(st.integers(1, 25), min_size=1, max_size=6), st.integers(1, 9), st.integers(1, 9))
def test_every_token_is_predicted_once_from_its_left_neighbour(lengths: list[int], length: int, stride: int):
    stride = min(stride, length)
    given = documents(lengths)
    windows = rolling(given, length, stride, END)
    batch = windows.batch(0, len(windows), PADDING)
    asked = batch.labels != IGNORED
    assert sorted(batch.labels[asked].tolist()) == given.tokens.tolist()
    np.testing.assert_array_equal(given.tokens[batch.places[asked]], batch.labels[asked])
    left = np.roll(given.tokens, 1)
    left[given.starts[:-1]] = END
    np.testing.assert_array_equal(batch.input_ids[asked], left[batch.places[asked]])
    assert batch.input_ids.shape[1] <= length
    assert not (asked & ~batch.real).any()
    assert (batch.input_ids[~batch.real] == PADDING).all()
    owner = np.searchsorted(given.starts, batch.places, side="right") - 1
    assert (owner[asked] == np.broadcast_to(batch.documents[:, None], asked.shape)[asked]).all()


def test_windows_by_hand():
    batch = rolling(documents([7]), 4, 2, END).batch(0, 3, PADDING)
    assert batch.input_ids.tolist() == [[99, 1, 2, 3], [2, 3, 4, 5], [3, 4, 5, 6]]
    assert batch.labels.tolist() == [[1, 2, 3, 4], [-100, -100, 5, 6], [-100, -100, -100, 7]]


def test_batches_are_parts_of_the_whole():
    windows = rolling(documents([7, 3, 12]), 4, 3, END)
    whole = windows.batch(0, len(windows), PADDING)
    for at in range(len(windows)):
        part = windows.batch(at, at + 1, PADDING)
        size = part.input_ids.shape[1]
        np.testing.assert_array_equal(part.labels[0], whole.labels[at, :size])
        assert (whole.labels[at, size:] == IGNORED).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 6))
def test_pieces_are_the_joined_documents_cut(lengths: list[int], length: int):
    given = documents(lengths)
    stream = [
        token
        for low, high in zip(given.starts, given.starts[1:], strict=False)
        for token in [*given.tokens[low:high], END]
    ]
    found = pieces(given, length, END)
    assert found.rows.ravel().tolist() == stream[: len(stream) // length * length]
    owners = [number for number, size in enumerate(lengths) for _ in range(size + 1)]
    assert found.documents.tolist() == owners[: len(found.rows) * length : length]
    assert found.before.tolist() == [END, *stream][: len(found.rows) * length : length]

"""Sequences as arrays, and what one process makes and all map."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.encoding import EncodedRows
from pipelines.data.ragged import SHARED, Ragged, made_once, mapped, padded, padded_tensors, write

ROWS = st.lists(st.lists(st.integers(-100, 2**31 - 1), max_size=6), max_size=8)


@given(ROWS, st.data())
def test_sequences_are_looked_at_as_lists_of_lists_are(rows: list[list[int]], data: Any) -> None:
    found = Ragged.of(rows)
    assert found == rows
    assert list(found) == rows
    assert found.lengths.tolist() == [len(row) for row in rows]
    places = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)) if rows else []
    chosen = found.take(np.asarray(places, dtype=np.int64))
    assert chosen == [rows[place] for place in places]
    assert chosen[1:] == [rows[place] for place in places[1:]]
    assert chosen.values is found.values, "nothing is copied"
    assert [found.array(place).tolist() for place in range(len(rows))] == rows


@pytest.mark.parametrize(
    ("on_the_left", "ids", "real"),
    [
        (False, [[5, 6], [7, -1], [-1, -1]], [[1, 1], [1, 0], [0, 0]]),
        (True, [[5, 6], [-1, 7], [-1, -1]], [[1, 1], [0, 1], [0, 0]]),
    ],
)
def test_rows_are_padded_to_the_longest(on_the_left: bool, ids: list[list[int]], real: list[list[int]]) -> None:
    for pad in (padded, padded_tensors):
        assert [each.tolist() for each in pad([[5, 6], [7], []], -1, on_the_left)] == [ids, real]


@given(st.lists(ROWS, max_size=4))
def test_parts_are_joined_in_order(parts: list[list[list[int]]]) -> None:
    assert Ragged.joined([Ragged.of(part) for part in parts]) == [row for part in parts for row in part]


def encoded(rows: list[list[int]]) -> EncodedRows:
    ids = Ragged.of(rows)
    labels = list(range(len(rows)))
    return EncodedRows(
        input_ids=ids, token_type_ids=None, labels=labels, index=labels, lengths=ids.lengths, truncated=2
    )


@given(ROWS)
def test_what_is_written_is_what_is_mapped(rows: list[list[int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "x", (encoded(rows), "template"))
        found, template = mapped(Path(folder) / "x")
        assert (found.input_ids, template, found.truncated) == (rows, "template", 2)
        assert found[len(rows) - 1]["input_ids"] == rows[-1] if rows else len(found) == 0
        assert not found.input_ids.values.flags.writeable
        assert found.select([0])[0] == {"input_ids": rows[0], "index": 0, "labels": 0} if rows else True
        del found


CHILD = """
import json, sys
from pipelines.data.ragged import mapped
def resident():
    kinds = dict.fromkeys(("RssAnon", "RssFile"), 0)
    for line in open("/proc/self/status"):
        name, _, rest = line.partition(":")
        if name in kinds:
            kinds[name] = int(rest.split()[0]) * 1024
    return kinds
before = resident()
rows = mapped(sys.argv[1])
total = sum(int(row[0]) for row in rows)
after = resident()
print(json.dumps({"total": total, **{name: after[name] - before[name] for name in before}}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kinds of memory are Linux's")
def test_another_process_takes_no_memory_of_its_own_for_the_tokens(tmp_path: Path) -> None:
    """40 MB of tokens, of which every page is read."""
    values = np.arange(10_000_000, dtype=np.int32)
    ends = np.arange(1, 10_001, dtype=np.int64) * 1_000
    write(tmp_path / "x", Ragged(values, ends - 1_000, ends))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "x")], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert told["total"] == int((ends - 1_000).sum())
    assert told["RssAnon"] < 8 << 20
    assert told["RssFile"] > 36 << 20


def test_the_main_process_makes_and_all_map(tmp_path: Path) -> None:
    both, made, found = threading.Barrier(2), [], {}

    def process(rank: int) -> None:
        world = SimpleNamespace(size=2, is_main=rank == 0)
        context: Any = SimpleNamespace(world=world, folder=tmp_path, barrier=both.wait)

        def make() -> EncodedRows:
            made.append(rank)
            return encoded([[1, 2], [3]])

        found[rank] = made_once(context, "task", make)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in (1, 0)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert made == [0]
    assert found[0].input_ids == found[1].input_ids == [[1, 2], [3]]
    assert [path.name for path in (tmp_path / SHARED).iterdir()] == ["task"]
    alone: Any = SimpleNamespace(world=SimpleNamespace(size=1), folder=tmp_path / "none")
    assert made_once(alone, "task", lambda: 3) == 3
    assert not (tmp_path / "none").exists(), "one process writes nothing"

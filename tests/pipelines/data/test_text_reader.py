"""Texts read one after another are those that are read at once, from any place that was written down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.errors import DataError
from pipelines.data import text_reader
from pipelines.data.references import DatasetReference
from pipelines.data.text_reader import JoinedTexts

TEXTS = [f"text {row} äö" + ("\nanother line" if row % 3 == 0 else "") for row in range(25)]
CELLS: list[str | None] = [None if row == 5 else "   " if row == 4 else text for row, text in enumerate(TEXTS)]


def jsonl(file: Path) -> None:
    lines = [json.dumps({"id": row, "text": cell}, ensure_ascii=False) for row, cell in enumerate(CELLS)]
    file.write_bytes(("\ufeff" + "\r\n\n".join(lines)).encode())


def separated(file: Path) -> None:
    rows = [f'{row},"{cell or ""}"' for row, cell in enumerate(CELLS)]
    file.write_text("id,text\n" + "\n".join(rows), encoding="utf-8")


def parquet(file: Path) -> None:
    pq.write_table(pa.table({"id": list(range(25)), "text": CELLS}), file, row_group_size=7)


def plain(file: Path) -> None:
    file.write_text("\n\n\n".join(cell for cell in CELLS if cell), encoding="utf-8")


def listed(file: Path) -> None:
    file.write_text(json.dumps([{"text": cell} for cell in CELLS]))


WRITERS: dict[str, Callable[[Path], None]] = {
    ".jsonl": jsonl, ".csv": separated, ".parquet": parquet, ".txt": plain, ".json": listed,
}  # fmt: skip


@pytest.mark.parametrize("ending", WRITERS)
def test_from_every_place_the_rest_is_read(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_reader, "AT_ONCE", 4)
    for name in ("a", "b"):
        WRITERS[ending](tmp_path / f"{name}{ending}")
    reference = DatasetReference(path=str(tmp_path))
    expected = reference.rows()
    assert len(expected) == 46 + 2 * (ending == ".txt" and "   " in expected)
    reader = reference.texts()
    texts, places, shares = [], [reader.position()], []
    for text in reader:
        texts.append(text)
        places.append(json.loads(json.dumps(reader.position())))
        shares.append(reader.read())
    assert texts == expected
    for at in range(0, len(places), 5):
        assert list(reference.texts(start=places[at])) == expected[at:]
    assert list(reference.texts(30)) == expected[:30]
    assert list(reference.texts(30, start=places[27])) == expected[27:30]
    if ending != ".json":
        assert shares == sorted(shares)
        assert 0 < shares[0][0] <= shares[-1][0] <= shares[-1][1] == sum(f.stat().st_size for f in tmp_path.iterdir())


def test_data_sets_are_joined_and_entered_again(tmp_path: Path) -> None:
    for name, kind in (("a", ".jsonl"), ("b", ".csv")):
        WRITERS[kind](tmp_path / f"{name}{kind}")
    sets = [
        DatasetReference(path=str(tmp_path / "a.jsonl")),
        DatasetReference(path="builtin/python-docs"),
        DatasetReference(path=str(tmp_path / "b.csv")),
    ]
    openers: Any = [lambda start, each=each: each.texts(10, start) for each in sets]
    expected = [text for each in sets for text in each.rows(10)]
    reader = JoinedTexts(openers)
    places = [reader.position()]
    texts = []
    for text in reader:
        texts.append(text)
        places.append(json.loads(json.dumps(reader.position())))
    assert texts == expected
    for at in (0, 3, 10, 17, 20, 29, 30):
        assert list(JoinedTexts(openers, places[at])) == expected[at:]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", '{"texts": "a"}\n', r"has no column 'text'\. Did you mean 'texts'\?.* Columns found: texts"),
        ("a.csv", "id,body\n1,a\n", r"has no column 'text'\..* Columns found: id, body"),
        ("a.jsonl", '{"text": "a"}\n\n{"text": 3}\n', r"row 2, holds '3' \(int\) in the column 'text', must be a text"),
        ("a.jsonl", '{"text": "a"}\n\n{"text": \n', r"a.jsonl, line 3, is not valid JSON"),
        ("a.jsonl", '{"text": " "}\n{"text": null}\n', r"no text in the column 'text': all 2 cells are empty"),
        ("a.csv", 'id,text\n1,a\n2,"b\n', r"a.csv, line 3, is not valid CSV"),
        ("a.jsonl", "", r"a.jsonl is empty"),
        ("a.jsonl", "\n", r"holds no rows; give a file with data in it"),
    ],
)
def test_bad_data_has_one_sentence(name: str, content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=sentence):
        list(DatasetReference(path=str(tmp_path / name)).texts())


def test_a_line_is_counted_from_the_top_of_the_file_after_a_resume(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n{"text": "b"}\n{"text": "c"}\nno json\n')
    reader = DatasetReference(path=str(file)).texts()
    assert [next(reader), next(reader)] == ["a", "b"]
    rest = DatasetReference(path=str(file)).texts(start=reader.position())
    with pytest.raises(DataError, match="line 4, is not valid JSON"):
        list(rest)

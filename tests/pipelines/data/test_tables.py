"""Every format is read as an independent reader reads it, and what cannot be read is said in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from pipelines.core.data_files import ENDINGS
from pipelines.core.errors import DataError
from pipelines.data import tables
from tests.covering import examples

ROWS = [
    {"text": 'a "quoted", one', "label": "yes"},
    {"text": "two\nlines, and a tab\t.", "label": "no"},
    {"text": "é 漢 🙂", "label": ""},
]


def plain(file: Path) -> list[dict[str, object]]:
    rows = tables.read([file]).to_list()
    assert isinstance(rows, list)
    return rows


@pytest.mark.parametrize(("ending", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_separated_files_are_read_as_pandas_wrote_them(tmp_path: Path, ending: str, separator: str):
    file = tmp_path / f"rows{ending}"
    pandas.DataFrame(ROWS).to_csv(file, sep=separator, index=False)
    assert plain(file) == ROWS


@examples(20, 50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cells=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1),
            st.text(st.characters(codec="utf-8", exclude_characters="\0\r")),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_text_survives_csv_and_jsonl(tmp_path: Path, cells: list[tuple[str, str]]):
    rows = [{"text": text, "other": other} for text, other in cells]
    pandas.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "rows.jsonl").write_text(lines, encoding="utf-8", newline="\n")
    assert plain(tmp_path / "rows.csv") == rows
    assert plain(tmp_path / "rows.jsonl") == rows


def test_what_was_read_is_not_read_again_to_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    monkeypatch.setattr("datasets.arrow_dataset.generate_fingerprint", lambda dataset: pytest.fail("it was hashed"))
    one, other = tables.read([file]), tables.read([file])
    assert one.to_list() == ROWS
    assert one._fingerprint != other._fingerprint  # under which another table's rows could be kept


def test_cells_of_csv_stay_texts(tmp_path: Path):
    (tmp_path / "n.csv").write_text("text,label\n007,1e3\nNA,nan\n")
    assert plain(tmp_path / "n.csv") == [{"text": "007", "label": "1e3"}, {"text": "NA", "label": "nan"}]


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path: Path):
    (tmp_path / "w.csv").write_bytes(b"\xef\xbb\xbftext,label\r\nhello,1\r\n\r\n")
    assert plain(tmp_path / "w.csv") == [{"text": "hello", "label": "1"}]
    (tmp_path / "w.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "hello"}\r\n')
    assert plain(tmp_path / "w.jsonl") == [{"text": "hello"}]


def test_json_lines_and_lists_keep_types_and_fill_gaps(tmp_path: Path):
    rows = [{"text": "a", "label": 1}, {"text": "b", "extra": [1.5]}]
    (tmp_path / "r.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    (tmp_path / "r.json").write_text(json.dumps(rows))
    expected = [{"text": "a", "label": 1, "extra": None}, {"text": "b", "label": None, "extra": [1.5]}]
    assert plain(tmp_path / "r.jsonl") == expected
    assert plain(tmp_path / "r.json") == expected


def test_chunks_with_different_types_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "CHUNK", 2)
    rows = [{"text": "a", "n": None}, {"text": "b", "n": None}, {"text": "c", "n": 1}, {"text": "d", "n": 2.5}]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert plain(tmp_path / "r.jsonl") == [row | {"n": None if row["n"] is None else float(row["n"])} for row in rows]
    (tmp_path / "r.csv").write_text("text\n" + "".join(f"{n}\n" for n in range(5)))
    assert [row["text"] for row in plain(tmp_path / "r.csv")] == list("01234")


def test_a_text_file_holds_documents_between_blank_lines(tmp_path: Path):
    (tmp_path / "t.txt").write_text("\n\nfirst line\n  second line\n \n\nnext document\n\n")
    assert plain(tmp_path / "t.txt") == [{"text": "first line\n  second line"}, {"text": "next document"}]


def test_parquet_keeps_class_names(tmp_path: Path):
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    Dataset.from_list([{"text": "a", "label": 1}], features=features).to_parquet(tmp_path / "p.parquet")
    assert tables.read([tmp_path / "p.parquet"]).features["label"].names == ["no", "yes"]


def test_parquet_beyond_the_limit_is_mapped_and_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    pandas.DataFrame(ROWS).to_parquet(tmp_path / "p.parquet")
    in_memory = plain(tmp_path / "p.parquet")
    monkeypatch.setattr(tables, "MAPPED", 0)
    mapped = tables.read([tmp_path / "p.parquet"])
    assert mapped.to_list() == in_memory
    assert mapped.cache_files


def test_several_files_are_read_in_order_and_missing_columns_are_empty(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    (tmp_path / "b.jsonl").write_text('{"text": "b", "label": 3}')
    rows = tables.read([tmp_path / "b.jsonl", tmp_path / "a.jsonl"]).to_list()
    assert rows == [{"text": "b", "label": 3}, {"text": "a", "label": None}]


REFUSED = {
    "empty.csv": (b"", "is empty"),
    "header.csv": (b"text,label\n", "holds no rows"),
    "latin.csv": ("text,label\nok,1\ncafé,1\n".encode("latin-1"), "not UTF-8 text (byte 0xe9 in line 3)"),
    "latin.jsonl": ('{"text": "café"}'.encode("latin-1"), "not UTF-8 text (byte 0xe9 in line 1)"),
    "latin.json": ('[{"text": "café"}]'.encode("latin-1"), "not UTF-8 text (byte 0xe9 in line 1)"),
    "latin.txt": ("café".encode("latin-1"), "not UTF-8 text"),
    "twice.csv": (b"text,text\na,b\n", "names the column 'text' more than once"),
    "noname.csv": (b"text,\na,b\n", "column without a name"),
    "ragged.csv": (b"text,label\nfine,1\none, two,1\n", "line 3, has 3 cells where the header has 2 (text, label)"),
    "quote.csv": (b'text,label\n"open,1\nmore,2\n', "is not valid CSV"),
    "inner.tsv": (b'text\tlabel\n"a" b\t1\n', "line 2, is not valid TSV"),
    "broken.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2, is not valid JSON"),
    "array.jsonl": (b'["a"]\n', 'line 1, holds ["a"], must hold an object'),
    "mixed.jsonl": (b'{"label": "a"}\n{"label": 1}\n', "different types in 'label'"),
    "lines.json": (b'{"a": 1}\n{"a": 2}\n', "name the file .jsonl"),
    "object.json": (b'{"a": 1}', "holds a dict, must hold a list"),
    "blank.txt": (b"\n \n", "holds only blank lines"),
    "blank.jsonl": (b"\n \n", "holds no rows"),
    "fake.parquet": (b"PAR1 not really", "is not a readable Parquet file"),
    "what.xlsx": (b"PK", "unknown format; known file endings: .parquet, .jsonl, .json, .csv, .tsv, .txt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_said_in_one_sentence_that_names_the_file(tmp_path: Path, name: str):
    content, expected = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        tables.read([tmp_path / name])
    message = str(caught.value)
    assert expected in message
    assert str(tmp_path / name) in message
    assert "\n" not in message


def test_files_whose_columns_disagree_are_refused(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"label": "a"}')
    (tmp_path / "b.jsonl").write_text('{"label": 3}')
    with pytest.raises(DataError, match=r"the files a.jsonl, b.jsonl hold different columns"):
        tables.read([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])


def test_a_file_that_is_gone_or_may_not_be_read_is_said(tmp_path: Path):
    with pytest.raises(DataError, match="is not there"):
        tables.read_file(tmp_path / "gone.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match="could not be read"):
        tables.read_file(tmp_path / "folder.csv")


def test_a_file_of_zero_rows_of_parquet_is_refused(tmp_path: Path):
    pa.parquet.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "z.parquet")
    with pytest.raises(DataError, match="holds no rows"):
        tables.read([tmp_path / "z.parquet"])


def test_every_ending_of_a_data_file_has_its_reader():
    assert tuple(tables.READERS) == ENDINGS

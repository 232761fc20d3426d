"""Small files that would fill the memory: refused with a sentence that says their size, in a process with little of it."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core import data_limits
from pipelines.core.errors import CommandError, DataError
from pipelines.data import tables
from pipelines.data.references import DatasetReference
from service.cli import columns

MEMORY = 3 << 30
CHILD = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
{work}
print("peak", next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
WORK = """
from pipelines.core.errors import DataError
from pipelines.data.references import DatasetReference
from pipelines.data.tables import read_file
from service.cli.columns import read
folder = Path(sys.argv[1])
for name in ("texts", "nested", "zeros", "pages"):
    try:
        read_file(folder / f"{name}.parquet")
    except DataError as error:
        print("refused", error)
print("looked at", read(folder / "texts.parquet", 50).rows)
print("texts", len(DatasetReference(path=str(folder / "texts.parquet")).rows(50)))
"""


def child(work, file):
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(memory=MEMORY, work=work), str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *said, peak = done.stdout.strip().splitlines()
    assert int(peak.split()[2]) < 1 << 20, "more than a GiB was used"
    return said


def one_text(rows, size=1 << 20):
    """The same text in every row: stored once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))


@pytest.fixture(scope="module")
def bombs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    text = pa.table({"text": one_text(512), "label": ["a", "b"] * 256})
    with pq.ParquetWriter(
        folder / "texts.parquet", text.schema, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 24
    ) as writer:
        for _ in range(10):  # 5 GB of texts
            writer.write_table(text)
    nested = pa.table({"rows": pa.ListArray.from_arrays([0, 256, 512], one_text(512))})
    with pq.ParquetWriter(
        folder / "nested.parquet",
        nested.schema,
        compression="zstd",
        store_schema=False,
        dictionary_pagesize_limit=1 << 24,
    ) as writer:
        for _ in range(10):
            writer.write_table(nested)
    zeros = pa.table({"label": pa.array([0] * 5_000_000, pa.int64())})
    with pq.ParquetWriter(folder / "zeros.parquet", zeros.schema, compression="zstd") as writer:
        for _ in range(8):  # 40 million numbers, run-length encoded
            writer.write_table(zeros)
    pages = pa.table({"text": pa.array(["x" * (1 << 26)] * 2)})
    with pq.ParquetWriter(
        folder / "pages.parquet", pages.schema, compression="zstd", use_dictionary=False, write_statistics=False
    ) as writer:
        for _ in range(10):  # 1.25 GB of pages
            writer.write_table(pages)
    return folder


def test_files_that_would_fill_the_memory_are_refused_with_their_size_and_a_few_rows_of_them_are_read(bombs):
    *refused, looked, texts = child(WORK, bombs)
    for name, said in zip(("texts", "nested", "zeros", "pages"), refused, strict=True):
        file = bombs / f"{name}.parquet"
        assert said.startswith(f"refused {file} has {file.stat().st_size:,} bytes, and its rows take ")
        assert "are allowed; give fewer rows, or shorter texts, in each file" in said
    assert (looked, texts) == ("looked at 50", "texts 50")


def test_a_stage_that_asks_for_few_texts_decodes_no_more(tmp_path, monkeypatch):
    cells = ["", None, *(f"text {n}" for n in range(9_998))]
    pq.write_table(pa.table({"id": range(10_000), "text": cells}), tmp_path / "t.parquet", row_group_size=1000)
    whole = DatasetReference(path=str(tmp_path / "t.parquet")).rows()
    decoded = []
    plain = data_limits._decoded_bytes
    monkeypatch.setattr(data_limits, "_decoded_bytes", lambda array: decoded.append(len(array)) or plain(array))
    assert DatasetReference(path=str(tmp_path / "t.parquet")).rows(300) == whole[:300]
    assert sum(decoded) == 512
    with pytest.raises(DataError, match="txt"):
        DatasetReference(path=str(tmp_path / "t.parquet"), text="txt").rows(3)


def test_the_refusal_comes_before_a_text_is_decoded(bombs, monkeypatch):
    decoded = []
    monkeypatch.setattr(data_limits, "LEAST_DECODED", 1 << 20)
    monkeypatch.setattr(data_limits, "MOST_RATIO", 1)
    monkeypatch.setattr(pa, "RecordBatch", type("RecordBatch", (), {"from_arrays": staticmethod(decoded.append)}))
    for name in ("texts", "nested", "zeros", "pages"):
        with pytest.raises(DataError, match="its rows take"):
            list(data_limits.parquet_batches(bombs / f"{name}.parquet"))
    assert decoded == []


def test_ordinary_files_are_read_as_they_are(tmp_path):
    table = pa.table(
        {
            "text": [f"text {n % 7}" for n in range(25_000)],
            "pair": [{"a": "x", "b": None}] * 25_000,
            "words": [["a", None], [], None, ["b"] * 3, ["c"]] * 5000,
            "label": pa.array([0, 1, None, 3, 4] * 5000, pa.int8()),
            "kind": pa.array(["u", "v"] * 12_500).dictionary_encode(),
            "raw": [b"\0\xff", b""] * 12_500,
        }
    ).replace_schema_metadata({"huggingface": "{}"})
    for options in (
        {},
        {"use_dictionary": False},
        {"row_group_size": 999},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    ):
        pq.write_table(table, tmp_path / "t.parquet", **options)
        found, expected = tables.read_file(tmp_path / "t.parquet"), pq.read_table(tmp_path / "t.parquet")
        assert found.equals(expected)
        assert found.schema.equals(expected.schema, check_metadata=True)
        assert sum(batch.num_rows for batch in data_limits.parquet_batches(tmp_path / "t.parquet", 1234)) == 1234
    pq.write_table(table.slice(0, 0), tmp_path / "t.parquet")
    assert tables.read_file(tmp_path / "t.parquet").num_rows == 0


def test_objects_that_each_name_something_else_are_refused_before_they_become_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(pa, "array", None)
    for name, text in (
        ("a.jsonl", "\n".join(json.dumps({f"c{n}": n}) for n in range(20_000))),
        ("a.json", json.dumps([{f"c{n}": n} for n in range(20_000)])),
    ):
        file = tmp_path / name
        file.write_text(text)
        with pytest.raises(DataError, match="has 20,000 different names in its objects, at most 2,000 are allowed"):
            tables.read_file(file)
        with pytest.raises(CommandError, match="has 20,000 different names in its objects"):
            columns.read(file)


@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_deep_data_is_refused_with_a_sentence(tmp_path, ending):
    file = tmp_path / f"deep{ending}"
    file.write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(DataError, match="deep"):
        tables.read_file(file)
    with pytest.raises(CommandError):
        columns.read(file)


def test_a_json_file_that_is_too_large_to_be_read_whole_is_not_read(tmp_path, monkeypatch):
    file = tmp_path / "large.json"
    with open(file, "wb") as made:
        made.truncate(data_limits.MOST_JSON + 1)
    monkeypatch.setattr(Path, "read_text", None)
    with pytest.raises(DataError, match=r"is read whole; write one object a line and name it \.jsonl"):
        tables.read_file(file)
    with pytest.raises(CommandError, match=r"name it \.jsonl"):
        columns.read(file)


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_cell_has_a_largest_size(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(tables, "LONGEST_CELL", 100)
    monkeypatch.setattr(columns, "LONGEST_CELL", 100)
    file = tmp_path / f"t{ending}"
    file.write_text("text\n" + "x" * 101 + "\n")
    with pytest.raises(DataError, match="larger than field limit"):
        tables.read_file(file)
    with pytest.raises(CommandError, match="larger than field limit"):
        columns.read(file)

"""The footer reader against pyarrow."""

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipelines.runs.planning.sizes import Footer, read_footer


def by_pyarrow(file) -> Footer:
    about = parquet.read_metadata(file)
    sizes: dict[str, int] = {}
    for group in range(about.num_row_groups):
        for place in range(about.num_columns):
            column = about.row_group(group).column(place)
            sizes[column.path_in_schema] = sizes.get(column.path_in_schema, 0) + column.total_uncompressed_size
    return Footer(about.num_rows, sizes)


@pytest.mark.parametrize("rows", [0, 1, 5000])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_it_says_what_pyarrow_says(tmp_path, rows, compression):
    table = pa.table(
        {
            "text": pa.array([f"sentence {number}" * 9 for number in range(rows)], pa.string()),
            "label": pa.array(range(rows), pa.int64()),
            "share": pa.array([number / 7 for number in range(rows)], pa.float64()),
            "answers": pa.array(
                [{"start": [number], "text": ["x"]} for number in range(rows)],
                pa.struct([("start", pa.list_(pa.int32())), ("text", pa.list_(pa.string()))]),
            ),
        }
    )
    file = tmp_path / "rows.parquet"
    parquet.write_table(table, file, row_group_size=700, compression=compression)
    assert read_footer(file) == by_pyarrow(file)
    assert read_footer(file).rows == rows


def test_real_files_too(mirror):
    files = sorted((mirror / "glue").rglob("*.parquet")) + sorted((mirror / "squad").rglob("*.parquet"))
    assert len(files) > 20
    for file in files:
        assert read_footer(file) == by_pyarrow(file)


def test_what_is_not_parquet_is_refused(tmp_path):
    parquet.write_table(pa.table({"text": ["a"]}), tmp_path / "whole.parquet")
    content = (tmp_path / "whole.parquet").read_bytes()
    broken = {
        "empty": b"",
        "text": b"sentence,label\n" * 9,
        "cut": content[: len(content) // 2],
        "long": content[:-8] + (10**6).to_bytes(4, "little") + b"PAR1",
        "short": content[:-8] + (9).to_bytes(4, "little") + b"PAR1",
    }
    for name, data in broken.items():
        file = tmp_path / f"{name}.parquet"
        file.write_bytes(data)
        with pytest.raises(ValueError, match=name):
            read_footer(file)

"""No file that a user brings makes a reader crash, hang or take more memory than it may: it is read, or refused in a
sentence. What the fuzzers once found stays here as an example."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.parquet_footer import row_groups
from tests.fuzzing.targets import TARGETS, parquet_seeds

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINES = ("atheris", "hypothesis")
SECONDS = float(os.environ.get("FINERY_FUZZ_SECONDS", "12"))
"""For each reader and engine."""


FOUND = {
    "recipe": [
        b"? [?a, b]\n: &anchor {x: 0x1f}\nb: *anchor\n<<: [*anchor]\n",
        b"a: " + b"[" * 100_000,
        b"[" * 2000 * 50,
        b"? " * 5000,
        b"- " * 5000,
    ],
    "training-file": [
        b'{"item": {"a": "\\ud800"}}\n',
        b'{"item": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}\n",
    ],
}
"""Target -> inputs that once made it crash or hang."""


@pytest.mark.parametrize(("name", "content"), [(name, each) for name, found in FOUND.items() for each in found])
def test_what_was_found_is_refused_in_a_sentence(name, content):
    TARGETS[name](content)


def test_the_seeds_of_the_small_readers_are_read_or_refused_in_a_sentence():
    for name in sorted(TARGETS.keys() - {"safetensors"}):
        for content in TARGETS[name].seeds():
            TARGETS[name](content)


def test_a_parquet_file_that_lies_about_its_sizes_does_not_end_the_process(tmp_path):
    """Every footer with one byte changed where it tells of sizes; in a process of its own, which must live."""
    for number, content in enumerate(parquet_seeds()):
        (tmp_path / str(number)).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", CHANGED, *map(str, sorted(tmp_path.iterdir()))],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "histogram size mismatch" in done.stdout, "the probe works: pyarrow refuses some of them by these statistics"


CHANGED = """
import sys
from tests.fuzzing.targets import TARGETS
from pipelines.core.errors import FineryError
for path in sys.argv[1:]:
    content = open(path, "rb").read()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for at in range(begin, len(content) - 8):
        if content[at] & 0x0F == 6 and content[at] >> 4 in range(1, 12):  # the header of a list of 64-bit numbers
            changed = bytearray(content)
            changed[at] += 0x10
            try:
                TARGETS["parquet"].read(bytes(changed))
            except FineryError as error:
                print(error)
"""


def test_the_footer_that_we_read_says_what_pyarrow_s_says(tmp_path):
    """The same file by two readers, its statistics of sizes whole."""
    rows = 1000
    table = pa.table(
        {
            "text": pa.array(["é" * (number % 7) for number in range(rows)]),
            "number": pa.array(range(rows), pa.int32()),
            "nested": pa.array([{"a": [number], "b": number / 2} for number in range(rows)]),
            "truth": pa.array([number % 2 == 0 for number in range(rows)]),
        }
    )
    for number, options in enumerate(({}, {"use_dictionary": False, "compression": "gzip"}, {"version": "1.0"})):
        file = tmp_path / f"{number}.parquet"
        pq.write_table(table, file, row_group_size=300, **options)
        theirs = pq.ParquetFile(file).metadata
        mine = row_groups(file)
        assert [group.num_rows for group in mine] == [300, 300, 300, 100]
        for at, group in enumerate(mine):
            for place, chunk in enumerate(group.chunks):
                column = theirs.row_group(at).column(place)
                assert (chunk.path, chunk.physical_type) == (column.path_in_schema, column.physical_type)
                assert (chunk.num_values, chunk.total_uncompressed_size) == (
                    column.num_values,
                    column.total_uncompressed_size,
                )
                assert chunk.encodings == set(column.encodings)


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found(name, engine):
    """In a process with bounded memory, which ends itself at an input that takes too long."""
    if engine == "atheris":
        pytest.importorskip("atheris", reason="atheris has no wheel for this Python")
    command = [sys.executable, "-m", "tests.fuzzing.fuzz", name, "--engine", engine, "--seconds", str(SECONDS)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, errors="replace", check=False,
        timeout=240 + SECONDS, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-500:]}\n{done.stderr[-4000:]}"
    count = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("inputs: ", "Done "))]
    assert int(count[-1].split()[1]) >= 20, "it hardly ran: this proves little"

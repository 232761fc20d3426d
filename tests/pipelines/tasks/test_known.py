"""What is told of data without reading it is what reading it gives."""

import dataclasses
import json
import tracemalloc

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipelines.core.costs import BYTES_PER_TOKEN
from pipelines.core.parquet_footer import num_rows, row_groups
from pipelines.core.registry import TASKS
from pipelines.data import row_counts
from pipelines.data.references import DatasetReference
from pipelines.data.row_counts import text_bytes
from pipelines.tasks.base import LabelledTask, SplitLocation
from pipelines.tasks.known import mean_tokens, task_rows

TEXTS = ["one", 'a "quoted" word', "two\nlines, and a comma", "", "last"]


def write(folder, kind):
    file = folder / f"rows{kind}"
    if kind == ".parquet":
        parquet.write_table(pa.table({"text": TEXTS, "label": ["a"] * 5}), file)
    elif kind == ".jsonl":
        file.write_text("\n".join(json.dumps({"text": text, "label": "a"}) for text in TEXTS) + "\n\n")
    else:
        import csv

        with open(file, "w", newline="") as out:
            writer = csv.writer(out, delimiter="," if kind == ".csv" else "\t")
            writer.writerows([("text", "label"), *((text, "a") for text in TEXTS)])
    return file


def task_of(file, validation=None) -> LabelledTask:
    places = {"train": SplitLocation(str(file), None, None)}
    if validation is not None:
        places["validation"] = SplitLocation(str(validation), None, None)
    return LabelledTask(
        "mine", "classification", ("text",), "label", ("accuracy",), places, labels=("a", "b"), empty_texts=True
    )


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_rows_of_a_users_own_file(tmp_path, kind):
    file = write(tmp_path, kind)
    task = task_of(file, validation=file)
    assert task_rows(task, "train") == len(task.rows("train")) == 5
    assert task_rows(task, "validation") == 5


def test_rows_that_are_held_out_are_not_trained_on(tmp_path):
    file = tmp_path / "many.csv"
    file.write_text("text,label\n" + "".join(f"row {number},{'ab'[number % 2]}\n" for number in range(57)))
    task = task_of(file)
    assert task_rows(task, "train") == len(task.rows("train"))
    assert task_rows(task, "validation") == len(task.rows("validation"))
    assert task_rows(task, "train") + task_rows(task, "validation") == 57


def test_an_empty_file_has_no_rows(tmp_path):
    (tmp_path / "none.jsonl").write_text("")
    assert [task_rows(task_of(tmp_path / "none.jsonl"), split) for split in ("train", "validation")] == [0, 0]


@pytest.mark.parametrize("name", ["glue/mrpc", "glue/mnli", "glue/stsb"])
def test_rows_of_glue(mirror, name):
    task = TASKS.load(name)
    assert task_rows(task, "train") == len(task.rows("train"))
    for split in task.evaluation_splits.values():
        assert task_rows(task, split) == len(task.rows(split))


def test_what_cannot_be_told_is_unknown_and_nothing_is_read(tmp_path, monkeypatch):
    large = tmp_path / "large.csv"
    large.write_text("text,label\n" + "x,a\n" * 1000)
    assert task_rows(task_of(large, validation=large), "train") == 1000
    monkeypatch.setattr(row_counts, "LARGEST_COUNTED", 100)
    assert task_rows(task_of(large, validation=large), "train") is None
    assert task_rows(task_of(tmp_path / "absent.csv", validation=large), "train") is None
    assert task_rows(TASKS.load("builtin/python-docs"), "train") is None


def test_bytes_of_text_are_those_of_its_column(mirror):
    reference = DatasetReference.model_validate({"path": "english_novels"}, context={"folder": mirror})
    read = sum(len(text.encode()) for text in reference.rows())
    assert text_bytes(reference, None) == pytest.approx(read, rel=0.05)
    rows = len(reference.load())
    assert text_bytes(reference, rows // 2) == pytest.approx(text_bytes(reference, None) / 2, rel=0.01)
    assert text_bytes(reference, 10 * rows) == text_bytes(reference, None)


def test_bytes_of_a_plain_text_file_are_its_size(tmp_path):
    file = tmp_path / "novel.txt"
    file.write_text("A line.\n\nAnother one.\n")
    reference = DatasetReference.model_validate({"path": "novel.txt"}, context={"folder": tmp_path})
    assert text_bytes(reference, None) == file.stat().st_size


def test_counting_rows_keeps_no_file_in_memory(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("text,label\n" + "some words of a row,a\n" * 100_000)
    tracemalloc.start()
    assert task_rows(task_of(file, validation=file), "train") == 100_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < file.stat().st_size / 4


PAIRS = [{"first": "a" * n, "second": "b" * (2 * n), "label": "c"} for n in range(1, 61)] * 5
"""Pairs of 91.5 bytes on average."""


def pairs_in(folder, kind):
    file = folder / f"pairs{kind}"
    if kind == ".parquet":
        parquet.write_table(pa.Table.from_pylist(PAIRS), file, row_group_size=150, use_dictionary=False)
    elif kind == ".jsonl":
        file.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    else:
        rows = (("," if kind == ".csv" else "\t").join(pair.values()) for pair in PAIRS)
        file.write_text("\n".join((("," if kind == ".csv" else "\t").join(PAIRS[0]), *rows)))
    return file


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_the_mean_length_of_pairs_in_a_users_own_file(tmp_path, kind):
    file = pairs_in(tmp_path, kind)
    task = dataclasses.replace(task_of(file), columns=("first", "second"))
    read, again = mean_tokens(task, "train")
    # a chunk of Parquet has four bytes more a text, and a header
    assert read == again == pytest.approx(91.5 / 4, abs=3)
    assert mean_tokens(dataclasses.replace(task, columns=("first",)), "validation")[0] == pytest.approx(30.5 / 4, abs=2)
    assert mean_tokens(dataclasses.replace(task, columns=("absent",)), "train") is None
    assert mean_tokens(dataclasses.replace(task, kind="qa"), "train") is None


def test_targets_that_are_texts_have_a_length_of_their_own(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"translation": {"en": "a" * 40, "de": "b" * 24}}) + "\n")
    task = dataclasses.replace(
        task_of(tmp_path / "rows.jsonl"), kind="seq2seq", columns=("translation.en",), label="translation.de"
    )
    assert mean_tokens(task, "train") == (10, 6)


@pytest.mark.parametrize("name", ["glue/sst2", "glue/mrpc", "glue/stsb", "trec/coarse", "multi30k/en-de"])
def test_the_mean_length_of_benchmarks_is_that_of_their_texts(mirror, name):
    task = TASKS.load(name)
    rows = task.rows("train")
    joined = zip(rows.texts, rows.pairs or [""] * len(rows), strict=True)
    read = sum(len((first + second).encode()) for first, second in joined) / len(rows) / BYTES_PER_TOKEN
    assert mean_tokens(task, "train")[0] == pytest.approx(read, rel=0.2)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PAR1" + b"\xff" * 60 + b"\x30\0\0\0PAR1", b'{"text": 3}\n', b"[1]\n", b"[" * 9999]
)
@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_what_a_broken_file_holds_is_unknown(tmp_path, kind, content):
    file = tmp_path / f"rows{kind}"
    file.write_bytes(content)
    assert mean_tokens(task_of(file), "train") is None
    if kind == ".parquet":
        assert task_rows(task_of(file, validation=file), "train") is None


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_rows_of_a_parquet_file_are_those_that_pyarrow_counts(tmp_path, rows):
    file = tmp_path / "rows.parquet"
    parquet.write_table(
        pa.table({"text": [str(n) for n in range(rows)], "n": list(range(rows))}), file, row_group_size=64
    )
    assert (
        num_rows(file)
        == parquet.read_metadata(file).num_rows
        == sum(each.num_rows for each in row_groups(file))
        == rows
    )

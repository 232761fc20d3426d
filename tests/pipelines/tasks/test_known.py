"""What is told of data without reading it is what reading it gives."""

import dataclasses
import json
import tracemalloc

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipelines.core.costs import BYTES_PER_TOKEN
from pipelines.core.parquet_footer import mean_length, num_rows, row_groups
from pipelines.core.registry import TASKS
from pipelines.data import row_counts
from pipelines.data.references import DatasetReference
from pipelines.data.row_counts import text_bytes
from pipelines.tasks.base import LabelledTask, SplitLocation
from pipelines.tasks.extractive_qa.task import ExtractiveQA
from pipelines.tasks.known import mean_tokens, task_rows
from pipelines.tasks.multiple_choice.task import MultipleChoice

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
    assert mean_tokens(dataclasses.replace(task, kind="token_classification"), "train") is None


def test_targets_that_are_texts_have_a_length_of_their_own(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"translation": {"en": "a" * 40, "de": "b" * 24}}) + "\n")
    task = dataclasses.replace(
        task_of(tmp_path / "rows.jsonl"), kind="seq2seq", columns=("translation.en",), label="translation.de"
    )
    assert mean_tokens(task, "train") == (10, 6)


PASSAGES = ["a" * 1000, "a passage " * 60, "b" * 100]
QUESTIONS = [
    {"passage": PASSAGES[n % 3], "question": f"{n:020}", "answer": 0, "options": ["c" * 10, "d" * 30, "e" * 20]}
    for n in range(3000)
]
"""Passages of 566.7 bytes on average, with questions of 20 and options of 20 bytes."""


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
@pytest.mark.parametrize("group", [300, 3000])
def test_of_passages_with_many_questions_the_mean_is_that_of_the_passages(tmp_path, kind, group):
    """A chunk of Parquet holds each of them once."""
    file = tmp_path / f"rows{kind}"
    if kind == ".parquet":
        parquet.write_table(pa.Table.from_pylist(QUESTIONS), file, row_group_size=group)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    columns = {"question": "question", "context": "passage", "train": str(file)}
    asked = ExtractiveQA(kind="qa", answers="options", **columns).task("asked")
    assert mean_tokens(asked, "train") == (pytest.approx((566.7 + 20) / 4, rel=0.01),) * 2
    chosen = MultipleChoice(kind="multiple_choice", **columns).task("chosen")
    assert mean_tokens(chosen, "train")[0] == pytest.approx((566.7 + 20 + 20) / 4, rel=0.01)


def test_of_options_in_columns_one_is_measured(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("question,a,b,answer\n" + f"{'q' * 24},{'a' * 16},{'b' * 90},A\n" * 5)
    options = {"question": "question", "options": ["a", "b"], "answer": "answer", "train": str(file)}
    task = MultipleChoice(kind="multiple_choice", **options).task("chosen")
    assert mean_tokens(task, "train") == (10, 10)


@pytest.mark.parametrize("name", ["race/middle", "race/high", "squad"])
def test_the_mean_length_of_passages_and_questions_is_that_of_what_is_read(mirror, name):
    task = TASKS.load(name)
    rows = task.rows("train")
    read = [*map(len, map(str.encode, rows.texts)), *(len(text.encode()) for text in rows.pairs or ())]
    options = [len(each.encode()) for row in getattr(rows, "options", ()) for each in row]
    mean = sum(read) / len(rows) + (sum(options) / len(options) if options else 0)
    assert mean_tokens(task, "train")[0] == pytest.approx(mean / BYTES_PER_TOKEN, rel=0.1)


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


@pytest.mark.parametrize("damage", [b"\xff" * 20, b"\x15\x04\x15\x10\x15\x10\x4c\x15\xc8\x01", b"\x15\x04" * 10])
def test_of_a_dictionary_that_is_none_nothing_is_told(tmp_path, damage):
    file = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"text": ["some words"] * 9}), file)
    content = file.read_bytes()
    start = row_groups(file)[0].chunks[0].start
    assert mean_length(file, "text") == 10
    file.write_bytes(content[:start] + damage + content[start + len(damage) :])
    assert mean_tokens(dataclasses.replace(task_of(file), columns=("text",)), "train") is None


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

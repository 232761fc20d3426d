"""A GLUE submission has eleven files with the official names, headers, line counts and label words."""

from __future__ import annotations

import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.errors import CommandError, DataError
from pipelines.core.registry import TASKS
from pipelines.data.mirror import folder_of
from pipelines.evaluation.official.glue import PARTS, lacking, lines, possible, write_submission

EVERY = [name for name in TASKS if name.startswith("glue/") and name != "glue/ax"]
OFFICIAL = {
    "CoLA.tsv": 1063,
    "SST-2.tsv": 1821,
    "MRPC.tsv": 1725,
    "STS-B.tsv": 1379,
    "QQP.tsv": 390965,
    "MNLI-m.tsv": 9796,
    "MNLI-mm.tsv": 9847,
    "QNLI.tsv": 5463,
    "RTE.tsv": 3000,
    "WNLI.tsv": 146,
    "AX.tsv": 1104,
}
"""Rows of the test splits, as the card of the data set nyu-mll/glue lists them."""
WORDS = {
    **{file: {"0", "1"} for file in ("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv", "WNLI.tsv")},
    **{file: {"entailment", "not_entailment"} for file in ("QNLI.tsv", "RTE.tsv")},
    **{file: {"entailment", "neutral", "contradiction"} for file in ("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv")},
}


@pytest.fixture
def test_sets(tmp_path, monkeypatch):
    """Test splits of the official sizes, with texts of one letter."""
    for part in PARTS:
        task = TASKS.load(part.task)
        folder = tmp_path / "data" / "glue" / part.task.removeprefix("glue/")
        folder.mkdir(parents=True, exist_ok=True)
        label = [-1.0 if task.kind == "regression" else -1] * part.rows
        pq.write_table(
            pa.table({**{column: ["a"] * part.rows for column in task.columns}, "label": label}),
            folder / f"{part.split}-00000-of-00001.parquet",
        )
    monkeypatch.setenv("FINERY_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "glue"


def drawn(part) -> np.ndarray:
    task = TASKS.load(part.task)
    outputs = 1 if task.kind == "regression" else len(task.labels)
    return np.random.default_rng(1).normal(2.0, 3.0, size=(part.rows, outputs)).astype(np.float32)


def test_eleven_files_on_test_sets_of_the_official_sizes(test_sets, tmp_path):
    parts, missing = possible(EVERY, partial=False)
    assert missing == []
    logits = {part.file: drawn(part) for part in parts}
    write_submission(tmp_path / "out.zip", {part.file: lines(part, logits[part.file]) for part in parts})
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert set(archive.namelist()) == set(OFFICIAL)
        for part in parts:
            rows = archive.read(part.file).decode("utf-8").split("\n")
            assert rows[0] == "index\tprediction"
            assert rows[-1] == ""
            cells = [row.split("\t") for row in rows[1:-1]]
            assert [index for index, _ in cells] == [str(at) for at in range(OFFICIAL[part.file])]
            if part.file == "STS-B.tsv":
                assert [float(said) for _, said in cells] == pytest.approx(
                    np.clip(logits[part.file][:, 0], 0, 5), abs=5.001e-4
                )
                assert all(len(said.split(".")[1]) == 3 for _, said in cells)
                assert {"0.000", "5.000"} <= {said for _, said in cells}
            else:
                assert {said for _, said in cells} == WORDS[part.file]


def test_the_word_is_that_of_the_highest_logit():
    """In GLUE's order of classes: entailment, neutral, contradiction; entailment, not_entailment; not_entailment, entailment (WNLI)."""
    part = next(part for part in PARTS if part.file == "AX.tsv")
    logits = np.eye(3)[np.arange(part.rows) % 3]
    assert lines(part, logits).splitlines()[1:4] == ["0\tentailment", "1\tneutral", "2\tcontradiction"]
    part = next(part for part in PARTS if part.file == "WNLI.tsv")
    assert lines(part, np.eye(2)[np.arange(part.rows) % 2]).splitlines()[1:3] == ["0\t0", "1\t1"]


def test_a_missing_test_split_or_model_is_refused_or_left_out(test_sets):
    (test_sets / "qqp" / "test-00000-of-00001.parquet").rename(test_sets / "qqp" / "train-00000-of-00001.parquet")
    trained = [name for name in EVERY if name != "glue/mnli"]
    with pytest.raises(CommandError, match="lacks 4 of 11 files") as refused:
        possible(trained, partial=False)
    for words in (
        "QQP.tsv",
        "no split 'test'",
        "MNLI-m.tsv (no model was trained on glue/mnli)",
        "AX.tsv (no model was trained on glue/mnli)",
        "--partial",
    ):
        assert words in str(refused.value)
    parts, missing = possible(trained, partial=True)
    assert [part.file for part in parts] == [
        "CoLA.tsv",
        "SST-2.tsv",
        "MRPC.tsv",
        "STS-B.tsv",
        "QNLI.tsv",
        "RTE.tsv",
        "WNLI.tsv",
    ]
    assert len(missing) == 4


def test_a_test_set_of_another_size_is_refused(test_sets):
    file = test_sets / "wnli" / "test-00000-of-00001.parquet"
    pq.write_table(pq.read_table(file).slice(0, 100), file)
    part = next(part for part in PARTS if part.file == "WNLI.tsv")
    assert "has 100 rows where the official test set has 146" in str(lacking(part, EVERY))
    with pytest.raises(DataError, match="needs 146 predictions, found 3"):
        lines(part, np.zeros((3, 2)))


def test_where_nothing_can_be_written_partial_does_not_help(test_sets):
    with pytest.raises(CommandError, match="lacks 11 of 11"):
        possible(["squad"], partial=True)


def test_the_same_predictions_give_the_same_bytes(tmp_path):
    for name in ("one.zip", "two.zip"):
        write_submission(tmp_path / name, {"WNLI.tsv": "index\tprediction\n0\t1\n"})
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_the_mirror_has_the_test_splits_that_it_says(mirror, monkeypatch):
    monkeypatch.setenv("FINERY_DATA", str(mirror))
    assert folder_of("nyu-mll/glue") is not None
    parts, missing = possible(EVERY, partial=True)
    assert [part.file for part in parts] == [
        "CoLA.tsv",
        "SST-2.tsv",
        "MRPC.tsv",
        "STS-B.tsv",
        "QNLI.tsv",
        "RTE.tsv",
        "WNLI.tsv",
    ]
    assert [reason.split(" ")[0] for reason in missing] == ["QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]

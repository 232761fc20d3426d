"""GLUE by its official rules: prediction files, the average, and a submission."""

from __future__ import annotations

import json
import math
import random
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from pipelines.core.data_files import mirror_folder
from pipelines.core.errors import CommandError, DataError
from pipelines.core.registry import TASKS
from pipelines.evaluation.official.glue import (
    AVERAGED,
    PARTS,
    glue_score,
    lacking,
    lines,
    possible,
    score_glue,
    task_scores,
    write_submission,
)


def tsv(path: Path, rows: list[tuple[object, object]], header: str = "index\tprediction") -> Path:
    path.write_text("\n".join([header, *(f"{index}\t{said}" for index, said in rows)]) + "\n")
    return path


def parquet(path: Path, **columns: list[object]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("name", [name for name in TASKS if name.startswith("glue/") and name != "glue/stsb"])
@pytest.mark.parametrize("words", [False, True])
def test_classes_score_as_with_scikit_learn_whatever_their_order_and_form(tmp_path, name, words):
    drawn = random.Random(7)
    names = TASKS.load(name).labels
    right = [drawn.randrange(len(names)) for _ in range(80)]
    said = [drawn.randrange(len(names)) if drawn.random() < 0.4 else label for label in right]
    rows = list(enumerate(names[each] if words else each for each in said))
    drawn.shuffle(rows)
    references = parquet(tmp_path / "r.parquet", label=right, idx=list(range(80)))
    found = score_glue(name, tsv(tmp_path / "p.tsv", rows), references)
    expected = {
        "accuracy": accuracy_score(right, said),
        "f1": f1_score(right, said, average="binary" if len(names) == 2 else "macro"),
        "matthews_correlation": matthews_corrcoef(right, said),
    }
    wanted = TASKS.load(name).metrics
    assert found == pytest.approx({**{each: expected[each] for each in wanted}, "total": 80})


def test_numbers_score_as_with_scipy(tmp_path):
    drawn = random.Random(3)
    right = [round(drawn.uniform(0, 5), 2) for _ in range(60)]
    said = [value + drawn.gauss(0, 1) for value in right]
    found = score_glue(
        "glue/stsb", tsv(tmp_path / "p.tsv", list(enumerate(said))), parquet(tmp_path / "r.parquet", label=right)
    )
    assert found == pytest.approx(
        {"pearson": pearsonr(said, right)[0], "spearmanr": spearmanr(said, right)[0], "total": 60}
    )


def test_references_may_be_a_tsv_with_words_and_quotes(tmp_path):
    references = tmp_path / "r.tsv"
    references.write_text('index\tsentence\tlabel\n0\t"open quote\tentailment\n1\tplain\tnot_entailment\n')
    found = score_glue("glue/rte", tsv(tmp_path / "p.tsv", [(1, "not_entailment"), (0, "Not-Entailment")]), references)
    assert found == {"accuracy": 0.5, "total": 2}


def test_references_may_be_those_that_glue_gives_away(tmp_path):
    references = tmp_path / "dev_matched.tsv"
    references.write_text("index\tsentence1\tlabel1\tgold_label\n0\ta\tneutral\tentailment\n1\tb\tneutral\tneutral\n")
    predictions = tsv(tmp_path / "p.tsv", [(0, "entailment"), (1, "contradiction")])
    assert score_glue("glue/mnli", predictions, references)["accuracy"] == 0.5


def test_rows_are_called_by_idx_where_the_predictions_are(tmp_path):
    """MRPC's validation rows keep their numbers in the whole corpus: 9, 18, 25, …"""
    references = parquet(tmp_path / "r.parquet", label=[1, 0, 1], idx=[9, 18, 25])
    by_idx = score_glue("glue/mrpc", tsv(tmp_path / "p.tsv", [(25, 1), (9, 0), (18, 0)]), references)
    by_row = score_glue("glue/mrpc", tsv(tmp_path / "p.tsv", [(2, 1), (0, 0), (1, 0)]), references)
    assert by_idx == by_row
    assert by_idx["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("name", "rows", "labels", "sentence"),
    [
        ("glue/mrpc", [(0, 1)], [1, 0], r"no prediction for 1 of the 2 rows .*index 1"),
        ("glue/mrpc", [(0, 1), (1, 0), (2, 0)], [1, 0], "has 1 rows that .* has not: index 2"),
        ("glue/mrpc", [(0, 1), (0, 0)], [1, 0], "same index more than once: 0"),
        ("glue/mrpc", [("x", 1), (1, 0)], [1, 0], "row 1, has the index 'x', must be a whole number"),
        ("glue/mrpc", [(0, 2), (1, 0)], [1, 0], r"has the prediction '2' \(index 0\), must be one of 0 … 1"),
        ("glue/mrpc", [(0, "1.0"), (1, 0)], [1, 0], "has the prediction '1.0'"),
        ("glue/mrpc", [(0, -1), (1, 0)], [1, 0], "has the prediction '-1'"),
        ("glue/mrpc", [(0, "same"), (1, 0)], [1, 0], "has the prediction 'same'"),
        ("glue/mrpc", [(0, 1), (1, 0)], [1, 3], "has the label '3'"),
        ("glue/mrpc", [(0, 1), (1, 0)], [-1, -1], "labels that are not public"),
        ("glue/stsb", [(0, "nan"), (1, 0)], [1.0, 2.0], "must be a finite number"),
        ("glue/stsb", [(0, "inf"), (1, 0)], [1.0, 2.0], "must be a finite number"),
        ("glue/stsb", [(0, 1), (1, 0)], [1.0, 5.5], r"has the label 5.5 \(index 1\), must be between 0 and 5"),
        ("glue/mrcp", [(0, 1)], [1], "unknown task 'glue/mrcp'. Did you mean 'glue/mrpc'?"),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path, name, rows, labels, sentence):
    with pytest.raises(CommandError, match=sentence) as refused:
        score_glue(name, tsv(tmp_path / "p.tsv", rows), parquet(tmp_path / "r.parquet", label=labels))
    assert refused.value.exit_code == 2


def test_files_without_rows_or_columns_are_one_sentence(tmp_path):
    references = parquet(tmp_path / "r.parquet", label=[1])
    with pytest.raises(CommandError, match="holds no rows"):
        score_glue("glue/mrpc", tsv(tmp_path / "p.tsv", []), references)
    with pytest.raises(
        CommandError, match="has no column 'prediction'; it needs index, prediction, and has index, label"
    ):
        score_glue("glue/mrpc", tsv(tmp_path / "p.tsv", [(0, 1)], "index\tlabel"), references)
    (tmp_path / "empty.tsv").write_text("")
    with pytest.raises(CommandError, match="is empty"):
        score_glue("glue/mrpc", tmp_path / "empty.tsv", references)
    with pytest.raises(CommandError, match="is no file"):
        score_glue("glue/mrpc", tmp_path / "gone.tsv", references)


def test_lines_of_json_are_references_too(tmp_path):
    references = tmp_path / "r.jsonl"
    references.write_text("".join(json.dumps({"label": label}) + "\n" for label in ("acceptable", "unacceptable")))
    found = score_glue("glue/cola", tsv(tmp_path / "p.tsv", [(0, 1), (1, 0)]), references)
    assert math.isclose(found["matthews_correlation"], 1.0)


BERT_LARGE = {
    "glue/cola": {"matthews_correlation": 0.605}, "glue/sst2": {"accuracy": 0.949}, "glue/mrpc": {"accuracy": 0.854, "f1": 0.893},
    "glue/stsb": {"pearson": 0.876, "spearmanr": 0.865}, "glue/qqp": {"accuracy": 0.893, "f1": 0.721},
    "glue/mnli": {"accuracy": 0.867, "accuracy_mm": 0.859}, "glue/qnli": {"accuracy": 0.927}, "glue/rte": {"accuracy": 0.701},
    "glue/wnli": {"accuracy": 0.651},
}  # fmt: skip
"""BERT-large's row of the leaderboard (Jacob Devlin, 2018), whose score there is 80.5."""


def test_it_is_the_number_on_the_leaderboard():
    score, stands_on = glue_score(BERT_LARGE | {"glue/ax": {"matthews_correlation": 0.396}, "squad": {"f1": 90.0}})
    assert round(score["score"], 1) == 80.5
    assert score["score_without_wnli"] == pytest.approx((60.5 + 94.9 + 87.35 + 87.05 + 80.7 + 86.3 + 92.7 + 70.1) / 8)
    assert stands_on["missing"] == []
    assert len(stands_on["tasks"]) == 9


def test_a_missing_task_leaves_no_score_but_its_name():
    score, stands_on = glue_score({name: each for name, each in BERT_LARGE.items() if name != "glue/rte"})
    assert score == {}
    assert stands_on["missing"] == ["glue/rte"]


def test_without_wnli_the_other_score_stands():
    score, stands_on = glue_score({name: each for name, each in BERT_LARGE.items() if name != "glue/wnli"})
    assert list(score) == ["score_without_wnli"]
    assert stands_on["missing"] == ["glue/wnli"]


def test_one_task_is_no_glue():
    assert glue_score({"glue/rte": {"accuracy": 0.5}, "race/middle": {"accuracy": 0.3}}) == ({}, {})


def test_half_a_task_does_not_count():
    assert "glue/mnli" not in task_scores(BERT_LARGE | {"glue/mnli": {"accuracy": 0.8}})


def test_every_task_averages_the_metrics_that_it_is_scored_by():
    for name, parts in AVERAGED.items():
        task = TASKS.load(name)
        assert list(parts) == [f"{metric}{suffix}" for suffix in task.evaluation_splits for metric in task.metrics]


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
    assert mirror_folder("nyu-mll/glue") is not None
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

"""GLUE prediction files score as scikit-learn and scipy say, joined by index, and wrong files are refused."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from pipelines.core.errors import CommandError
from pipelines.core.registry import TASKS
from pipelines.evaluation.official.glue import score_glue


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

import numpy as np
import pytest

from pipelines.compare import compare
from pipelines.errors import CommandError
from pipelines.recipe import loads
from tests.pipelines.studies import finish, right

RECIPE = """\
name: one
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, id: mrpc, task: glue/mrpc}
  - {stage: evaluate}
"""


@pytest.fixture
def run(tmp_path):
    def make(name, answered, text=RECIPE):
        folder = tmp_path / "runs" / name
        finish(folder, loads(text), answered)
        return folder

    return make


def test_the_difference_is_paired_on_the_same_examples(run):
    a, b = right(0.8, 1), right(0.7, 1)  # b is right only where a is
    told = compare([run("a", a), run("b", b)])
    [benchmark] = told["benchmarks"]
    assert (benchmark["benchmark"], benchmark["reference"]) == ("glue/mrpc", "a")
    difference = benchmark["models"][1]["metrics"]["accuracy"]["difference"]
    paired = b.astype(float) - a
    half = 1.96 * paired.std() / np.sqrt(len(paired))
    assert difference["value"] == pytest.approx(-0.1)
    assert difference["interval"] == pytest.approx([-0.1 - half, -0.1 + half], abs=0.005)
    assert difference["clear"]
    assert benchmark["sentences"][0].startswith("b is worse than a on these examples: accuracy -0.100")


def test_equal_answers_are_inside_the_noise(run):
    told = compare([run("a", right(0.8, 1)), run("b", right(0.8, 2))])
    assert "inside the noise" in told["benchmarks"][0]["sentences"][0]


def test_other_examples_are_not_compared(run, tmp_path):
    import pyarrow.parquet as pq

    a, b = run("a", right(0.8, 1)), run("b", right(0.7, 1))
    path = b / "stages" / "02-evaluate" / "predictions.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index("index"), "index", [[at + 1 for at in range(len(table))]]), path)
    told = compare([a, b])
    assert "not scored on the same examples" in told["benchmarks"][0]["sentences"][0]
    assert told["benchmarks"][0]["models"][1]["metrics"]["accuracy"]["difference"] is None


def test_what_cannot_be_compared_is_refused(run, tmp_path):
    a = run("a", right(0.8, 1))
    (tmp_path / "b").mkdir()
    with pytest.raises(CommandError, match="is not a finished run"):
        compare([a, tmp_path / "b"])
    silent = run("c", right(0.8, 1))
    (silent / "stages" / "02-evaluate" / "metrics.json").write_text("{}")
    with pytest.raises(CommandError, match="measured nothing"):
        compare([a, silent])


def test_runs_of_one_name_are_told_apart_by_their_folders(run):
    told = compare([run("x/1", right(0.8, 1)), run("y/1", right(0.7, 1))])
    assert [model["name"] for model in told["benchmarks"][0]["models"]] == ["x/1", "y/1"]

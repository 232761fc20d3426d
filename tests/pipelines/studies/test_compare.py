import json

import numpy as np
import pytest

from pipelines.core.errors import CommandError
from pipelines.core.interfaces import Rows
from pipelines.core.load import loads
from pipelines.studies.compare import compare
from pipelines.tasks.base import resolve
from pipelines.tasks.predictions import TextPredictions, write_predictions
from tests.pipelines.studies.written_runs import EXAMPLES, finish, right

pytestmark = pytest.mark.usefixtures("drawn_once")

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
    pq.write_table(
        table.set_column(table.column_names.index("index"), "index", [[at + 1 for at in range(len(table))]]), path
    )
    told = compare([a, b])
    assert "not scored on the same examples" in told["benchmarks"][0]["sentences"][0]
    assert told["benchmarks"][0]["models"][1]["metrics"]["accuracy"]["difference"] is None


WRITTEN = """\
name: written
model: {architecture: {preset: t5-tiny}}
stages:
  - {stage: multi_task, id: mrpc, form: text_to_text, tasks: [{task: glue/mrpc}, {task: glue/rte}]}
  - {stage: evaluate, from: mrpc/mrpc}
"""


def test_classes_that_were_written_are_compared_with_those_of_a_head(run):
    """Its answers are those of `b`, and are written: everything that is said of them is the same."""
    a, b, written = right(0.8, 1), right(0.7, 2), "written"
    folders = [run("a", a), run("b", b), run(written, b, WRITTEN)]
    place = folders[-1] / "stages" / "02-evaluate"
    names, labels = np.array(resolve("glue/mrpc", "mrpc").head.labels), np.arange(EXAMPLES) % 2
    rows = Rows(["a question"] * EXAMPLES, None, names[labels].tolist(), list(range(EXAMPLES)))
    texts = names[np.where(b, labels, 1 - labels)].astype(object)
    write_predictions(place / "predictions.parquet", [TextPredictions("glue/mrpc", "validation", "", rows, texts)])
    details = json.loads((place / "details.json").read_text())
    details["glue/mrpc"]["model"] = "mrpc/mrpc"
    (place / "details.json").write_text(json.dumps(details))
    for first in (folders[0], folders[2]):
        [benchmark] = compare([first, *(each for each in folders if each is not first)])["benchmarks"]
        by_name = {model["name"]: model for model in benchmark["models"]}
        assert all(model["same_examples"] for model in by_name.values())
        if first is folders[0]:
            for said in ("metrics", "mcnemar", "verdict"):
                assert by_name[written][said] == by_name["b"][said]
        else:
            assert by_name["b"]["metrics"]["accuracy"]["difference"]["value"] == 0
            assert by_name["b"]["metrics"]["accuracy"]["difference"]["p"]["randomisation"] == 1


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


def test_the_three_tests_stand_beside_each_other_and_agree_where_they_must(run):
    from scipy import stats

    a, b = right(0.8, 1), right(0.77, 2)
    [benchmark] = compare([run("a", a), run("b", b)])["benchmarks"]
    model = benchmark["models"][1]
    split = model["mcnemar"]
    assert (split["only_here"], split["only_reference"]) == (int((b & ~a).sum()), int((a & ~b).sum()))
    exact = stats.binomtest(split["only_here"], split["only_here"] + split["only_reference"], 0.5).pvalue
    p_values = model["metrics"]["accuracy"]["difference"]["p"]
    assert p_values["mcnemar"] == pytest.approx(exact)
    assert p_values["randomisation"] == pytest.approx(exact, abs=0.04)  # 1,999 tosses of the same coins
    assert p_values["bootstrap"] == pytest.approx(exact, abs=0.08)
    assert set(model["metrics"]["f1"]["difference"]["p"]) == {"bootstrap", "randomisation"}


def test_p_values_are_corrected_for_all_comparisons_that_are_shown(run):
    runs = [
        run(name, right(share, seed))
        for name, share, seed in (("a", 0.8, 1), ("b", 0.74, 2), ("c", 0.79, 3), ("d", 0.60, 4))
    ]
    alone = compare(runs, test="mcnemar", correction="none")
    together = compare(runs, test="mcnemar")
    assert (together["comparisons"], together["correction"], together["tests"]) == (3, "holm", ["mcnemar"])

    def values(told, key):
        return [
            each["metrics"]["accuracy"]["difference"][key]["mcnemar"] for each in told["benchmarks"][0]["models"][1:]
        ]

    plain = values(alone, "p")
    order = np.argsort(plain)
    by_hand = np.maximum.accumulate(np.minimum(1, np.array(plain)[order] * [3, 2, 1]))
    assert np.array(values(together, "corrected"))[order] == pytest.approx(by_hand)
    assert values(alone, "corrected") == plain
    assert [each["verdict"] for each in together["benchmarks"][0]["models"]] == [
        "reference",
        "inside the noise",
        "inside the noise",
        "worse",
    ]
    assert len(together["warnings"]) == 2
    assert "inside the noise; do not choose by it" in together["warnings"][0]
    assert "after Holm for 3 comparisons" in together["benchmarks"][0]["sentences"][0]


def test_an_unknown_test_or_correction_is_refused(run):
    a, b = run("a", right(0.8, 1)), run("b", right(0.7, 1))
    with pytest.raises(CommandError, match=r"--test is 'mcnemer', must be one of .* Did you mean 'mcnemar'"):
        compare([a, b], test="mcnemer")
    with pytest.raises(CommandError, match="--correction is 'bonferroni'"):
        compare([a, b], correction="bonferroni")

"""What a publication carries of each example says the same as the run that made it."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.errors import CommandError, DataError
from pipelines.evaluation.outcomes import FORMAT, KEY, OUTCOMES, outcomes_of, read_outcomes, write_outcomes
from pipelines.reports.results import results_of
from pipelines.studies.compare import compare
from tests.finished_run import finished, inside


@pytest.fixture(scope="module")
def run():
    from pipelines.core.load import load

    made = finished()
    with inside(made.root):
        yield made, results_of(made.run, load(made.root / "recipe.yaml"))


def test_every_kind_of_answer_is_scored_again_from_the_file_as_from_the_predictions(run, tmp_path):
    made, results = run
    with inside(made.root):
        written = [outcomes_of(each, each.choice) for each in results]
    assert {split.form for each in written for split in each.splits} >= {"counts", "classification", "regression"}
    write_outcomes(tmp_path / OUTCOMES, written)
    read = read_outcomes(tmp_path / OUTCOMES)
    for result, again in zip(results, read, strict=True):
        assert (again.benchmark, dict(again.metrics)) == (result.benchmark, result.metrics)
        assert again.draws.keys() == result.draws.keys()
        for name, drawn in again.draws.items():
            np.testing.assert_allclose(drawn, result.draws[name], equal_nan=True)
        for suffix, part in again.parts.items():
            assert part.right is None or part.right.tolist() == result.parts[suffix].right.tolist()
    assert sum(len(each.draws) for each in read) >= 6


def test_a_publication_is_compared_with_the_run_that_made_it_and_holds_no_text_of_the_data(run):
    made, _ = run
    with inside(made.root):
        told = compare([made.run, made.root / "published"])
    section = next(each for each in told["benchmarks"] if each["benchmark"] == "glue/mrpc")
    difference = section["models"][1]["metrics"]["f1"]["difference"]
    assert (difference["value"], difference["verdict"]) == (0.0, "inside the noise")
    assert section["models"][0]["metrics"].keys() == section["models"][1]["metrics"].keys()
    assert pq.read_schema(made.root / "published" / OUTCOMES).names == ["part", "label", "right", "values"]


def test_what_is_no_such_file_is_refused_in_a_sentence(run, tmp_path):
    made, _ = run
    (tmp_path / OUTCOMES).write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=f"{OUTCOMES}' is no readable"):
        read_outcomes(tmp_path / OUTCOMES)
    about = json.dumps({"format": FORMAT, "benchmarks": [], "parts": []})
    pq.write_table(pa.table({"part": [0]}).replace_schema_metadata({KEY: about}), tmp_path / OUTCOMES)
    with pytest.raises(DataError, match=f"{OUTCOMES}' is no readable"):
        read_outcomes(tmp_path / OUTCOMES)
    (tmp_path / OUTCOMES).unlink()
    (tmp_path / "publication.json").write_text("{}")
    with pytest.raises(CommandError, match=r"was published without outcomes\.parquet"):
        compare([made.root / "published", tmp_path])

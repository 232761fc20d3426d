from pipelines.core.registry import METRICS
from pipelines.metrics import rougel


def test_it_stands_in_the_table_under_its_own_name():
    assert METRICS["rougeL"] == "pipelines.metrics.rougel:Rougel"
    assert list(rougel.compute(["a cat sat"], ["a cat"])) == ["rougeL"]


def test_its_score_by_hand():
    assert (
        round(rougel.compute(["a cat sat on a mat"], ["a cat on a mat sat"])["rougeL"], 6) == 83.333333
    )  # five of six words in order: "a cat on a mat"

from pipelines.core.registry import METRICS
from pipelines.metrics import rouge2


def test_it_stands_in_the_table_under_its_own_name():
    assert METRICS["rouge2"] == "pipelines.metrics.rouge2:Rouge2"
    assert list(rouge2.compute(["a cat sat"], ["a cat"])) == ["rouge2"]


def test_its_score_by_hand():
    assert (
        round(rouge2.compute(["a cat sat on a mat"], ["a cat on a mat sat"])["rouge2"], 6) == 60.0
    )  # three of five pairs: "a cat", "on a", "a mat"

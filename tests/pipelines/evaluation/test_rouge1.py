from pipelines.core.registry import METRICS
from pipelines.metrics import rouge1


def test_it_stands_in_the_table_under_its_own_name():
    assert METRICS["rouge1"] == "pipelines.metrics.rouge1:Rouge1"
    assert list(rouge1.compute(["a cat sat"], ["a cat"])) == ["rouge1"]


def test_its_score_by_hand():
    assert round(rouge1.compute(["a cat sat on a mat"], ["a cat on a mat sat"])["rouge1"], 6) == 100.0

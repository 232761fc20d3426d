"""The table of scores agrees with what the metrics give."""

from __future__ import annotations

import pytest

from pipelines.core.registry import METRICS
from pipelines.core.scores import OF_A_HUNDRED, SEVERAL, score_names

PERFECT = {"squad": (["cat"], [["cat"]]), "squad_v2": (["cat"], [["cat"]]), "seqeval": ([["B-X"]], [["B-X"]])}


@pytest.mark.parametrize("metric", SEVERAL)
def test_a_metric_gives_the_scores_that_the_table_names(metric):
    found = METRICS.load(metric)().compute(*PERFECT[metric])
    assert tuple(found) == SEVERAL[metric]
    assert set(found.values()) == {100.0 if metric in OF_A_HUNDRED else 1.0}


def test_other_metrics_give_one_score_under_their_own_name():
    assert score_names(("accuracy", "squad")) == ("accuracy", "exact_match", "f1")
    assert set(OF_A_HUNDRED) <= set(METRICS)

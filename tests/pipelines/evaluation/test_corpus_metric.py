import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from pipelines.metrics.sacrebleu import CorpusMetric

WRITTEN = ["a man runs over the grass", "two dogs play", "a child sleeps"]
TRUE = ["a man runs on the green grass", "two dogs are playing", "a child is sleeping"]


def test_the_scorer_is_built_once_and_not_before_it_is_needed():
    built = []
    metric = CorpusMetric("bleu", lambda: built.append(1) or BLEU())
    assert not built
    metric.compute(WRITTEN, TRUE)
    metric.signature()
    assert built == [1]


def test_the_score_of_a_part_is_that_of_the_sums_of_its_counts():
    metric = CorpusMetric("bleu", BLEU)
    counts = metric.counts(WRITTEN, TRUE)
    assert counts.shape[0] == 3
    assert counts.dtype == np.int64
    expected = BLEU().corpus_score(WRITTEN[:2], [TRUE[:2]]).score
    assert metric.of_counts(counts[:2].sum(axis=0)) == {"bleu": pytest.approx(expected, abs=1e-12)}

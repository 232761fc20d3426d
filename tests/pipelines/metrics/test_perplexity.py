"""Sums by document, the figures made of them, and intervals that draw whole documents."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipelines.metrics.perplexity import Tally, detection, hidden, likelihood


def test_single_values_are_added_up_by_document():
    tally = Tally.of(np.asarray([7, 2, 7, 7]), {"bits": np.asarray([1.0, 2.0, 3.0, 4.0])})
    assert tally.documents.tolist() == [2, 7]
    assert tally.columns["bits"].tolist() == [2.0, 8.0]
    assert tally.figures(dict) == {"bits": 10.0}


def test_figures_are_ratios_of_sums():
    assert likelihood({"bits": 12.0, "bytes": 6.0, "tokens": 4.0}) == {"bits_per_byte": 2.0, "perplexity": 8.0}
    named = {"bits": 12.0, "bytes": 6.0, "tokens": 4.0, "right": 1.0}
    assert hidden(named) == {"hidden_bits_per_byte": 2.0, "accuracy": 0.25}
    assert hidden(named | {"pairs": 4.0, "pairs_right": 3.0})["pair_accuracy"] == 0.75
    # 2 found, 1 missed, 3 false alarms: precision 2/5, recall 2/3, F1 2 * 2 / (4 + 1 + 3)
    judged = {"right": 6.0, "tokens": 10.0, "found": 2.0, "missed": 1.0, "false_alarms": 3.0}
    assert detection(judged) == {"accuracy": 0.6, "f1": 0.5}
    assert detection({**judged, "found": 0.0, "missed": 0.0, "false_alarms": 0.0})["f1"] == 0.0


def test_what_no_float_holds_is_infinite_and_has_no_interval():
    assert likelihood({"bits": 4092.0, "bytes": 1.0, "tokens": 4.0})["perplexity"] == 2.0**1023
    assert likelihood({"bits": 4096.0, "bytes": 1.0, "tokens": 4.0})["perplexity"] == math.inf
    diverged = {"bits": np.asarray([9e3, 2.0]), "bytes": np.ones(2), "tokens": np.ones(2)}
    assert set(Tally.of(np.arange(2), diverged).intervals(likelihood, seed=0, resamples=50)) == {"bits_per_byte"}


def test_intervals_are_those_of_drawing_documents_one_by_one():
    random = np.random.default_rng(1)
    bits, size = random.uniform(1, 9, 20), random.uniform(1, 3, 20)
    tally = Tally.of(np.arange(20), {"bits": bits, "bytes": size, "tokens": np.ones(20)})
    found = tally.intervals(likelihood, seed=5, resamples=200)
    drawn = np.random.default_rng(5)
    values = []
    for _ in range(200):
        chosen = drawn.integers(20, size=20)
        values.append(bits[chosen].sum() / size[chosen].sum())
    assert found["bits_per_byte"] == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))
    low, high = found["bits_per_byte"]
    assert low < tally.figures(likelihood)["bits_per_byte"] < high


def test_one_document_has_no_width():
    tally = Tally.of(np.zeros(3, dtype=int), {"bits": np.ones(3), "bytes": np.ones(3), "tokens": np.ones(3)})
    assert tally.intervals(likelihood, seed=0, resamples=10)["bits_per_byte"] == (1.0, 1.0)

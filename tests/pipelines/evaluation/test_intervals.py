import time
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import bootstrap, norm

from pipelines.core.interfaces import Head
from pipelines.metrics import bleu, chrf
from pipelines.metrics.accuracy import compute as accuracy
from pipelines.metrics.statistics import corpus_intervals, intervals
from pipelines.tasks.scoring import score


def scorer(*metrics: str, labels: tuple[str, ...] = ("no", "yes")):
    return score(SimpleNamespace(name="t", metrics=metrics, head=Head("sequence_classification", labels)))


def answers(labels, right: float, seed: int = 0):
    random = np.random.default_rng(seed)
    predictions = np.where(random.random(len(labels)) < right, labels, 1 - labels)
    return np.eye(2, dtype=np.float32)[predictions]


def test_accuracy_has_the_binomial_interval():
    labels = np.tile([0, 1], 1000)
    logits = answers(labels, 0.8)
    measured = accuracy(logits.argmax(axis=1), labels)["accuracy"]
    half = norm.ppf(0.975) * (measured * (1 - measured) / len(labels)) ** 0.5
    low, high = intervals(scorer("accuracy"), logits, labels, seed=1)["accuracy"]
    assert low == pytest.approx(measured - half, abs=0.002)
    assert high == pytest.approx(measured + half, abs=0.002)


def test_correlation_has_scipys_bootstrap_interval():
    random = np.random.default_rng(3)
    labels = random.normal(size=300)
    predictions = labels + random.normal(size=300)
    low, high = intervals(scorer("pearson", labels=()), predictions[:, None], labels, seed=1)["pearson"]
    theirs = bootstrap(
        (predictions, labels),
        lambda x, y: np.corrcoef(x, y)[0, 1],
        paired=True,
        vectorized=False,
        method="percentile",
        n_resamples=2000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert low == pytest.approx(theirs.low, abs=0.015)
    assert high == pytest.approx(theirs.high, abs=0.015)


def test_the_seed_decides():
    labels = np.tile([0, 1], 50)
    logits = answers(labels, 0.7)
    one, same, other = (intervals(scorer("accuracy", "f1"), logits, labels, seed=seed) for seed in (5, 5, 6))
    assert one == same
    assert one != other


def test_nineteen_of_twenty_intervals_hold_the_truth():
    # the truth is 0.7; 300 repetitions of a 95 % interval miss it 15 times, give or take 3·√(300·0.05·0.95) ≈ 11,
    # and the percentile interval is known to be a little too narrow at 200 examples
    labels = np.tile([0, 1], 100)
    held = 0
    for seed in range(300):
        low, high = intervals(
            lambda logits, labels: {"accuracy": float(np.mean(logits.argmax(axis=1) == labels))},
            answers(labels, 0.7, seed),
            labels,
            seed,
            resamples=300,
        )["accuracy"]
        held += low <= 0.7 <= high
    assert 0.90 <= held / 300 <= 0.99


def test_a_perfect_score_and_a_single_example_have_no_width():
    labels = np.tile([0, 1], 20)
    assert intervals(scorer("accuracy"), np.eye(2)[labels], labels, seed=0) == {"accuracy": (1.0, 1.0)}
    assert intervals(scorer("accuracy"), np.array([[0.0, 1.0]]), np.array([0]), seed=0) == {"accuracy": (0.0, 0.0)}


def test_sst2s_validation_split_takes_less_than_two_seconds():
    labels = np.tile([0, 1], 436)
    logits = answers(labels, 0.8)
    started = time.process_time()
    intervals(scorer("accuracy", "f1", "matthews_correlation"), logits, labels, seed=0)
    assert time.process_time() - started < 2


def test_intervals_of_corpora_are_those_of_scoring_each_resample():
    random = np.random.default_rng(0)
    words = ["a", "man", "in", "an", "orange", "hat", "is", "starring", "at", "something"]
    true = np.asarray([" ".join(random.choice(words, 9)) for _ in range(30)], dtype=object)
    said = np.asarray([text if at % 3 else " ".join(text.split()[::-1]) for at, text in enumerate(true)], dtype=object)

    def score(texts, references):
        return bleu.compute(texts, references) | chrf.compute(texts, references)

    expected = intervals(score, said, true, seed=5, resamples=40)
    found = corpus_intervals(("bleu", "chrf"), said, true, seed=5, resamples=40)
    assert found == {name: pytest.approx(ends, abs=1e-9) for name, ends in expected.items()}
    assert found["bleu"][0] < score(said, true)["bleu"] < found["bleu"][1]

"""Bootstrap intervals, tests of a difference and corrections, against scipy, by simulation and by hand."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats
from scipy.stats import bootstrap, norm
from sklearn.metrics import f1_score

from pipelines.core.interfaces import Head
from pipelines.metrics.classification import Accuracy
from pipelines.metrics.sacrebleu import Bleu, Chrf
from pipelines.metrics.statistics import (
    benjamini_hochberg,
    corpus_intervals,
    corrected,
    holm,
    interval_of_mean,
    intervals,
    mcnemar,
    p_of_draws,
    p_values,
    randomisation,
)
from pipelines.tasks.scoring import score
from tests.covering import LONG


def scorer(*metrics: str, labels: tuple[str, ...] = ("no", "yes")):
    return score(
        SimpleNamespace(name="t", kind="classification", metrics=metrics, head=Head("sequence_classification", labels))
    )


def answers(labels, right: float, seed: int = 0):
    random = np.random.default_rng(seed)
    predictions = np.where(random.random(len(labels)) < right, labels, 1 - labels)
    return np.eye(2, dtype=np.float32)[predictions]


def test_accuracy_has_the_binomial_interval():
    labels = np.tile([0, 1], 1000)
    logits = answers(labels, 0.8)
    measured = Accuracy().compute(logits.argmax(axis=1), labels)["accuracy"]
    half = norm.ppf(0.975) * (measured * (1 - measured) / len(labels)) ** 0.5
    low, high = intervals(scorer("accuracy"), logits, labels, seed=1)["accuracy"]
    assert low == pytest.approx(measured - half, abs=0.002)
    assert high == pytest.approx(measured + half, abs=0.002)


@pytest.mark.wider
def test_intervals_of_means_cover_the_truth_about_as_often_as_they_say():
    random = np.random.default_rng(3)
    covered, draws = 0, 200 if os.environ.get(LONG) else 100
    for draw in range(draws):
        low, high = interval_of_mean((random.random(100) < 0.6).astype(float), [draw, 1], resamples=200)
        covered += low <= 0.6 <= high
    assert 0.88 <= covered / draws <= 0.99


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
            resamples=150,
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
        return Bleu().compute(texts, references) | Chrf().compute(texts, references)

    expected = intervals(score, said, true, seed=5, resamples=40)
    found = corpus_intervals(("bleu", "chrf"), said, true, seed=5, resamples=40)
    assert found == {name: pytest.approx(ends, abs=1e-9) for name, ends in expected.items()}
    assert found["bleu"][0] < score(said, true)["bleu"] < found["bleu"][1]


def test_the_p_value_is_twice_the_share_of_draws_beyond_zero():
    draws = np.r_[np.full(30, -0.1), np.full(969, 0.2)]
    assert p_of_draws(draws, 0.15) == pytest.approx(2 * 31 / 1000)
    assert p_of_draws(-draws, -0.15) == pytest.approx(2 * 31 / 1000)


def test_beyond_what_can_be_counted_it_is_the_normal_tail():
    draws = np.random.default_rng(0).normal(0.4, 0.1, 1000)  # four standard deviations from zero
    assert p_of_draws(draws, 0.4) == pytest.approx(2 * stats.norm.sf(0.4 / draws.std()))
    assert p_of_draws(np.full(1000, 0.5), 0.5) > 0


def test_it_agrees_with_the_paired_t_test_on_plain_numbers():
    random = np.random.default_rng(2)
    differences = random.normal(0.12, 1.0, 400)
    drawn = differences[random.integers(400, size=(4000, 400))].mean(axis=1)
    assert p_of_draws(drawn, differences.mean()) == pytest.approx(
        stats.ttest_1samp(differences, 0).pvalue, rel=0.25, abs=0.01
    )


def test_no_difference_is_no_claim():
    assert p_of_draws(np.zeros(100), 0.0) == 1.0
    assert p_of_draws(np.random.default_rng(0).normal(size=1000), 0.01) > 0.9


def test_equally_good_models_are_told_apart_about_as_often_as_the_level_says():
    random = np.random.default_rng(7)
    claims = 0
    for _ in range(600):
        ease = random.normal(size=200)
        one, two = (random.random((2, 200)) < 1 / (1 + np.exp(-ease))).astype(float)
        taken = random.integers(200, size=(400, 200))
        claims += p_of_draws((one - two)[taken].mean(axis=1), (one - two).mean()) <= 0.05
    assert claims / 600 <= 0.05 + 2.6 * np.sqrt(0.05 * 0.95 / 600)


def test_the_exact_p_value_is_that_of_a_fair_coin():
    # 2 against 10: 2 * (C(12,0) + C(12,1) + C(12,2)) / 2^12 = 2 * 79 / 4096; mid-p leaves out C(12,2) / 2^12 = 66 / 4096
    exact, mid = p_values(2, 10)
    assert exact == pytest.approx(158 / 4096)
    assert mid == pytest.approx((158 - 66) / 4096)


def test_the_exact_p_value_is_scipys_binomial_test():
    for fewer, more in ((0, 1), (0, 9), (3, 3), (4, 17), (40, 61), (150, 210)):
        assert p_values(fewer, more)[0] == pytest.approx(stats.binomtest(fewer, fewer + more, 0.5).pvalue)
        assert p_values(fewer, more) == p_values(more, fewer)
        assert p_values(fewer, more)[1] <= p_values(fewer, more)[0]


def test_on_many_examples_both_approach_the_chi_squared_test():
    # Without continuity correction: (b - c)^2 / (b + c), one degree of freedom
    exact, mid = p_values(450, 540)
    chi = stats.chi2.sf((450 - 540) ** 2 / 990, df=1)
    assert mid == pytest.approx(chi, rel=0.02)
    assert exact == pytest.approx(chi, rel=0.12)


def test_only_disputed_examples_count():
    one = np.array([1, 1, 1, 0, 0, 1, 0], dtype=bool)
    two = np.array([1, 0, 0, 0, 1, 0, 0], dtype=bool)
    found = mcnemar(one, two)
    assert (found.only_first, found.only_second) == (3, 1)
    assert found.exact == pytest.approx(2 * (1 + 4) / 16)
    assert mcnemar(np.r_[one, np.ones(50, bool)], np.r_[two, np.ones(50, bool)]) == found
    assert mcnemar(one, one).exact == mcnemar(one, one).mid == 1.0


def test_models_that_were_judged_on_different_examples_are_refused():
    with pytest.raises(ValueError, match="same examples"):
        mcnemar([True], [True, False])


def test_equally_good_models_are_told_apart_no_more_often_than_the_level_says():
    """Exactly, by adding up the probabilities of all splits: no simulation needed."""
    for disputed in (5, 12, 30, 101):
        weights = stats.binom.pmf(np.arange(disputed + 1), disputed, 0.5)
        both = np.array([p_values(first, disputed - first) for first in range(disputed + 1)])
        assert weights[both[:, 0] <= 0.05].sum() <= 0.05
        assert weights[both[:, 1] <= 0.05].sum() <= 0.065  # mid-p may be slightly above: 0.0625 with five


def of_means(one, two):
    def scored(swapped):
        return {"mean": np.where(swapped, two, one).mean()}, {"mean": np.where(swapped, one, two).mean()}

    return scored


def test_on_right_and_wrong_it_is_mcnemars_exact_test():
    # Swapping an example's answers changes nothing where both are right or wrong: what is left is a fair coin
    one = np.r_[np.ones(14), np.zeros(5), np.ones(60)]
    two = np.r_[np.zeros(14), np.ones(5), np.ones(60)]
    found = randomisation(79, of_means(one, two), seed=1, rounds=20_000)["mean"]
    assert found == pytest.approx(p_values(14, 5)[0], abs=0.005)


def test_it_agrees_with_scipys_permutation_test_of_pairs():
    random = np.random.default_rng(3)
    one = random.normal(0.3, 1, 40)
    two = random.normal(0.0, 1, 40)
    reference = stats.permutation_test(
        (one, two),
        lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).pvalue
    assert randomisation(40, of_means(one, two), seed=1, rounds=20_000)["mean"] == pytest.approx(reference, abs=0.01)


def test_any_score_will_do():
    random = np.random.default_rng(5)
    labels = random.integers(2, size=60)
    good, bad = np.where(random.random(60) < 0.9, labels, 1 - labels), random.integers(2, size=60)

    def scored(swapped):
        one, two = np.where(swapped, bad, good), np.where(swapped, good, bad)
        return {"f1": f1_score(labels, one)}, {"f1": f1_score(labels, two)}

    assert randomisation(60, scored, seed=1, rounds=99)["f1"] < 0.02
    assert randomisation(60, lambda _: ({"f1": 0.5}, {"f1": 0.5}), seed=1, rounds=99)["f1"] == 1.0


def test_the_p_value_is_never_zero_and_the_same_for_the_same_seed():
    found = randomisation(30, of_means(np.ones(30), np.zeros(30)), seed=1, rounds=99)["mean"]
    assert found == 1 / 100
    one, two = np.random.default_rng(0).random((2, 25))
    assert randomisation(25, of_means(one, two), seed=4, rounds=99) == randomisation(
        25, of_means(one, two), seed=4, rounds=99
    )


def test_equally_good_models_are_told_apart_no_more_often_than_the_level_says_by_randomisation():
    random = np.random.default_rng(9)
    claims = 0
    for study in range(300):
        ease = random.normal(size=60)
        one, two = (random.random((2, 60)) < 1 / (1 + np.exp(-ease))).astype(float)
        claims += randomisation(60, of_means(one, two), seed=study, rounds=99)["mean"] <= 0.05
    assert claims / 300 <= 0.05 + 2.6 * np.sqrt(0.05 * 0.95 / 300)


P_VALUES = some.lists(some.floats(0, 1), max_size=20)


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.2: times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.2
    assert holm([0.03, 0.2, 0.01, 0.02]) == pytest.approx([0.06, 0.2, 0.04, 0.06])


def test_benjamini_and_hochberg_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.2: times 4/1, 4/2, 4/3, 4/4 = 0.04, 0.04, 0.04, 0.2
    assert benjamini_hochberg([0.03, 0.2, 0.01, 0.02]) == pytest.approx([0.04, 0.2, 0.04, 0.04])


@settings(deadline=None)
@given(P_VALUES)
def test_benjamini_and_hochberg_as_scipy_has_it(values):
    if values:
        assert benjamini_hochberg(values) == pytest.approx(stats.false_discovery_control(values, method="bh").tolist())


@settings(deadline=None)
@given(P_VALUES)
def test_holm_claims_what_the_stepwise_procedure_claims(values):
    """The procedure as it is printed: go up the sorted p-values while p <= level / (m - k)."""
    order, claimed = sorted(range(len(values)), key=lambda at: values[at]), set()
    for rank, at in enumerate(order):
        if values[at] * (len(values) - rank) > 0.05:
            break
        claimed.add(at)
    assert {at for at, p in enumerate(holm(values)) if p <= 0.05} == claimed


@settings(deadline=None)
@given(P_VALUES)
def test_a_correction_makes_nothing_smaller_and_keeps_the_order(values):
    for how in ("holm", "bh", "none"):
        found = corrected(values, how)
        assert all(after >= before - 1e-15 for before, after in zip(values, found, strict=True))
        assert all(0 <= p <= 1 for p in found)
        order = np.argsort(values, kind="stable")
        assert (np.diff(np.array(found)[order]) >= -1e-15).all()


def test_holm_makes_a_false_claim_in_few_families_and_none_in_many():
    random = np.random.default_rng(0)
    families = random.random((2000, 10))  # ten true null hypotheses each
    wrong = np.mean([min(corrected(family.tolist(), "holm")) <= 0.05 for family in families])
    plain = np.mean(families.min(axis=1) <= 0.05)
    assert wrong <= 0.05 + 2.6 * np.sqrt(0.05 * 0.95 / 2000)
    assert plain > 0.35  # the probe: without a correction a family of ten errs in 40 %


def test_what_is_no_p_value_and_an_unknown_correction_are_refused():
    with pytest.raises(ValueError, match="no p-value"):
        corrected([1.2], "holm")
    with pytest.raises(ValueError, match="must be one of holm, bh, none"):
        corrected([0.1], "bonferroni")

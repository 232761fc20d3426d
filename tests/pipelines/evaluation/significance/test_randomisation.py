import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from pipelines.metrics.statistics import p_values, randomisation


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

    assert randomisation(60, scored, seed=1, rounds=199)["f1"] < 0.02
    assert randomisation(60, lambda _: ({"f1": 0.5}, {"f1": 0.5}), seed=1, rounds=99)["f1"] == 1.0


def test_the_p_value_is_never_zero_and_the_same_for_the_same_seed():
    found = randomisation(30, of_means(np.ones(30), np.zeros(30)), seed=1, rounds=99)["mean"]
    assert found == 1 / 100
    one, two = np.random.default_rng(0).random((2, 25))
    assert randomisation(25, of_means(one, two), seed=4, rounds=99) == randomisation(
        25, of_means(one, two), seed=4, rounds=99
    )


def test_equally_good_models_are_told_apart_no_more_often_than_the_level_says():
    random = np.random.default_rng(9)
    claims = 0
    for study in range(300):
        ease = random.normal(size=60)
        one, two = (random.random((2, 60)) < 1 / (1 + np.exp(-ease))).astype(float)
        claims += randomisation(60, of_means(one, two), seed=study, rounds=99)["mean"] <= 0.05
    assert claims / 300 <= 0.05 + 2.6 * np.sqrt(0.05 * 0.95 / 300)

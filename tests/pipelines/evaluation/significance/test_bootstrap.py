import numpy as np
import pytest
from scipy import stats

from pipelines.metrics.statistics import p_of_draws


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

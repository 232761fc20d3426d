import numpy as np
import pytest
from scipy import stats

from pipelines.metrics.statistics import mcnemar, p_values


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

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats

from pipelines.metrics.statistics import benjamini_hochberg, corrected, holm

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

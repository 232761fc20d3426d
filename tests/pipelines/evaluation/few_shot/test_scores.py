import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax as scipys
from sklearn.metrics import f1_score

from pipelines.evaluation.few_shot import scores
from pipelines.metrics.squad import Squad

NATS = arrays(np.float64, (5, 3), elements=st.floats(-80, 0))


@given(NATS)
def test_log_probabilities_are_those_of_scipy(nats):
    assert scores.log_softmax(nats) == pytest.approx(scipys(nats, axis=-1))


def test_contextual_calibration_by_hand():
    """Zhao et al. 2021: content-free inputs give "yes" 0.8 on average, so a question that gives it 0.7 speaks for "no"."""
    empty = np.log([[[0.9, 0.1], [0.7, 0.3]]])
    found = scores.contextual(np.log([[0.7, 0.3]]), empty)
    assert np.exp(found) == pytest.approx(np.array([[0.7 / 0.8, 0.3 / 0.2]]))
    # likelihoods that do not sum to one are made probabilities over the answers first
    assert scores.contextual(np.log([[0.07, 0.03]]), empty) == pytest.approx(found)


def test_lengths_divide_and_nothing_is_divided_by_nothing():
    assert scores.per_length(np.array([-4.0, -6.0, -1.0]), np.array([2.0, 4.0, 0.0])).tolist() == [-2.0, -1.5, -1.0]


def test_accuracies_and_other_scores_are_means_over_the_draws():
    random = np.random.default_rng(0)
    weighed, labels = random.normal(size=(50, 3, 2, 2)), random.integers(2, size=50)
    found = scores.score_options(["acc", "acc_norm"], ["accuracy", "f1"], 2)(weighed, labels)
    chosen = weighed.argmax(-1)
    assert list(found) == ["acc", "acc_norm", "f1"]
    assert found["acc"] == pytest.approx(np.mean([(chosen[:, draw, 0] == labels).mean() for draw in range(3)]))
    assert found["acc_norm"] == pytest.approx((chosen[:, :, 1] == labels[:, None]).mean())
    assert found["f1"] == pytest.approx(np.mean([f1_score(labels, chosen[:, draw, 0]) for draw in range(3)]))


def test_numbers_stand_for_their_expected_value():
    assert scores.expected(np.log([[0.25, 0.75]]), [0, 4]).tolist() == pytest.approx([3.0])


def test_texts_are_scored_draw_by_draw():
    written = [["a cat", "dog"], ["cat", "mouse"]]
    counted = {"squad": np.stack([Squad().counts(draw, [["cat"], ["dog"]]) for draw in written], axis=1)}
    found = scores.score_texts(["squad"], counted)(np.arange(2), None)
    by_hand = [Squad().compute(draw, [["cat"], ["dog"]]) for draw in written]
    assert found == pytest.approx({name: np.mean([each[name] for each in by_hand]) for name in ("exact_match", "f1")})


def test_the_spread_over_draws_is_that_of_a_sample():
    assert scores.spread([{"acc": 0.5}, {"acc": 0.7}]) == {
        "acc": pytest.approx({"sd": 0.1 * 2**0.5, "min": 0.5, "max": 0.7})
    }

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.special import softmax as scipy_softmax
from sklearn.metrics import log_loss

from pipelines.metrics.calibration import best_temperature, calibration, expected_error, reliability, softmax


def drawn(examples=2000, temperature=1.0, seed=0):
    """Logits, and labels drawn from them at another temperature: too sure where that is above 1."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, (examples, 3))
    chances = scipy_softmax(logits / temperature, axis=1)
    return logits, np.array([random.choice(3, p=row) for row in chances])


def test_the_expected_error_by_hand():
    # two of five are 0.9 sure and one of them right: |0.9 - 0.5|; three are 0.6 sure and all right: |0.6 - 1|
    confidence = np.array([0.9, 0.9, 0.6, 0.6, 0.6])
    right = np.array([True, False, True, True, True])
    assert expected_error(confidence, right, bins=10) == pytest.approx(2 / 5 * 0.4 + 3 / 5 * 0.4)
    assert [(each["examples"], each["accuracy"]) for each in reliability(confidence, right, bins=10)] == [
        (3, 1.0),
        (2, 0.5),
    ]


def test_a_bin_holds_its_upper_end_and_not_its_lower_one():
    [one, two] = reliability(np.array([0.5, 0.5000001]), np.array([True, True]), bins=2)
    assert (one["high"], two["low"]) == (0.5, 0.5)


def test_a_model_that_is_right_as_often_as_it_is_sure_has_almost_no_error():
    logits, labels = drawn(20_000)
    found = calibration(logits, labels)
    assert found["ece"] < 0.012
    assert found["scaled"]["temperature"] == pytest.approx(1.0, abs=0.03)
    assert found["temperature"] == 1.0


def test_a_model_that_is_too_sure_is_told_its_temperature():
    logits, labels = drawn(8000, temperature=2.5)
    found = calibration(logits, labels)
    assert found["confidence"] > found["accuracy"] + 0.1
    assert found["scaled"]["temperature"] == pytest.approx(2.5, abs=0.15)
    assert found["scaled"]["ece"] < 0.02 < found["ece"]


def test_the_best_temperature_is_scipys_minimum():
    logits, labels = drawn(500, temperature=0.6, seed=3)

    def loss(temperature):
        return -log_softmax(logits / temperature, axis=1)[np.arange(500), labels].mean()

    assert best_temperature(logits, labels) == pytest.approx(
        minimize_scalar(loss, bounds=(0.05, 20), method="bounded").x, rel=2e-3
    )


def test_likelihood_and_brier_score_as_scikit_learn_has_them():
    logits, labels = drawn(300)
    found = calibration(logits, labels)
    chances = scipy_softmax(logits, axis=1)
    assert softmax(logits) == pytest.approx(chances)
    assert found["nll"] == pytest.approx(log_loss(labels, chances))
    assert found["brier"] == pytest.approx(np.mean(np.sum((chances - np.eye(3)[labels]) ** 2, axis=1)))


def test_large_logits_and_few_examples_are_no_problem():
    found = calibration(np.array([[1e4, 0.0], [0.0, 1e4]]), np.array([0, 0]))
    assert found["ece"] == pytest.approx(0.5)
    assert "scaled" not in found

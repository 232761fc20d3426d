"""The classifier on frozen features: pairs, strengths, and layers that are mixed as ELMo's are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from pipelines.core.errors import DataError
from pipelines.evaluation.features.linear_probe import (
    LayerMixture,
    TextFeatures,
    chosen,
    combined,
    fitted,
)

ROWS, WIDTH = 120, 5


def drawn(layers: int = 1, pairs: bool = False, seed: int = 0) -> TextFeatures:
    random = np.random.default_rng(seed)
    sides = [random.normal(3, 2, (layers, ROWS, WIDTH)).astype(np.float32) for _ in range(2)]
    return TextFeatures(sides[0], sides[1] if pairs else None)


def classes(features: TextFeatures, layer: int = 0, outputs: int = 3, noise: float = 0.5) -> NDArray[np.int64]:
    random = np.random.default_rng(9)
    said = features.first[layer] @ random.normal(size=(WIDTH, outputs)) + random.normal(0, noise, (ROWS, outputs))
    return (said - said.mean(axis=0)).argmax(axis=1)


def test_a_pair_is_both_their_difference_and_their_product() -> None:
    u, v = np.array([[1.0, -2.0]]), np.array([[3.0, 1.0]])
    assert combined(u, v, np.hstack).tolist() == [[1, -2, 3, 1, 2, 3, 3, -2]]
    assert combined(u, None, np.hstack) is u


@pytest.mark.parametrize("outputs", [2, 3])
@pytest.mark.parametrize("pairs", [False, True])
def test_classes_are_learnt_as_scikit_learn_does_on_scaled_columns(outputs: int, pairs: bool) -> None:
    features = drawn(pairs=pairs)
    labels = classes(features, outputs=outputs)
    columns = combined(features.first[0], features.second[0] if features.second is not None else None, np.hstack)
    scaled = StandardScaler().fit_transform(columns)
    theirs = LogisticRegression(C=0.3, max_iter=1000).fit(scaled, labels).predict_proba(scaled)
    mine = torch.from_numpy(fitted(features, labels, outputs, 0.3).logits(features)).softmax(1)
    np.testing.assert_allclose(mine, theirs, atol=2e-3)


def test_numbers_are_learnt_by_ridge_regression() -> None:
    features = drawn()
    columns = StandardScaler().fit_transform(features.first[0].astype(np.float64))
    targets = columns @ np.arange(WIDTH) + 7
    C = 0.02
    weights = np.linalg.solve(columns.T @ columns + np.eye(WIDTH) / C, columns.T @ (targets - targets.mean()))
    said = fitted(features, targets, 1, C).logits(features)
    np.testing.assert_allclose(said[:, 0], columns @ weights + targets.mean(), atol=1e-3)


def test_a_class_without_rows_is_never_said_and_one_class_alone_is_refused() -> None:
    features = drawn()
    labels = np.where(classes(features, outputs=2) == 1, 3, 0)
    logits = fitted(features, labels, 4, 1.0).logits(features)
    assert set(logits.argmax(1)) == {0, 3}
    with pytest.raises(DataError, match="all of one class"):
        fitted(features, np.zeros(ROWS, dtype=np.int64), 2, 1.0)


@pytest.mark.parametrize("pairs", [False, True])
def test_the_layer_that_knows_the_answer_gets_the_weight(pairs: bool) -> None:
    features = drawn(layers=3, pairs=pairs)
    probe = fitted(features, classes(features, layer=2, noise=0.1), 3, 1.0)
    assert isinstance(probe, LayerMixture)
    shares = probe.facts()["layer_weights"]
    assert sum(shares) == pytest.approx(1)
    assert shares[2] > 0.7 > 2 * max(shares[:2])
    assert probe.converged
    assert (probe.logits(features).argmax(1) == classes(features, layer=2, noise=0.1)).mean() > 0.9


def test_a_mixture_is_the_papers_equation_at_the_minimum_of_its_objective() -> None:
    features, C = drawn(layers=2), 0.5
    labels = classes(features, layer=1)
    probe: Any = fitted(features, labels, 3, C)
    own = {name: weight.clone().double().requires_grad_() for name, weight in probe.weights.items()}
    states = torch.from_numpy(features.first).double()
    states = (states - states.mean(1, keepdim=True)) / states.std(1, keepdim=True, correction=0)
    shares = own["s"].exp() / own["s"].exp().sum()
    mixed = own["gamma"] * (shares[0] * states[0] + shares[1] * states[1])
    logits = mixed @ own["weight"].T + own["bias"]
    np.testing.assert_allclose(probe.logits(features), logits.detach(), atol=1e-4)
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction="sum")
    penalty = (own["weight"] ** 2).sum() + (own["s"] ** 2).sum() + (own["gamma"] - 1) ** 2
    ((C * loss + penalty / 2) / (C * ROWS)).backward()
    assert all(weight.grad.abs().max() < 1e-3 for weight in own.values() if weight.grad is not None)


def test_a_mixture_learns_numbers_too() -> None:
    features = drawn(layers=2)
    targets = features.first[1] @ np.arange(WIDTH) + 2.0
    said = fitted(features, targets, 1, 10.0).logits(features)
    assert np.corrcoef(said[:, 0], targets)[0, 1] > 0.99


def test_the_strength_is_the_one_that_scores_best_on_rows_it_was_not_fitted_on() -> None:
    features = drawn()
    labels = classes(features)
    learnt, aside = np.arange(100), np.arange(100, ROWS)
    asked: list[int] = []

    def score(logits: Any, truth: Any) -> float:
        assert len(logits) == len(truth) == 20
        asked.append(1)
        return {1: 0.2, 2: 0.9, 3: 0.9, 4: float("nan")}[len(asked)]

    choice = chosen(features, labels, 3, (1.0, 0.01, 0.1, 10.0), (learnt, aside), score, lambda: None)
    assert choice.C == 0.1  # of the two best the smaller; they are tried from the smallest on
    assert choice.tried == {0.01: 0.2, 0.1: 0.9, 1.0: 0.9}
    assert not choice.at_edge
    assert chosen(features, labels, 3, (5.0,), (learnt, aside), score, lambda: None).tried == {}
    assert len(asked) == 4

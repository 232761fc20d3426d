"""A regularised linear classifier on frozen features, and the choice of its strength on rows set aside.

The two texts u and v of a pair are told apart by [u, v, |u - v|, u · v] (Conneau et al. 2017, "InferSent", section 3.1,
arxiv.org/abs/1705.02364). Every column is brought to mean 0 and deviation 1 over the training rows first, so that one
strength suits all. Classes are learnt by multinomial logistic regression, numbers by ridge regression, both by
scikit-learn, with C times the loss against half the squared weights.

Layers are mixed by gamma · sum softmax(s)_j h_j (Peters et al. 2018, equation 1, arxiv.org/abs/1802.05365), learnt in
one with the classifier by L-BFGS. A free gamma would undo the penalty on the classifier's weights, so that it is held
near 1, and s near 0, by the same penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pipelines.core.errors import DataError

Floats = NDArray[np.float32]
NEVER = -1e4
"""The logit of a class that no training row has."""
ITERATIONS = 1000
"""Of either optimizer."""


class TextFeatures(NamedTuple):
    """Features of the first and, of pairs, of the second texts: (layers, rows, width) each."""

    first: Floats
    second: Floats | None

    def select(self, rows: NDArray[np.int64]) -> TextFeatures:
        """These rows alone."""
        return TextFeatures(self.first[:, rows], None if self.second is None else self.second[:, rows])


class Probe(Protocol):
    """A fitted classifier."""

    converged: bool

    def logits(self, features: TextFeatures) -> Floats:
        """(rows, outputs)."""

    def tensors(self) -> dict[str, Tensor]:
        """Its weights by name."""

    def facts(self) -> dict[str, Any]:
        """What belongs beside the scores."""


def combined(u: Any, v: Any, join: Callable[[list[Any]], Any]) -> Any:
    """[u, v, |u - v|, u · v] of arrays or tensors (rows, width); u alone where there is no v."""
    return u if v is None else join([u, v, abs(u - v), u * v])


def fitted(features: TextFeatures, labels: Sequence[Any] | NDArray[Any], outputs: int, C: float) -> Probe:
    """The classifier of `outputs` classes, or of one number, with the strength C. Raises DataError."""
    targets = np.asarray(labels)
    if outputs > 1 and len(np.unique(targets)) < 2:
        raise DataError("the training rows are all of one class, which tells nothing apart; raise max_train_samples")
    if len(features.first) > 1:
        return LayerMixture.fit(features, targets, outputs, C)
    return LinearModel.fit(features, targets, outputs, C)


# ---- one layer -----------------------------------------------------------------------------------------------------


@dataclass
class LinearModel:
    """Weights (outputs, columns) and biases (outputs,) on scaled columns."""

    mean: Floats
    scale: Floats
    weight: Floats
    bias: Floats
    converged: bool = True

    @classmethod
    def fit(cls, features: TextFeatures, targets: NDArray[Any], outputs: int, C: float) -> LinearModel:
        """By scikit-learn."""
        import warnings

        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression, Ridge

        columns = _columns(features)
        mean, scale = _scale(columns)
        scaled = (columns - mean) / scale
        if outputs == 1:
            ridge = Ridge(alpha=1 / C).fit(scaled, targets)
            return cls(mean, scale, _row(ridge.coef_), np.full(1, ridge.intercept_, dtype=np.float32))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(C=C, max_iter=ITERATIONS).fit(scaled, targets)
        weight = np.zeros((outputs, scaled.shape[1]), dtype=np.float32)
        bias = np.full(outputs, NEVER, dtype=np.float32)
        if len(model.classes_) == 2:  # of two classes there is one row, for the second
            weight[model.classes_] = np.vstack([-model.coef_ / 2, model.coef_ / 2])
            bias[model.classes_] = np.array([-model.intercept_[0] / 2, model.intercept_[0] / 2])
        else:
            weight[model.classes_], bias[model.classes_] = model.coef_, model.intercept_
        return cls(mean, scale, weight, bias, bool((model.n_iter_ < ITERATIONS).all()))

    def logits(self, features: TextFeatures) -> Floats:
        logits = ((_columns(features) - self.mean) / self.scale) @ self.weight.T + self.bias
        return np.asarray(logits, dtype=np.float32)

    def tensors(self) -> dict[str, Tensor]:
        named = {"mean": self.mean, "scale": self.scale, "weight": self.weight, "bias": self.bias}
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in named.items()}

    def facts(self) -> dict[str, Any]:
        return {"columns": self.weight.shape[1]}


def _columns(features: TextFeatures) -> Floats:
    columns: Floats = combined(features.first[0], None if features.second is None else features.second[0], np.hstack)
    return columns


def _scale(columns: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation of each column; a constant column keeps its scale."""
    mean, scale = columns.mean(axis=0, dtype=np.float64), columns.std(axis=0, dtype=np.float64)
    return mean.astype(np.float32), np.where(scale > 1e-6, scale, 1.0).astype(np.float32)


def _row(weights: NDArray[Any]) -> Floats:
    return np.asarray(weights, dtype=np.float32).reshape(1, -1)


# ---- a mixture of layers -------------------------------------------------------------------------------------------


@dataclass
class LayerMixture:
    """A classifier on gamma · sum softmax(s)_j h_j, its columns scaled layer by layer."""

    mean: Tensor
    """(layers, 1, width)."""
    scale: Tensor
    weights: dict[str, Tensor] = field(default_factory=dict)
    """`s` (layers,), `gamma` (), `weight` (outputs, columns), `bias` (outputs,)."""
    converged: bool = True

    @classmethod
    def fit(cls, features: TextFeatures, targets: NDArray[Any], outputs: int, C: float) -> LayerMixture:
        """All of it at once, from equal layers and a classifier of zeros."""
        sides = [side for side in features if side is not None]
        both = torch.from_numpy(np.concatenate(sides, axis=1))
        mean = both.mean(dim=1, keepdim=True)
        scale = both.std(dim=1, keepdim=True, correction=0)
        mixture = cls(mean, torch.where(scale > 1e-6, scale, torch.ones_like(scale)))
        layers, columns = both.shape[0], both.shape[2] * (4 if features.second is not None else 1)
        mixture.weights = {
            "s": torch.zeros(layers),
            "gamma": torch.ones(()),
            "weight": torch.zeros(outputs, columns),
            "bias": torch.zeros(outputs),
        }
        wanted = torch.from_numpy(targets.astype(np.float32 if outputs == 1 else np.int64))
        mixture._learn(mixture._scaled(features), wanted, outputs, C)
        return mixture

    def _learn(self, sides: list[Tensor], wanted: Tensor, outputs: int, C: float) -> None:
        learnt = [weight.requires_grad_() for weight in self.weights.values()]
        optimizer = torch.optim.LBFGS(
            learnt, max_iter=ITERATIONS, tolerance_grad=1e-5, tolerance_change=1e-7, line_search_fn="strong_wolfe"
        )

        def objective() -> Tensor:
            optimizer.zero_grad()
            predicted = self._say(sides)
            if outputs == 1:
                loss = 0.5 * ((predicted[:, 0] - wanted) ** 2).sum()
            else:
                loss = functional.cross_entropy(predicted, wanted, reduction="sum")
            own = self.weights
            penalty = 0.5 * (own["weight"].square().sum() + own["s"].square().sum() + (own["gamma"] - 1).square())
            total = (C * loss + penalty) / (C * len(wanted))  # a mean, so that tolerances mean the same for any C
            total.backward()
            return total

        optimizer.step(objective)
        self.converged = optimizer.state[learnt[0]]["n_iter"] < ITERATIONS
        self.weights = {name: weight.detach() for name, weight in self.weights.items()}

    def _scaled(self, features: TextFeatures) -> list[Tensor]:
        return [(torch.from_numpy(side) - self.mean) / self.scale for side in features if side is not None]

    def _say(self, sides: list[Tensor]) -> Tensor:
        shares = self.weights["gamma"] * self.weights["s"].softmax(0)
        mixed = [torch.einsum("l,lrw->rw", shares, side) for side in sides]
        columns = combined(mixed[0], mixed[1] if len(mixed) > 1 else None, lambda parts: torch.cat(parts, dim=1))
        return functional.linear(columns, self.weights["weight"], self.weights["bias"])

    def logits(self, features: TextFeatures) -> Floats:
        with torch.no_grad():
            logits: Floats = self._say(self._scaled(features)).numpy()
        return logits

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "scale": self.scale, **self.weights}

    def facts(self) -> dict[str, Any]:
        shares = self.weights["s"].softmax(0).tolist()
        columns = self.weights["weight"].shape[1]
        return {"columns": columns, "layer_weights": shares, "gamma": float(self.weights["gamma"])}


# ---- the strength --------------------------------------------------------------------------------------------------


@dataclass
class ChosenRegularization:
    """The strength that was chosen, and what each of those tried scored on the rows set aside."""

    C: float
    tried: dict[float, float]
    """Empty where there was one alone."""

    @property
    def at_edge(self) -> bool:
        """Whether it is the smallest or the largest that was tried."""
        return len(self.tried) > 1 and self.C in (min(self.tried), max(self.tried))


def chosen(
    features: TextFeatures,
    labels: Sequence[Any],
    outputs: int,
    strengths: Sequence[float],
    split: tuple[NDArray[np.int64], NDArray[np.int64]],
    score: Callable[[Any, Any], float],
    beat: Callable[[], None],
) -> ChosenRegularization:
    """The strength whose classifier, fitted on the first rows of `split`, scores best on the others.

    Of equal scores the smallest strength is taken. `beat` is called before each. Raises DataError.
    """
    if len(strengths) == 1:
        return ChosenRegularization(strengths[0], {})
    learnt, aside = split
    every = np.asarray(labels)
    tried: dict[float, float] = {}
    for C in sorted(strengths):
        beat()
        probe = fitted(features.select(learnt), every[learnt], outputs, C)
        value = score(probe.logits(features.select(aside)), every[aside])
        tried[C] = value if np.isfinite(value) else -np.inf
    best = max(tried, key=lambda C: (tried[C], -C))
    return ChosenRegularization(best, {C: value for C, value in tried.items() if np.isfinite(value)})

"""Losses of labelled examples are sums over items, equal to the arithmetic written out."""

from __future__ import annotations

import pytest
import torch

from pipelines.objectives.losses import classification_loss, regression_loss
from tests import tiny


@pytest.mark.parametrize("family", ["finery", "bert", "gpt2"])
def test_classification_is_the_sum_of_cross_entropies(family: str) -> None:
    model = tiny.build(family, tiny.THREE)
    labels = torch.tensor([0, 2, 1, 1])
    total, outputs = classification_loss(model, tiny.batch() | {"labels": labels})
    rows = outputs.logits.detach().tolist()
    expected = sum(
        torch.tensor(row).exp().sum().log().item() - row[label]
        for row, label in zip(rows, labels.tolist(), strict=True)
    )
    assert total.item() == pytest.approx(expected, rel=1e-5)
    assert outputs.logits.shape == (4, 3)


@pytest.mark.parametrize("family", ["finery", "bert"])
def test_regression_is_the_sum_of_squared_errors(family: str) -> None:
    model = tiny.build(family, tiny.NUMBER)
    labels = torch.tensor([0.5, 3.0, -1.0, 5.0])
    total, outputs = regression_loss(model, tiny.batch() | {"labels": labels})
    said = outputs.logits.detach().squeeze(1).tolist()
    assert total.item() == pytest.approx(
        sum((a - b) ** 2 for a, b in zip(said, labels.tolist(), strict=True)), rel=1e-5
    )

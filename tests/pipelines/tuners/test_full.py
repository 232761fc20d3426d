"""Full fine-tuning trains every weight."""

from __future__ import annotations

from pipelines.tuners.full import Full
from tests import tiny


def test_every_weight_learns_even_those_frozen_before() -> None:
    model = tiny.build("bert", tiny.TWO)
    model.bert.embeddings.requires_grad_(False)
    assert Full().apply(model) is model
    assert all(weight.requires_grad for weight in model.parameters())
    assert not Full.adapts

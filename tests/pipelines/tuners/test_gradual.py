"""When each layer begins to learn."""

from __future__ import annotations

from pipelines.tuners.full import GradualUnfreezing


def test_one_more_layer_each_epoch_or_every_few() -> None:
    assert [GradualUnfreezing().thawed(epoch) for epoch in range(4)] == [1, 2, 3, 4]
    assert [GradualUnfreezing(epochs_per_layer=2).thawed(epoch) for epoch in range(5)] == [1, 1, 2, 2, 3]

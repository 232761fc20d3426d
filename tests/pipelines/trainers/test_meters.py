from __future__ import annotations

import json

import pytest
import torch

from pipelines.objectives.losses import Meter


def test_means_are_over_items_not_over_batches():
    meter = Meter()
    meter.add(True, {"margin": torch.tensor([1.0, 2.0, 3.0])})
    meter.add(True, {"margin": torch.tensor([10.0])})
    assert meter.take(True) == {"margin": 4.0}
    assert meter.take(True) == {}


def test_training_and_evaluation_are_kept_apart():
    meter = Meter()
    meter.add(True, {"margin": torch.tensor([1.0])})
    meter.add(False, {"margin": torch.tensor([3.0])})
    assert meter.take(False) == {"margin": 3.0}
    assert meter.take(True) == {"margin": 1.0}


def test_processes_are_joined_by_their_items():
    meter = Meter()
    meter.add(True, {"margin": torch.tensor([1.0, 1.0, 1.0])})
    assert meter.take(True, lambda told: [told, {"margin": [9.0, 1.0]}, {}]) == {"margin": 3.0}


def test_a_checkpoint_brings_the_sums_back_to_the_bit():
    meter, after = Meter(), Meter()
    meter.add(True, {"margin": torch.rand(7), "other": torch.rand(3)})
    after.restore(json.loads(json.dumps(meter.state())), "cpu")
    assert after.take(True) == meter.take(True)


def test_nothing_to_count_is_not_told():
    meter = Meter()
    meter.add(True, {"margin": torch.zeros(0)})
    assert meter.take(True) == {}


def test_gradients_are_not_kept():
    meter = Meter()
    meter.add(True, {"margin": torch.ones(2, requires_grad=True) * 2})
    assert not meter.totals["train"]["margin"].requires_grad
    assert meter.take(True)["margin"] == pytest.approx(2.0)

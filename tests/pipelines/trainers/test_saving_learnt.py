"""Checkpoints of what learns: written by the main process, where the Trainer looks for them."""

from __future__ import annotations

import types
from pathlib import Path

import torch
from safetensors.torch import load_file

from pipelines.trainers.checkpoints import save_learnt


def test_the_weights_come_back(tmp_path: Path):
    arguments = types.SimpleNamespace(should_save=True, output_dir=str(tmp_path / "elsewhere"))
    weights = {"a": torch.randn(2, 3), "b": torch.ones(1)}
    save_learnt(weights, arguments, str(tmp_path / "here"))
    found = load_file(str(tmp_path / "here" / "model.safetensors"))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], value) for name, value in weights.items())
    assert not (tmp_path / "elsewhere").exists()


def test_other_processes_write_nothing(tmp_path: Path):
    save_learnt(
        {"a": torch.ones(1)}, types.SimpleNamespace(should_save=False, output_dir=str(tmp_path)), str(tmp_path / "here")
    )
    assert not (tmp_path / "here").exists()

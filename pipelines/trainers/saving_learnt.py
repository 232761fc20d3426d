"""Checkpoints of a module that is no transformers model: the weights that learn, in one safetensors file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.utils import SAFE_WEIGHTS_NAME


def save_learnt(weights: Mapping[str, Tensor], arguments: Any, folder: str | None) -> None:
    """Write `weights` where the Trainer looks for them when it resumes. What is missing there stays as the stage opened it."""
    if not arguments.should_save:
        return
    place = folder or arguments.output_dir
    os.makedirs(place, exist_ok=True)
    safetensors.torch.save_file(dict(weights), os.path.join(place, SAFE_WEIGHTS_NAME), metadata={"format": "pt"})
    torch.save(arguments, os.path.join(place, TRAINING_ARGS_NAME))

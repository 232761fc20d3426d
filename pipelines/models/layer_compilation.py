"""`torch.compile` of a model's layers, each by itself: what is equal is compiled once, in a few seconds.

A model of twelve equal layers compiled as a whole is one long program; its layers are the same short one twelve times.
What lies around them (embeddings, heads, losses) stays as it is written, so that vocabulary losses by chunk and
whatever looks at a model from outside go on to work, and names of weights do not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

GRAPHS_OF_A_LAYER = 4
"""Lengths, training and evaluation: compiled forms that one layer may have."""
ONE_AT_A_TIME = RLock()
"""Torch has one stance for the whole process: threads that restored it in another order would leave it changed."""


def compile_layers(model: nn.Module, **settings: Any) -> int:
    """Compile every layer of `model` in place and return how many they are: those that transformers would checkpoint.

    `settings` are those of `torch.compile`.
    """
    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    limits = torch._dynamo.config  # where a number in a layer differs from the next layer's, each has a form of its own
    limits.recompile_limit = max(limits.recompile_limit, GRAPHS_OF_A_LAYER * len(layers))
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 2 * limits.recompile_limit)
    for layer in layers:
        layer.compile(**settings)
    return len(layers)


def as_before(model: nn.Module) -> None:
    """Undo `compile_layers`."""
    for each in model.modules():
        each._compiled_call_impl = None


def is_compiled(module: nn.Module) -> bool:
    """Whether a module, or the model that it wraps, was compiled: hooks that come later do not reach what is in it."""
    children = module._modules  # looked up as they lie: of every module it is asked, and mostly in vain
    inside = children.get("module")
    whole = "_orig_mod" in children or (inside is not None and "_orig_mod" in inside._modules)
    return whole or module.__dict__.get("_compiled_call_impl") is not None


@contextmanager
def as_written() -> Iterator[None]:
    """Inside the `with` block what was compiled runs as it is written, hooks and all, and nothing is compiled."""
    with ONE_AT_A_TIME, torch.compiler.set_stance("force_eager"):
        yield

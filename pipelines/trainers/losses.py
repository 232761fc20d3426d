"""Losses as sums over items, so that the loop can divide by the items of the whole step.

A mean per micro-batch is wrong as soon as batches are accumulated or shared by processes and hold different numbers
of items. Every loss here returns the sum; the loop divides by the count over all micro-batches and processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

IGNORED = -100


def masked_token_loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """Cross-entropy summed over the positions that have a label; the head sees no other position.

    Devlin et al. 2019, section 3.1: only masked tokens are predicted, so logits over the vocabulary are computed for
    these alone: (masked, vocab) instead of (batch, query, vocab).
    """
    inputs = dict(inputs)
    labels = inputs.pop("labels")  # (batch, query)
    wanted = labels != IGNORED
    with only_positions(model, wanted):
        outputs = model(**inputs)
    logits = outputs.logits.reshape(-1, outputs.logits.shape[-1])  # (masked, vocab)
    return functional.cross_entropy(logits.float(), labels[wanted], reduction="sum"), outputs


@contextmanager
def only_positions(model: nn.Module, wanted: Tensor) -> Iterator[None]:
    """Let the body of `model` hand only the `wanted` (batch, query) positions to its head, as (1, masked, dim)."""
    bare: Any = model.module if hasattr(model, "module") else model
    bare = bare.get_base_model() if hasattr(bare, "get_base_model") else bare

    def narrow(module: nn.Module, arguments: Any, output: Any) -> Any:
        hidden = output[0][wanted].unsqueeze(0)
        if isinstance(output, tuple):
            return (hidden, *output[1:])
        output["last_hidden_state"] = hidden
        return output

    hook = bare.base_model.register_forward_hook(narrow)
    try:
        yield
    finally:
        hook.remove()


def classification_loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """Cross-entropy summed over the examples. logits (batch, classes), labels (batch,)."""
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    return functional.cross_entropy(outputs.logits.float(), labels, reduction="sum"), outputs


def regression_loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """Squared error summed over the examples. logits (batch, 1), labels (batch,)."""
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    return functional.mse_loss(outputs.logits.float().squeeze(-1), labels.float(), reduction="sum"), outputs

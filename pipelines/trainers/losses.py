"""Losses of labelled examples as sums over items, so that the loop can divide by the items of the whole step.

A mean per micro-batch is wrong as soon as batches are accumulated or shared by processes and hold different numbers
of items. Every loss here returns the sum; the loop divides by the count over all micro-batches and processes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from pipelines.objectives.losses import IGNORED


def classification_loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """Cross-entropy summed over the examples. logits (batch, classes), labels (batch,)."""
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    return functional.cross_entropy(outputs.logits.float(), labels, reduction="sum"), outputs


def regression_loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """Squared error summed over the examples that have a label. logits (batch, 1), labels (batch,)."""
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    errors = (outputs.logits.float().squeeze(-1) - labels.float()) ** 2
    return errors.masked_fill(labels == IGNORED, 0.0).sum(), outputs

"""Losses of labelled examples as sums over items, so that the loop can divide by the items of the whole step.

A mean per micro-batch is wrong as soon as batches are accumulated or shared by processes and hold different numbers
of items. Every loss here returns the sum; the loop divides by the count over all micro-batches and processes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipelines.objectives.losses import IGNORED


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy in nats summed over the labels other than -100. logits (…, classes), labels (…).

    With `smoothing` ε the target is 1 - ε of the label and ε / classes of every class (Szegedy et al. 2016, "Rethinking
    the Inception Architecture", section 7, arxiv.org/abs/1512.00567): transformers' `label_smoothing_factor`. `weights`
    (classes,) multiply the terms of each class; the caller divides by the number of labels, not by the sum of weights.
    """
    flat = logits.float().reshape(-1, logits.shape[-1])
    if weights is not None:
        weights = weights.to(flat)
    return functional.cross_entropy(
        flat, labels.reshape(-1), weights, reduction="sum", label_smoothing=smoothing, ignore_index=IGNORED
    )


def classification_loss(
    model: nn.Module, inputs: dict[str, Tensor], *, smoothing: float = 0.0, weights: Tensor | None = None
) -> tuple[Tensor, Any]:
    """Cross-entropy summed over the examples. logits (batch, classes), labels (batch,)."""
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    return cross_entropy(outputs.logits, labels, smoothing, weights), outputs


def span_loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """Cross-entropies of the first and the last token, summed over both and over the examples. logits (batch, length) each,
    labels (batch, 2).

    Padding takes no part, so that an example's loss does not depend on the others in its batch.
    """
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    logits = torch.stack([outputs.start_logits.float(), outputs.end_logits.float()], dim=1)  # (batch, 2, length)
    padding = inputs["attention_mask"] == 0
    return cross_entropy(logits.masked_fill(padding[:, None, :], torch.finfo(torch.float32).min), labels), outputs


def regression_loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """Squared error summed over the examples that have a label. logits (batch, 1), labels (batch,)."""
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    errors = (outputs.logits.float().squeeze(-1) - labels.float()) ** 2
    return errors.masked_fill(labels == IGNORED, 0.0).sum(), outputs

"""Losses of the heads, averaged over the whole batch of an optimizer step.

When gradients are accumulated, or a batch is spread over processes, a mean over each part is not the mean over the
whole: parts with fewer labels would weigh as much as others. `Trainer` therefore counts the labels of the whole step
and passes `num_items_in_batch`; a part's loss is then its sum divided by that count. Without it, a mean.
"""

import torch
from torch import Tensor, nn

IGNORED = -100
"""The label of a position that has none."""


def cross_entropy(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Negative log-likelihood of the labels, in float32. logits (…, classes), labels (…); IGNORED labels cost nothing.

    A batch that asks for nothing costs 0 (a plain mean would be 0/0 and ruin the weights).
    """
    labels = labels.reshape(-1).to(logits.device, torch.long)
    total = nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), labels, ignore_index=IGNORED, reduction="sum"
    )
    return _per_item(total, (labels != IGNORED).sum().clamp(min=1), num_items_in_batch)


def next_word_cross_entropy(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """The same for logits (batch, query, vocab) whose place t predicts the label of place t + 1, as Hub models do."""
    return cross_entropy(logits[:, :-1], labels[:, 1:], num_items_in_batch)


def mean_squared_error(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Squared distance for each target, in float32. Logits and labels hold the same number of targets."""
    difference = logits.reshape(-1).float() - labels.reshape(-1).to(logits.device).float()
    return _per_item(difference.square().sum(), difference.numel(), num_items_in_batch)


def binary_cross_entropy(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Each label decided on its own, in float32. logits and labels (batch, labels)."""
    total = nn.functional.binary_cross_entropy_with_logits(
        logits.float(), labels.to(logits.device).float(), reduction="sum"
    )
    return _per_item(total, labels.numel(), num_items_in_batch)


PROBLEM_LOSSES = {
    "regression": mean_squared_error,
    "single_label_classification": cross_entropy,
    "multi_label_classification": binary_cross_entropy,
}


def problem_type_of(labels: Tensor, num_labels: int) -> str:
    """transformers' convention: one output is a regression, whole-number labels name a class, others are a set."""
    if num_labels == 1:
        return "regression"
    whole = not (labels.is_floating_point() or labels.dtype == torch.bool)
    return "single_label_classification" if whole else "multi_label_classification"


def _per_item(total: Tensor, items_here: Tensor | int, num_items_in_batch: Tensor | int | None) -> Tensor:
    if num_items_in_batch is None:
        return total / items_here
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / num_items_in_batch

"""Losses as sums over items, which the loop divides by the items of the whole step, and means that stand beside them.

A mean per micro-batch is wrong as soon as batches are accumulated or shared by processes and hold different numbers
of items. Every loss here returns the sum; the loop divides by the count over all micro-batches and processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipelines.core.interfaces import IGNORED
from pipelines.models.log_probabilities import distributions_of
from pipelines.models.read_places import text_alone

if TYPE_CHECKING:
    from transformers.utils import ModelOutput


def token_loss(
    model: nn.Module, inputs: dict[str, Tensor], smoothing: float = 0.0, meter: Meter | None = None
) -> tuple[Tensor, ModelOutput]:
    """Cross-entropy summed over the positions that have a label (); the head sees no other position.

    Devlin et al. 2019, section 3.1: only masked tokens are predicted, so logits over the vocabulary are computed for
    these alone: (masked, vocab) instead of (batch, query, vocab). `meter` takes in `mean_token_accuracy`: whether each
    label is the token that the model finds most probable.
    """
    inputs = dict(inputs)
    labels = inputs.pop("labels")  # (batch, query)
    outputs, said = distributions_of(model, inputs, labels != IGNORED)
    wanted = labels[labels != IGNORED]
    right = None if meter is None else torch.empty_like(wanted, dtype=torch.bool)
    loss = said.cross_entropy(wanted, smoothing, right)
    if meter is not None and right is not None:
        meter.add(model.training, {"mean_token_accuracy": right})
    return loss, outputs


def pretraining_loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, ModelOutput]:
    """Cross-entropy of the hidden tokens and of the pairs, each summed (2,). `pair_labels` (batch,)."""
    inputs = dict(inputs)
    labels, pair_labels = inputs.pop("labels"), inputs.pop("pair_labels")
    outputs, said = distributions_of(model, inputs, labels != IGNORED)
    tokens = said.cross_entropy(labels[labels != IGNORED])
    pairs = functional.cross_entropy(pair_logits(outputs).float(), pair_labels, reduction="sum", ignore_index=IGNORED)
    return torch.stack([tokens, pairs]), outputs


def pair_logits(outputs: Mapping[str, Tensor]) -> Tensor:
    """What a model with two heads says about its pairs (batch, 2); ALBERT has a name of its own for it."""
    return outputs["sop_logits" if "sop_logits" in outputs else "seq_relationship_logits"]


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
    model: nn.Module,
    inputs: dict[str, Tensor],
    *,
    smoothing: float = 0.0,
    weights: Tensor | None = None,
    head_alone: bool = False,
) -> tuple[Tensor, ModelOutput]:
    """Cross-entropy summed over the examples. logits (batch, classes), labels (batch,).

    With `head_alone` nobody but the head reads hidden states of the last layer.
    """
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    with text_alone(model, inputs) if head_alone else nullcontext():
        outputs = model(**inputs)
    return cross_entropy(outputs.logits, labels, smoothing, weights), outputs


def span_loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, ModelOutput]:
    """Cross-entropies of the first and the last token, summed over both and over the examples.

    logits (batch, length) each, labels (batch, 2). Padding takes no part, so that an example's loss does not depend
    on the others in its batch.
    """
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    logits = torch.stack([outputs.start_logits.float(), outputs.end_logits.float()], dim=1)  # (batch, 2, length)
    padding = inputs["attention_mask"] == 0
    return cross_entropy(logits.masked_fill(padding[:, None, :], torch.finfo(torch.float32).min), labels), outputs


def regression_loss(
    model: nn.Module, inputs: dict[str, Tensor], *, head_alone: bool = False
) -> tuple[Tensor, ModelOutput]:
    """Squared error summed over the examples that have a label. logits (batch, 1), labels (batch,)."""
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    with text_alone(model, inputs) if head_alone else nullcontext():
        outputs = model(**inputs)
    errors = (outputs.logits.float().squeeze(-1) - labels.float()) ** 2
    return errors.masked_fill(labels == IGNORED, 0.0).sum(), outputs


TRAINING, EVALUATION = "train", "eval"

Told = list[tuple[str, dict[str, Tensor]]]
"""What a meter was told: while training or evaluating, (sum, count) of each name (2,)."""


class Meter:
    """Means that a loss gives beside its sum: over the items since the last log, or over all while evaluating.

    Sums and counts by name stay on the device until they are asked for, and belong to every checkpoint.
    """

    def __init__(self) -> None:
        self.totals: dict[str, dict[str, Tensor]] = {TRAINING: {}, EVALUATION: {}}
        """(sum, count) of each name (2,)."""
        self._held: Told | None = None

    def add(self, training: bool, values: Mapping[str, Tensor], items: Tensor | None = None) -> None:
        """Take in values of any shape, one entry an item, or one where `items`, boolean and of the same shape, is true;
        `training`: whether the model learns from them. Nothing here waits for a GPU."""
        told = {}
        for name, value in values.items():
            exact = value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
            if items is None:
                told[name] = torch.stack([exact.sum(), exact.new_full((), exact.numel())])
            else:
                told[name] = torch.stack([torch.where(items, exact, 0.0).sum(), items.sum().to(exact)])
        self.take_in([(TRAINING if training else EVALUATION, told)])

    def take_in(self, told: Told) -> None:
        """Add what was told within `held`."""
        if self._held is not None:
            self._held.extend(told)
            return
        for which, sums in told:
            totals = self.totals[which]
            for name, both in sums.items():
                totals[name] = totals[name] + both if name in totals else both.clone()

    @contextmanager
    def held(self) -> Iterator[Told]:
        """Inside the `with` block what is told is kept apart, in a list of its own."""
        before, self._held = self._held, []
        try:
            yield self._held
        finally:
            self._held = before

    def take(self, training: bool, gather: Callable[[Any], list[Any]] = lambda value: [value]) -> dict[str, float]:
        """The means over the items of every process since they were last taken. Called on every process."""
        which = TRAINING if training else EVALUATION
        own, self.totals[which] = {name: both.tolist() for name, both in self.totals[which].items()}, {}
        total: dict[str, tuple[float, float]] = {}
        for process in gather(own):
            for name, (value, count) in process.items():
                sum_before, count_before = total.get(name, (0.0, 0.0))
                total[name] = (sum_before + value, count_before + count)
        return {name: value / count for name, (value, count) in total.items() if count}

    def state(self) -> dict[str, list[float]]:
        """What has gathered while training, as JSON."""
        return {name: both.tolist() for name, both in self.totals[TRAINING].items()}

    def restore(self, state: Mapping[str, list[float]], device: Any) -> None:
        """Take back what `state` gave."""
        kind = torch.float32 if torch.device(device).type == "mps" else torch.float64
        self.totals[TRAINING] = {name: torch.tensor(both, dtype=kind, device=device) for name, both in state.items()}

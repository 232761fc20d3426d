"""Losses as sums over items, so that the loop can divide by the items of the whole step.

A mean per micro-batch is wrong as soon as batches are accumulated or shared by processes and hold different numbers
of items. Every loss here returns the sum; the loop divides by the count over all micro-batches and processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
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
    if narrowing_is_exact(model, inputs, wanted):
        with only_positions(model, wanted):
            outputs = model(**inputs)
        logits = outputs.logits.reshape(-1, outputs.logits.shape[-1])  # (masked, vocab)
    else:
        outputs = model(**inputs)
        logits = outputs.logits[wanted]
    return functional.cross_entropy(logits.float(), labels[wanted], reduction="sum"), outputs


def narrowing_is_exact(model: nn.Module, inputs: dict[str, Tensor], wanted: Tensor) -> bool:
    """Whether the head of `model` says the same when it sees the `wanted` positions only; tried once, then remembered.

    True of heads that look at one position at a time, which is nearly all. Where it is not, all logits are computed.
    """
    bare = without_wrappers(model)
    known: bool | None = getattr(bare, "finery_narrowing_is_exact", None)
    if known is not None:
        return known
    rows = wanted.any(dim=1).nonzero().squeeze(1)[:2]
    if len(rows) == 0:
        return False
    some, chosen = {name: value[rows] for name, value in inputs.items()}, wanted[rows]
    modes = {module: module.training for module in bare.modules()}
    devices = [wanted.device] if wanted.is_cuda else []
    bare.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices):
            whole = bare(**some).logits[chosen].float()
            with only_positions(bare, chosen):
                narrow = bare(**some).logits.float()
        narrow = narrow.reshape(-1, narrow.shape[-1])
        # Lower precisions round differently in products of another size; a wrong head is wrong by whole logits.
        exact = narrow.shape == whole.shape and bool((narrow - whole).abs().max() <= 0.02 * whole.abs().max())
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        exact = False
    finally:
        for module, training in modes.items():
            module.training = training
    bare.finery_narrowing_is_exact = exact
    return exact


def without_wrappers(model: nn.Module) -> Any:
    """The transformers model inside DistributedDataParallel, torch.compile and PEFT."""
    bare: Any = model.module if hasattr(model, "module") else model
    bare = getattr(bare, "_orig_mod", bare)
    bare = bare.module if isinstance(bare, nn.parallel.DistributedDataParallel) else bare
    return bare.get_base_model() if hasattr(bare, "get_base_model") else bare


@contextmanager
def only_positions(model: nn.Module, wanted: Tensor) -> Iterator[None]:
    """Let the body of `model` hand only the `wanted` (batch, query) positions to its head, as (1, masked, dim)."""

    def narrow(module: nn.Module, arguments: Any, output: Any) -> Any:
        hidden = output[0][wanted].unsqueeze(0)
        if isinstance(output, tuple):
            return (hidden, *output[1:])
        output["last_hidden_state"] = hidden
        return output

    hook = without_wrappers(model).base_model.register_forward_hook(narrow)
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
    """Squared error summed over the examples that have a label. logits (batch, 1), labels (batch,)."""
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    errors = (outputs.logits.float().squeeze(-1) - labels.float()) ** 2
    return errors.masked_fill(labels == IGNORED, 0.0).sum(), outputs

"""Token prediction: cross-entropy summed over the positions that are asked for, whose head sees no other position.

A mean per micro-batch is wrong as soon as batches are accumulated or shared by processes and hold different numbers
of items. Every loss is a sum; the loop divides by the count over all micro-batches and processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORED = -100
"""The label of a position that is not asked for."""


def masked_token_loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """Cross-entropy summed over the positions that have a label; the head sees no other position.

    Devlin et al. 2019, section 3.1: only masked tokens are predicted, so logits over the vocabulary are computed for
    these alone: (masked, vocab) instead of (batch, query, vocab).
    """
    inputs = dict(inputs)
    labels = inputs.pop("labels")  # (batch, query)
    outputs, logits = logits_of(model, inputs, labels != IGNORED)
    return functional.cross_entropy(logits.float(), labels[labels != IGNORED], reduction="sum"), outputs


def pretraining_loss(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """Cross-entropy of the hidden tokens and of the pairs, each summed (2,). `pair_labels` (batch,)."""
    inputs = dict(inputs)
    labels, pair_labels = inputs.pop("labels"), inputs.pop("pair_labels")
    outputs, logits = logits_of(model, inputs, labels != IGNORED)
    tokens = functional.cross_entropy(logits.float(), labels[labels != IGNORED], reduction="sum")
    about = outputs["sop_logits" if "sop_logits" in outputs else "seq_relationship_logits"]
    pairs = functional.cross_entropy(about.float(), pair_labels, reduction="sum", ignore_index=IGNORED)
    return torch.stack([tokens, pairs]), outputs


def logits_of(model: nn.Module, inputs: dict[str, Tensor], wanted: Tensor) -> tuple[Any, Tensor]:
    """(what the model said, its logits over the vocabulary at the `wanted` positions, (masked, vocab))."""
    if narrowing_is_exact(model, inputs, wanted):
        with only_positions(model, wanted):
            outputs = model(**inputs)
        logits = token_logits(outputs)
        return outputs, logits.reshape(-1, logits.shape[-1])
    outputs = model(**inputs)
    return outputs, token_logits(outputs)[wanted]


def token_logits(outputs: Any) -> Tensor:
    """The logits over the vocabulary: `prediction_logits` where a second head decides about the pair."""
    logits: Tensor = outputs["prediction_logits" if "prediction_logits" in outputs else "logits"]
    return logits


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
    some, chosen = {name: value[rows] for name, value in inputs.items()}, wanted[rows].clone()
    if chosen.all():  # where every position is asked for, a head that was not narrowed has the same shape
        if chosen.numel() == 1:
            return False
        chosen.view(-1)[0] = False
    modes = {module: module.training for module in bare.modules()}
    devices = [wanted.device] if wanted.is_cuda else []
    bare.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices):
            whole = token_logits(bare(**some))[chosen].float()
            with only_positions(bare, chosen):
                narrow = token_logits(bare(**some)).float()
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

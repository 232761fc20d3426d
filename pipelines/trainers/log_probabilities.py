"""Log-probabilities of the tokens that a batch names, for decoders and encoder-decoders alike.

Labels stand at the place from which they are named, as every collator here puts them: `labels[:, t]` is the token that the
logits at `t` are about. The head therefore sees the named places alone, and logits over the vocabulary exist for these:
(named, vocab), never (rows, length, vocab).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipelines.objectives.losses import IGNORED, logits_of

MODEL_INPUTS = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
"""What of a batch the model is given, where it is there."""


class Named(NamedTuple):
    """What a model says about the tokens that a batch names. Other places hold 0."""

    log_probabilities: Tensor
    """In nats, fp32 (rows, length)."""
    mask: Tensor
    """Where a token is named (rows, length), boolean."""
    entropies: Tensor | None = None
    """Of the distribution that each token was named from, in nats (rows, length), without gradient."""


def token_log_probabilities(
    model: nn.Module, inputs: dict[str, Tensor], *, temperature: float = 1.0, with_entropy: bool = False
) -> Named:
    """log p(label | what comes before) of every label other than -100, in one pass.

    inputs: `input_ids` and `attention_mask` (rows, length), for encoder-decoders `decoder_input_ids` (rows, target) too, and
    `labels` of the shape of what the decoder reads. Other keys are left alone. `temperature` divides the logits, as
    sampling did.
    """
    labels = inputs["labels"]
    mask = labels != IGNORED
    _, logits = logits_of(model, {name: inputs[name] for name in MODEL_INPUTS if name in inputs}, mask)
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    said = log_probabilities_of(logits, labels[mask])
    entropies = spread(entropies_of(logits.detach()), mask) if with_entropy else None
    return Named(spread(said, mask), mask, entropies)


def log_probabilities_of(logits: Tensor, labels: Tensor) -> Tensor:
    """log softmax at the labels. logits (…, vocab), labels (…) -> (…), fp32."""
    flat = functional.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="none")
    return -flat.reshape(labels.shape)


def entropies_of(logits: Tensor) -> Tensor:
    """Entropy of the softmax in nats. logits (…, vocab) -> (…), fp32: log sum exp z - sum p z."""
    logits = logits.float()
    return torch.logsumexp(logits, dim=-1) - (logits.softmax(dim=-1) * logits).sum(dim=-1)


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """`values` (named,) at the places of `mask` (rows, length), 0 elsewhere."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def sums(named: Named) -> tuple[Tensor, Tensor]:
    """(log-probability of each row's tokens together (rows,), their number (rows,))."""
    return named.log_probabilities.sum(dim=1), named.mask.sum(dim=1)


def without_dropout(model: Any) -> Any:
    """`model` with every dropout set to nothing: what a step is compared with must not be drawn anew.

    Only the modules are changed, not the config that is saved with them.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and "drop" in name:
                setattr(module, name, 0.0)
    return model

"""Logits and log-probabilities of the tokens that a batch names, for encoders, decoders and encoder-decoders alike.

Labels stand at the position that predicts them, as every collator here puts them: `labels[:, t]` is the token that the
logits at `t` are about. The head sees these positions alone, so that logits over the vocabulary exist for these:
(named, vocab), never (rows, length, vocab). Devlin et al. 2019, section 3.1: only masked tokens are predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipelines.core.interfaces import IGNORED
from pipelines.data.completions import CompletionCollator, padding_token
from pipelines.models.sampling import decoder_start, filled

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput


def logits_of(model: nn.Module, inputs: dict[str, Tensor], wanted: Tensor) -> tuple[ModelOutput, Tensor]:
    """(the model's outputs, its logits over the vocabulary at the `wanted` positions, (masked, vocab))."""
    if narrowing_is_exact(model, inputs, wanted):
        with only_positions(model, wanted):
            outputs = model(**inputs)
        logits = token_logits(outputs)
        return outputs, logits.reshape(-1, logits.shape[-1])
    outputs = model(**inputs)
    return outputs, token_logits(outputs)[wanted]


def token_logits(outputs: ModelOutput) -> Tensor:
    """The logits over the vocabulary: `prediction_logits` where a second head decides about the pair."""
    logits: Tensor = outputs["prediction_logits" if "prediction_logits" in outputs else "logits"]
    return logits


def narrowing_is_exact(model: nn.Module, inputs: dict[str, Tensor], wanted: Tensor) -> bool:
    """Whether the head of `model` says the same when it sees the `wanted` positions only; tried once, then remembered.

    True of heads that look at one position at a time, which is nearly all. Where it is not, all logits are computed.
    """
    bare = without_wrappers(model)
    remembered: bool | None = getattr(bare, "finery_narrowing_is_exact", None)
    if remembered is not None:
        return remembered
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


def without_wrappers(model: nn.Module) -> PreTrainedModel:
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


MODEL_INPUTS = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
"""What of a batch the model is given, where it is there."""


class TokenLogProbabilities(NamedTuple):
    """What a model says about the tokens that a batch names. Other places hold 0."""

    log_probabilities: Tensor
    """In nats, fp32 (rows, length)."""
    mask: Tensor
    """Where a token is named (rows, length), boolean."""
    entropies: Tensor | None = None
    """Of the distribution that each token was named from, in nats (rows, length), without gradient."""


def token_log_probabilities(
    model: nn.Module, inputs: dict[str, Tensor], *, temperature: float = 1.0, with_entropy: bool = False
) -> TokenLogProbabilities:
    """log p(label | what comes before) of every label other than -100, in one pass.

    inputs: `input_ids` and `attention_mask` (rows, length), for encoder-decoders `decoder_input_ids` (rows, target)
    too, and `labels` of the shape of what the decoder reads. Other keys are left alone. `temperature` divides the
    logits, as sampling did.
    """
    labels = inputs["labels"]
    mask = labels != IGNORED
    _, logits = logits_of(model, {name: inputs[name] for name in MODEL_INPUTS if name in inputs}, mask)
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    named = log_probabilities_of(logits, labels[mask])
    entropies = spread(entropies_of(logits.detach()), mask) if with_entropy else None
    return TokenLogProbabilities(spread(named, mask), mask, entropies)


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


def sums(named: TokenLogProbabilities) -> tuple[Tensor, Tensor]:
    """(log-probability of each row's tokens together (rows,), their number (rows,))."""
    return named.log_probabilities.sum(dim=1), named.mask.sum(dim=1)


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
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


def completion_log_probabilities(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    temperature: float = 1.0,
) -> list[list[float]]:
    """log p of every token of every completion behind its prompt, in nats, for one batch of token ids.

    A decoder reads both as one row, an encoder-decoder the prompt as its source. `temperature` divides the logits, as
    it did when the completions were sampled. The model stays where it is and computes as it is set to.
    """
    pad = padding_token(tokenizer)
    if model.config.is_encoder_decoder:
        sources, real = filled(prompts, pad)
        targets, written = filled(completions, pad)
        start = torch.full((len(targets), 1), decoder_start(model, tokenizer), dtype=torch.int64)
        inputs = {
            "input_ids": sources,
            "attention_mask": real,
            "decoder_input_ids": torch.cat([start, targets[:, :-1]], dim=1),
            "labels": targets.masked_fill(written == 0, IGNORED),
        }
    else:
        rows = [
            {"input_ids": [*prompt, *completion], "labels": [*[IGNORED] * len(prompt), *completion]}
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        inputs = CompletionCollator(pad)(rows)
    with torch.no_grad():
        named = token_log_probabilities(
            model, {name: value.to(model.device) for name, value in inputs.items()}, temperature=temperature
        )
    return [row[mask].tolist() for row, mask in zip(named.log_probabilities.cpu(), named.mask.cpu(), strict=True)]

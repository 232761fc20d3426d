"""Logits and log-probabilities of the tokens that a batch names, for encoders, decoders and encoder-decoders alike.

Labels stand at the position that predicts them, as every collator here puts them: `labels[:, t]` is the token that the
logits at `t` are about. The head sees these positions alone, so that logits over the vocabulary exist for these:
(named, vocab), never (rows, length, vocab). Devlin et al. 2019, section 3.1: only masked tokens are predicted. Where
they would be many, losses and log-probabilities are computed from what the output matrix reads, chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipelines.core.costs import LOGITS_KEPT
from pipelines.core.interfaces import IGNORED
from pipelines.data.completions import CompletionCollator, padding_token
from pipelines.data.ragged import padded_tensors
from pipelines.models.checkpoint import start_token
from pipelines.models.layer_compilation import is_compiled
from pipelines.models.linear_cross_entropy import (
    log_probabilities_and_entropies,
    logits_by_chunk,
    summed_cross_entropy,
    typed,
)
from pipelines.models.read_places import only_positions, tried, without_wrappers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput


def logits_of(
    model: nn.Module, inputs: dict[str, Tensor], wanted: Tensor, cut: bool = True
) -> tuple[ModelOutput, Tensor]:
    """(the model's outputs, its logits over the vocabulary at the `wanted` positions, (masked, vocab)).

    Without `cut` the last layer runs for all positions, which costs a narrow model no more.
    """
    if narrowing_is_exact(model, inputs, wanted):
        with only_positions(model, wanted, inputs if cut else None):
            outputs = model(**inputs)
        logits = token_logits(outputs)
        return outputs, logits.reshape(-1, logits.shape[-1])
    outputs = model(**inputs)
    return outputs, token_logits(outputs)[wanted]


@dataclass(frozen=True)
class TokenDistributions:
    """What a model says about the wanted places, row after row: their logits, or what these are computed from."""

    states: Tensor
    """Logits (wanted, vocab); with a `weight`, what it is multiplied with (wanted, dim)."""
    weight: Tensor | None = None
    """The output matrix (vocab, dim)."""
    bias: Tensor | None = None
    """Of the output matrix (vocab,)."""
    dtype: torch.dtype = torch.float32
    """What the product is computed in."""

    @classmethod
    def of(cls, states: Tensor, weight: Tensor, bias: Tensor | None) -> TokenDistributions:
        """Of states (wanted, dim) and an output matrix: as logits where these are few."""
        if len(states) * len(weight) <= LOGITS_KEPT:
            return cls(functional.linear(states, weight, bias))
        return cls(states, weight, bias, computed_in(states))

    def cross_entropy(self, labels: Tensor, smoothing: float = 0.0, right: Tensor | None = None) -> Tensor:
        """Summed over the labels (wanted,), in nats and fp32 (). `smoothing` as in
        `objectives.losses.cross_entropy`, `right` (wanted,) as in `summed_cross_entropy`."""
        if self.weight is None:
            if right is not None:
                logits = self.states.detach()
                right[:] = logits.gather(1, labels[:, None])[:, 0] >= logits.amax(-1)
            return functional.cross_entropy(self.states.float(), labels, reduction="sum", label_smoothing=smoothing)
        return summed_cross_entropy(self.states, self.weight, self.bias, labels, self.dtype, smoothing, right)

    def log_probabilities(
        self, labels: Tensor, temperature: float = 1.0, *, with_entropies: bool = False, learns_entropies: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """(log p of the labels (wanted,), the distributions' entropies (wanted,) if asked for), in nats and fp32.

        `temperature` divides the logits. Entropies have a gradient only with `learns_entropies`: it costs time.
        """
        if self.weight is not None:
            named, entropies = log_probabilities_and_entropies(
                self.states,
                self.weight,
                self.bias,
                labels,
                self.dtype,
                1 / temperature,
                with_entropies or learns_entropies,
            )
            return named, entropies if entropies is None or learns_entropies else entropies.detach()
        logits = self.states.float()
        if temperature != 1.0:
            logits = logits / temperature
        named = log_probabilities_of(logits, labels)
        if not (with_entropies or learns_entropies):
            return named, None
        with torch.set_grad_enabled(learns_entropies and torch.is_grad_enabled()):
            return named, entropies_of(logits if learns_entropies else logits.detach())

    def in_chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """(which places, their logits (some, vocab) in fp32), without gradient and never many at once."""
        if self.weight is None:
            yield slice(0, len(self.states)), self.states.detach().float()
            return
        for part, logits in logits_by_chunk(*typed(self.states, self.weight, self.bias, self.dtype)):
            yield part, logits[:, : len(self.weight)].float()


def computed_in(states: Tensor) -> torch.dtype:
    """The type of a product of `states` with a matrix, here and now."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


def distributions_of(
    model: nn.Module, inputs: dict[str, Tensor], wanted: Tensor, everywhere: bool = False
) -> tuple[ModelOutput, TokenDistributions]:
    """(the model's outputs, what it says at the `wanted` positions, or `everywhere`, one row after another). Where
    logits would be many they are not computed: those of the outputs then have a vocabulary of none."""
    output = output_layer(model)
    asked = wanted.numel() if everywhere else int(wanted.sum())
    if output is None or asked * output.out_features <= LOGITS_KEPT or not output_is_last(model, inputs, wanted):
        if everywhere:
            outputs = model(**inputs)
            return outputs, TokenDistributions(token_logits(outputs).flatten(0, 1))
        outputs, logits = logits_of(model, inputs, wanted)
        return outputs, TokenDistributions(logits)
    narrows = not everywhere and narrowing_is_exact(model, inputs, wanted)
    with only_positions(model, wanted, inputs) if narrows else nullcontext(), silent(model) as read:
        outputs = model(**inputs)
    ((states, dtype),) = read
    states = states.reshape(-1, states.shape[-1]) if narrows or everywhere else states[wanted]
    return outputs, TokenDistributions(states, output.weight, output.bias, dtype)


_EVERYWHERE = ContextVar("everywhere", default=False)


@contextmanager
def asked_everywhere() -> Iterator[None]:
    """Inside the `with` block `token_log_probabilities` asks every place of a batch, named or not: which places are
    named is known on the GPU alone, and a step that is to be recorded must not wait for it."""
    before = _EVERYWHERE.set(True)
    try:
        yield
    finally:
        _EVERYWHERE.reset(before)


def output_layer(model: nn.Module) -> nn.Linear | None:
    """The layer that makes logits over the vocabulary, if it is an ordinary one."""
    try:
        output = without_wrappers(model).get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return output if type(output) is nn.Linear else None


BIAS_BEHIND = "final_logits_bias"
"""What BART and its kin add to logits (1, vocab): nothing, in most checkpoints."""


@contextmanager
def silent(model: nn.Module) -> Iterator[list[tuple[Tensor, torch.dtype]]]:
    """A list of what the output layer of `model` reads, and the type that it computes in, while it says nothing about
    any word.

    That nothing depends on its weights all the same: processes that share gradients look for what a pass used.
    """
    bare, output = without_wrappers(model), output_layer(model)
    assert output is not None
    zeros: Tensor | None = getattr(bare, BIAS_BEHIND, None)
    read: list[tuple[Tensor, torch.dtype]] = []

    def forward(states: Tensor) -> Tensor:
        read.append((states, computed_in(states)))
        bias = None if output.bias is None else output.bias[:0]
        return functional.linear(states, output.weight[:0], bias)

    with answering(output, forward):
        try:
            if zeros is not None:
                setattr(bare, BIAS_BEHIND, zeros[:, :0])
            yield read
        finally:
            if zeros is not None:
                setattr(bare, BIAS_BEHIND, zeros)


@contextmanager
def answering(output: nn.Linear, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """`forward` in place of the layer's own."""
    output.forward = forward
    try:
        yield
    finally:
        del output.forward


def output_is_last(model: nn.Module, inputs: dict[str, Tensor], wanted: Tensor) -> bool:
    """Whether the logits of `model` are what its output layer says and nothing is done to them; tried once, then
    remembered.

    Not so where logits are scaled, bounded or biased afterwards, where the layer is adapted, compiled or spread over
    devices, or where it is asked more than once.
    """
    bare = without_wrappers(model)
    remembered: bool | None = getattr(bare, "finery_output_is_last", None)
    if remembered is not None:
        return remembered
    output = output_layer(model)
    plain = (
        output is not None
        and type(output.weight) is nn.Parameter
        and not hasattr(output.weight, "ds_id")
        and "forward" not in vars(output)
        and not output._forward_hooks
        and not output._forward_pre_hooks
        and not is_compiled(model)
    )
    bare.finery_output_is_last = plain and _says_what_its_output_says(bare, inputs, wanted)
    return bool(bare.finery_output_is_last)


def _says_what_its_output_says(bare: PreTrainedModel, inputs: dict[str, Tensor], wanted: Tensor) -> bool:
    """Numbers that no model would say come out as they went in, and so does nothing at all."""
    output = output_layer(bare)
    assert output is not None
    rows = wanted.any(dim=1).nonzero().squeeze(1)[:2]
    some = {name: value[rows] for name, value in inputs.items()}
    said: list[Tensor] = []

    def odd(states: Tensor) -> Tensor:
        shape = (*states.shape[:-1], output.out_features)
        numbers = torch.linspace(-1e3, 1e3, math.prod(shape), device=states.device)
        said.append(numbers.reshape(shape).to(states.dtype))
        return said[-1]

    with tried(bare, wanted.device):
        try:
            with answering(output, odd):
                heard = token_logits(bare(**some))
            with silent(bare) as read:
                nothing = token_logits(bare(**some))
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
            return False
    return len(said) == len(read) == 1 and torch.equal(heard.float(), said[0].float()) and nothing.shape[-1] == 0


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
    try:
        with tried(bare, wanted.device):
            whole = token_logits(bare(**some))[chosen].float()
            with only_positions(bare, chosen):
                narrow = token_logits(bare(**some)).float()
        narrow = narrow.reshape(-1, narrow.shape[-1])
        # Lower precisions round differently in products of another size; a wrong head is wrong by whole logits.
        exact = narrow.shape == whole.shape and bool((narrow - whole).abs().max() <= 0.02 * whole.abs().max())
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        exact = False
    bare.finery_narrowing_is_exact = exact
    return exact


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
    labels, everywhere = inputs["labels"], _EVERYWHERE.get()
    mask = labels != IGNORED
    read = {name: inputs[name] for name in MODEL_INPUTS if name in inputs}
    _, said = distributions_of(model, read, mask, everywhere)
    asked = labels.clamp(min=0).flatten() if everywhere else labels[mask]
    named, entropies = said.log_probabilities(asked, temperature, with_entropies=with_entropy)
    place = without_others if everywhere else spread
    return TokenLogProbabilities(place(named, mask), mask, None if entropies is None else place(entropies, mask))


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


def without_others(values: Tensor, mask: Tensor) -> Tensor:
    """`values` of all places (rows * length,) where `mask` (rows, length) is true, 0 elsewhere."""
    return torch.where(mask, values.view(mask.shape), 0.0)


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
        sources, real = padded_tensors(prompts, pad)
        targets, written = padded_tensors(completions, pad)
        start = torch.full((len(targets), 1), start_token(model, tokenizer), dtype=torch.int64)
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

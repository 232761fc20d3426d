"""Cross-entropy over a vocabulary from what the output matrix reads, without all logits at once.

Logits of many tokens over a large vocabulary, their float32 copy, the softmax and its gradient are often most of the
memory of a training step. Here a chunk of tokens has logits at a time, in the type that the product of matrices is
computed in; the softmax is taken in float32, a few rows at a time, and the gradient of the logits replaces them in
their place. Wijmans et al. 2025, "Cut Your Losses in Large-Vocabulary Language Models", section 4,
arxiv.org/abs/2411.09009, and Hsu et al. 2024, "Liger Kernel", section 3.2, arxiv.org/abs/2410.10989.

On a GPU the softmax is that of `vocabulary_kernels`, and the vocabulary is filled up with words of zeros: what is
50,257 wide is multiplied several times slower there than what is 50,304 wide.

`torch.nn.functional.linear_cross_entropy` has the same plan, but no label smoothing, no entropies, and in bfloat16 a
loss that is itself rounded to bfloat16: docs/experiments.md has the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from pipelines.core.costs import SCORES_OF_A_SOFTMAX, tokens_at_once

if TYPE_CHECKING:
    from types import ModuleType

EMULATED = 2**22
"""Numbers of a bfloat16 product that are computed together by a processor that multiplies no bfloat16: oneDNN sums them
in float32 beside the product, and all at once they would take twice its memory."""
WHOLE_WORDS = 64
"""A GPU multiplies in pieces of so many columns; the words of a vocabulary are filled up to whole ones."""
FUSED = (torch.float32, torch.bfloat16, torch.float16)
"""Logits that `vocabulary_kernels` read."""
NATIVE_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
"""What torch calls it where a processor of x86 or ARM multiplies bfloat16 itself."""


def summed_cross_entropy(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    dtype: torch.dtype,
    smoothing: float = 0.0,
    right: Tensor | None = None,
) -> Tensor:
    """Cross-entropy in nats summed over the tokens (), float32: of logits that are `states` times `weight`, plus
    `bias`.

    states (tokens, dim), weight (vocab, dim), bias (vocab,), labels (tokens,), none of them ignored. The products are
    computed in `dtype`, as autocast would. With `smoothing` ε the target is 1 - ε of the label and ε / vocab of every
    word. Gradients are computed along with the loss, for the sum is what they are of; a second pass backwards through
    one loss is refused. `right` (tokens,), where given, is filled with whether no word is likelier than the label.
    """
    loss: Tensor = _SummedCrossEntropy.apply(states, weight, bias, labels, dtype, smoothing, right)
    return loss


def log_probabilities_and_entropies(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    dtype: torch.dtype,
    scale: float = 1.0,
    with_entropies: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """log p(label) of every token and the entropy of its distribution, in nats, both (tokens,), float32.

    As `summed_cross_entropy`, with logits multiplied by `scale`. What each token's numbers weigh is known only on the
    way back, where the logits are computed a second time.
    """
    both: tuple[Tensor, Tensor | None] = _TokenLogProbabilities.apply(
        states, weight, bias, labels, dtype, scale, with_entropies
    )
    return both


Inputs = tuple[Tensor, Tensor, Tensor | None]
"""States, output matrix and bias."""


def typed(states: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Inputs:
    """All of one type, as autocast would; on a GPU with a vocabulary of whole `WHOLE_WORDS`, by words of zeros."""
    lacking = -len(weight) % WHOLE_WORDS if fills_up(weight) else 0
    states, weight, bias = states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if not lacking:
        return states, weight, bias
    wider = None if bias is None else torch.cat([bias, bias.new_zeros(lacking)])
    return states, torch.cat([weight, weight.new_zeros(lacking, weight.shape[1])]), wider


def fills_up(weight: Tensor) -> bool:
    """Whether products with this matrix gain by words of zeros."""
    return bool(weight.is_cuda)


def logits_by_chunk(states: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """(which tokens, their logits (some, vocab)), without gradients; of what is `typed`, words of zeros and all. The
    next chunk overwrites the last."""
    rows = tokens_at_once(len(weight), on_cpu=not weight.is_cuda)
    buffer = states.new_empty(min(rows, len(states)), len(weight))
    for start in range(0, len(states), rows):
        part = slice(start, min(start + rows, len(states)))
        some, logits = states[part], buffer[: part.stop - start]
        with torch.no_grad(), torch.autocast(states.device.type, enabled=False):
            for few in _products(logits):
                if bias is None:
                    torch.mm(some[few], weight.t(), out=logits[few])
                else:
                    torch.addmm(bias, some[few], weight.t(), out=logits[few])
        yield part, logits


@cache
def _kernels(device: torch.device) -> ModuleType | None:
    """`vocabulary_kernels` where they run: on a GPU, with Triton and the compiler that it needs."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    from pipelines.models import vocabulary_kernels

    return vocabulary_kernels if vocabulary_kernels.run_on(device) else None


def _kernels_for(logits: Tensor) -> ModuleType | None:
    return _kernels(logits.device) if logits.dtype in FUSED else None


def _products(like: Tensor, width: int | None = None) -> Iterator[slice]:
    """Which rows of `like` times a matrix of `width` columns, default its own, to compute together. The sums that a row
    is made of, and so its bits, do not depend on it."""
    rows = max(1, len(like))
    if like.device.type == "cpu" and like.dtype == torch.bfloat16:
        able = torch.cpu.get_capabilities()
        if not any(able.get(each) for each in NATIVE_BFLOAT16):
            rows = max(1, EMULATED // (width or like.shape[1]))
    return (slice(start, start + rows) for start in range(0, len(like), rows))


def _blocks(part: slice, logits: Tensor, words: int) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a chunk that a softmax takes together, for the words that there are; all of them where there are many
    threads."""
    rows = max(1, SCORES_OF_A_SOFTMAX // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    for start in range(0, len(logits), rows):
        block = logits[start : start + rows, :words]
        yield slice(part.start + start, part.start + start + len(block)), block


class _Gradients:
    """Gradients of states, output matrix and bias, where they are wanted, out of those of the logits."""

    def __init__(self, inputs: Inputs, typed: Inputs, wanted: tuple[bool, ...]) -> None:
        (states, weight, bias), (self.states, self.weight, _) = inputs, typed
        sums = torch.promote_types(self.states.dtype, torch.float32)
        self.of_states = torch.empty_like(self.states) if wanted[0] else None
        self.of_weight = torch.zeros_like(weight, dtype=sums) if wanted[1] else None
        self.of_bias = torch.zeros_like(bias, dtype=sums) if bias is not None and wanted[2] else None
        self.types = states.dtype, weight.dtype, None if bias is None else bias.dtype

    def add(self, part: slice, logits: Tensor) -> None:
        """The gradient of a chunk's logits (some, vocab)."""
        with torch.autocast(logits.device.type, enabled=False):
            if self.of_states is not None:
                torch.mm(logits, self.weight, out=self.of_states[part])
            words = logits.t()  # with those of zeros, which nothing is learnt about
            if self.of_weight is not None and self.of_weight.dtype == logits.dtype:
                self.of_weight.addmm_(words[: len(self.of_weight)], self.states[part])
            elif self.of_weight is not None:
                for few in _products(words, self.states.shape[1]):
                    learnt = self.of_weight[few]
                    learnt += (words[few] @ self.states[part])[: len(learnt)]
        if self.of_bias is not None:
            self.of_bias += logits.sum(0, dtype=self.of_bias.dtype)[: len(self.of_bias)]

    def together(self) -> list[Tensor | None]:
        """In the types of what they are for."""
        sums = (self.of_states, self.of_weight, self.of_bias)
        return [None if each is None else each.to(kind) for each, kind in zip(sums, self.types, strict=True)]


class _SummedCrossEntropy(Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        dtype: torch.dtype,
        smoothing: float,
        right: Tensor | None,
    ) -> Tensor:
        read, words = typed(states, weight, bias, dtype), len(weight)
        learns = any(ctx.needs_input_grad)
        gradients = _Gradients((states, weight, bias), read, ctx.needs_input_grad) if learns else None
        loss = torch.zeros((), dtype=torch.promote_types(dtype, torch.float32), device=states.device)
        for part, logits in logits_by_chunk(*read):
            kernels = _kernels_for(logits)
            for rows, block in _blocks(part, logits, words):
                label = labels[rows, None]
                if kernels is not None:
                    of = kernels.describe(block, labels[rows])
                    loss += (of.normalizer - (1 - smoothing) * of.named - smoothing * of.mean).sum()
                    if right is not None:
                        right[rows] = of.named >= of.largest
                    if learns:
                        kernels.replace(block, labels[rows], of.normalizer, smoothing - 1, 1.0, 0.0, -smoothing / words)
                    continue
                exact = block.to(loss.dtype)
                chances, largest, named = exact.softmax(-1), exact.amax(-1), exact.gather(1, label)[:, 0]
                normalizer = largest - chances.amax(-1).log()  # the likeliest word has exp(largest - normalizer)
                loss += (normalizer - (1 - smoothing) * named).sum()
                if right is not None:
                    right[rows] = named >= largest
                if smoothing:
                    loss -= smoothing * exact.mean(-1).sum()
                if learns:
                    if smoothing:
                        chances -= smoothing / chances.shape[1]
                    block.copy_(chances.scatter_add_(1, label, chances.new_full(label.shape, smoothing - 1)))
            if gradients is not None:
                gradients.add(part, logits)
        ctx.gradients = None if gradients is None else gradients.together()
        return loss

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("a vocabulary loss has given its gradients away: compute it again for a second backward")
        return (*(None if each is None else each.mul_(upstream) for each in gradients), *[None] * 4)


class _TokenLogProbabilities(Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        dtype: torch.dtype,
        scale: float,
        with_entropies: bool,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(states, weight, bias, labels)
        ctx.dtype, ctx.scale = dtype, scale
        ctx.set_materialize_grads(False)
        named = torch.empty(len(states), dtype=torch.promote_types(dtype, torch.float32), device=states.device)
        entropies = torch.empty_like(named) if with_entropies else None
        for part, logits in logits_by_chunk(*typed(states, weight, bias, dtype)):
            kernels = _kernels_for(logits)
            for rows, block in _blocks(part, logits, len(weight)):
                if kernels is not None:
                    of = kernels.describe(block, labels[rows], scale)
                    named[rows] = of.named - of.normalizer
                    if entropies is not None:
                        entropies[rows] = of.normalizer - of.expected
                    continue
                chances = block.to(named.dtype).mul_(scale).log_softmax(-1)
                named[rows] = chances.gather(1, labels[rows, None])[:, 0]
                if entropies is not None:
                    entropies[rows] = -(chances.exp() * chances).sum(-1)
        return named, entropies

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, of_named: Tensor | None, of_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        states, weight, bias, labels = ctx.saved_tensors
        read = typed(states, weight, bias, ctx.dtype)
        gradients = _Gradients((states, weight, bias), read, ctx.needs_input_grad)
        for part, logits in logits_by_chunk(*read):
            kernels = _kernels_for(logits)
            for rows, block in _blocks(part, logits, len(weight)):
                if kernels is not None:
                    of = kernels.describe(block, labels[rows], ctx.scale)
                    least = torch.zeros_like(of.normalizer)
                    upstream = least if of_named is None else of_named[rows] * ctx.scale
                    spread = least if of_entropies is None else of_entropies[rows] * ctx.scale
                    linear = -upstream - spread * (of.normalizer - of.expected)
                    kernels.replace(block, labels[rows], of.normalizer, upstream, linear, -spread, 0.0, ctx.scale)
                    continue
                exact = block.to(torch.promote_types(ctx.dtype, torch.float32)).mul_(ctx.scale)
                likely = exact.softmax(-1)
                total = torch.zeros_like(likely) if of_named is None else likely * (-ctx.scale * of_named[rows, None])
                if of_named is not None:  # 1 at the label, less the probabilities
                    total.scatter_add_(1, labels[rows, None], ctx.scale * of_named[rows, None])
                if of_entropies is not None:  # -p (log p + H)
                    chances = exact.log_softmax(-1)
                    entropy = -(likely * chances).sum(-1, keepdim=True)
                    total.sub_(likely * (chances + entropy) * of_entropies[rows, None] * ctx.scale)
                block.copy_(total)
            gradients.add(part, logits)
        return (*gradients.together(), None, None, None, None)

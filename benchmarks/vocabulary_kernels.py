"""A vocabulary's loss with its gradients on a GPU: Finery's chunks beside all logits at once and beside Liger's kernel.

States and an output matrix of random numbers in float32, products in bfloat16 as autocast computes them; the sum of the
cross-entropy and the gradients of both. Each way is compared first with float32 products of the same bfloat16 numbers,
made chunk by chunk: the difference of the loss and the norms of the gradients' differences are printed. Then come the
median of the rounds by the GPU's own clock and the most that torch held beside what is given. The ways that a line
begins with `ours,` show what a part of it is worth.

    python benchmarks/vocabulary_kernels.py [--tokens 32768] [--width 768] [--words 50257] [--rounds 8]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from rows import Row, report
from torch import Tensor
from torch.nn import functional

from pipelines.models import linear_cross_entropy

Way = Callable[[Tensor, Tensor, Tensor], Tensor]
HALF = torch.bfloat16


class Taken(NamedTuple):
    """What a way took."""

    milliseconds: float
    peak: int
    away: tuple[float, float, float]
    """How far loss, gradient of states and gradient of the matrix are from the exact ones, relatively."""


def all_logits(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = states.to(HALF) @ weight.to(HALF).t()
    return functional.cross_entropy(logits.float(), labels, reduction="sum")


def chunks(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return linear_cross_entropy.summed_cross_entropy(states, weight, None, labels, HALF)


@contextmanager
def instead(name: str, value: Any) -> Iterator[None]:
    """Inside the `with` block `linear_cross_entropy` has another value."""
    own = getattr(linear_cross_entropy, name)
    setattr(linear_cross_entropy, name, value)
    try:
        yield
    finally:
        setattr(linear_cross_entropy, name, own)


def chunks_with(name: str, value: Any) -> Way:
    def way(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        with instead(name, value):
            return chunks(states, weight, labels)

    return way


def _within(logits: int, vocab: int, on_cpu: bool) -> int:
    return logits // vocab


def ways() -> dict[str, Way]:
    """All that can be tried here."""
    found: dict[str, Way] = {
        "all logits": all_logits,
        "ours": chunks,
        "ours, torch's softmax": chunks_with("_kernels_for", lambda logits: None),
        "ours, no words of zeros": chunks_with("fills_up", lambda weight: False),
        **{f"ours, 2^{bits} logits": chunks_with("tokens_at_once", partial(_within, 2**bits)) for bits in (25, 26, 28)},
    }
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Liger
    except ImportError:
        print("liger-kernel is not installed", file=sys.stderr)
        return found

    def liger(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        said = Liger.apply(states.to(HALF), weight.to(HALF), labels, None, None, -100, 0.0, 0.0, "sum")
        loss: Tensor = said[0] if isinstance(said, tuple) else said
        return loss

    return found | {"liger": liger, "all logits, compiled": torch.compile(all_logits, dynamic=False)}


def exact(states: Tensor, weight: Tensor, labels: Tensor) -> tuple[float, Tensor, Tensor]:
    """The loss and both gradients, from float32 products of the bfloat16 numbers."""
    rounded, matrix = states.to(HALF).float(), weight.to(HALF).float()
    loss, of_states, of_weight = 0.0, torch.empty_like(states), torch.zeros_like(weight)
    for start in range(0, len(states), 2048):
        part = slice(start, start + 2048)
        chances, label = (rounded[part] @ matrix.t()).log_softmax(-1), labels[part, None]
        loss -= chances.gather(1, label).double().sum().item()
        chances.exp_().scatter_add_(1, label, chances.new_full(label.shape, -1.0))
        of_states[part] = chances @ matrix
        of_weight += chances.t() @ rounded[part]
    return loss, of_states, of_weight


def measured(way: Way, given: list[Tensor], wanted: tuple[float, Tensor, Tensor], rounds: int) -> Taken:
    states, weight = (each.clone().requires_grad_() for each in given[:2])
    loss = way(states, weight, given[2])
    loss.backward()
    pairs = ((states.grad, wanted[1]), (weight.grad, wanted[2]))
    away = [((found - right).norm() / right.norm()).item() for found, right in pairs]
    times, before = [], 0
    for number in range(rounds + 2):
        states.grad = weight.grad = None
        if number == 2:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        way(states, weight, given[2]).backward()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    peak = torch.cuda.max_memory_allocated() - before
    return Taken(statistics.median(times[2:]), peak, (abs(loss.item() / wanted[0] - 1), *away))


def main() -> int:
    """Print every way, and report ours beside all logits and beside Liger's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--words", type=int, default=50_257)
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/vocabulary_kernels.py measures a GPU, and torch finds none here", file=sys.stderr)
        return 69  # EX_UNAVAILABLE of sysexits.h
    generator = torch.Generator("cuda").manual_seed(0)
    given = [
        torch.randn(asked.tokens, asked.width, generator=generator, device="cuda"),
        torch.randn(asked.words, asked.width, generator=generator, device="cuda") * 0.02,
        torch.randint(0, asked.words, (asked.tokens,), generator=generator, device="cuda"),
    ]
    wanted = exact(*given)
    taken = {name: measured(way, given, wanted, asked.rounds) for name, way in ways().items()}
    for name, each in taken.items():
        loss, states, weight = each.away
        print(
            f"{name:24} {each.milliseconds:8.2f} ms {each.peak / 2**20:8.0f} MiB  off by: loss {loss:.1e}, "
            f"states {states:.1e}, matrix {weight:.1e}"
        )
    work = f"vocabulary loss with gradients, {asked.tokens:,} tokens of {asked.width}, {asked.words:,} words"
    own = taken["ours"]
    for peer in ("all logits", "liger"):
        if peer in taken:
            far = max((*own.away, *taken[peer].away))
            same = f"loss and gradients of exact products to {far:.1e}"
            report(Row(work, peer, taken[peer].milliseconds, own.milliseconds, "ms", same))
            sizes = taken[peer].peak / 2**20, own.peak / 2**20
            report(Row(f"{work}: memory", peer, *sizes, "MiB at most", same))
    return 0


if __name__ == "__main__":
    sys.exit(main())

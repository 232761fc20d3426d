"""What a GPU's step of a small model waits for: the same steps launched kernel by kernel, and as recorded CUDA graphs.

A BERT of MiniLM's shape with random weights learns random rows of several padded lengths, batch 32, bf16 autocast,
fused AdamW, gradients clipped. `fwd+bwd` replays a graph of the forward and backward pass that was recorded once for each
length, and calls norm and optimizer as usual; `whole` records those too. Losses of 30 steps without dropout are compared
with those launched one by one. This is no part of Finery yet: it says what would be won.

    python benchmarks/cuda_graphs.py [--steps 200]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rows import Row, report
from torch import Tensor

LENGTHS, BATCH, VOCABULARY, RATE = (8, 16, 24, 32, 48), 32, 30_522, 1e-4
SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
Step = Callable[[dict[str, Tensor]], Tensor]


def model(dropout: float) -> Any:
    """The same weights at every call."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    words = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return BertForSequenceClassification(BertConfig(**SHAPE, **words, vocab_size=VOCABULARY)).cuda().train()


def batch(number: int) -> dict[str, Tensor]:
    """The n-th batch, in pinned memory."""
    length, generator = LENGTHS[number % len(LENGTHS)], torch.Generator().manual_seed(number)
    real = torch.randint(length // 2, length + 1, (BATCH,), generator=generator)
    real[0] = length
    made = {
        "input_ids": torch.randint(1000, VOCABULARY, (BATCH, length), generator=generator),
        "attention_mask": (torch.arange(length)[None] < real[:, None]).long(),
        "labels": torch.randint(0, 2, (BATCH,), generator=generator),
    }
    return {name: each.pin_memory() for name, each in made.items()}


def adamw(learner: Any, recorded: bool = False) -> torch.optim.AdamW:
    rate = torch.tensor(RATE, device="cuda") if recorded else RATE
    return torch.optim.AdamW(learner.parameters(), lr=rate, weight_decay=0.01, fused=True, capturable=recorded)


def passes(learner: Any, given: dict[str, Tensor]) -> Tensor:
    """Forward and backward; the loss."""
    with torch.autocast("cuda", torch.bfloat16):
        loss: Tensor = learner(**given).loss
    loss.backward()
    return loss.detach()


def moved(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: each.cuda(non_blocking=True) for name, each in given.items()}


def beside(work: Callable[[], Any]) -> None:
    """Work on a stream of its own, which recording asks of what goes before it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)


class Recorded:
    """A graph for each length, all in one pool of memory. `learner`'s gradients stay where they are."""

    def __init__(self, learner: Any, after: Callable[[], None] | None = None) -> None:
        self.learner = learner
        self.after = after
        """Recorded behind the two passes."""
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, dict[str, Tensor], Tensor]] = {}
        self.pool: Any = None

    def __call__(self, given: dict[str, Tensor]) -> Tensor:
        length = given["input_ids"].shape[1]
        if length not in self.graphs:
            self._record(length, moved(given))
        graph, places, loss = self.graphs[length]
        for name, each in given.items():
            places[name].copy_(each, non_blocking=True)
        graph.replay()
        return loss

    def _record(self, length: int, places: dict[str, Tensor]) -> None:
        gradients = [each.grad for each in self.learner.parameters()]
        kept = [each.clone() for each in gradients]
        beside(lambda: passes(self.learner, places))
        torch._foreach_copy_(gradients, kept)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            loss = passes(self.learner, places)
            if self.after is not None:
                self.after()
        self.pool = self.pool or graph.pool()
        self.graphs[length] = graph, places, loss


def one_by_one(dropout: float) -> Step:
    learner = model(dropout)
    optimizer = adamw(learner)

    def step(given: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = passes(learner, moved(given))
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def with_gradients(dropout: float) -> tuple[Any, list[Tensor]]:
    """(a model, its gradients, which are there and zero)"""
    learner = model(dropout)
    for each in learner.parameters():
        each.grad = torch.zeros_like(each)
    return learner, [each.grad for each in learner.parameters()]


def passes_recorded(dropout: float) -> Step:
    learner, gradients = with_gradients(dropout)
    optimizer, recorded = adamw(learner), Recorded(learner)

    def step(given: dict[str, Tensor]) -> Tensor:
        torch._foreach_zero_(gradients)
        loss = recorded(given)
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def whole_recorded(dropout: float) -> Step:
    learner, gradients = with_gradients(dropout)
    optimizer = adamw(learner, recorded=True)

    def after() -> None:
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0, foreach=True)
        optimizer.step()
        torch._foreach_zero_(gradients)

    beside(optimizer.step)  # its state must be there
    return Recorded(learner, after)


def milliseconds(step: Step, steps: int) -> float:
    """Of a step, after each length was seen."""
    given = [batch(number) for number in range(50)]
    for number in range(3 * len(LENGTHS)):
        step(given[number])
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for number in range(steps):
        step(given[number % len(given)])
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps * 1000


def main() -> int:
    """Report both kinds of graphs beside kernels launched one by one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/cuda_graphs.py measures a GPU, and torch finds none here", file=sys.stderr)
        return 69  # EX_UNAVAILABLE of sysexits.h
    torch.backends.cuda.enable_cudnn_sdp(False)  # which plans each length anew
    eager = milliseconds(one_by_one(0.1), asked.steps)
    for name, kind in {"fwd+bwd": passes_recorded, "whole": whole_recorded}.items():
        found = milliseconds(kind(0.1), asked.steps)
        plain, recorded, away = one_by_one(0.0), kind(0.0), 0.0
        for number in range(30):
            away = max(away, abs(plain(batch(number)).item() - recorded(batch(number)).item()))
        same = f"losses of 30 steps without dropout differ by at most {away:.1e}"
        report(Row(f"a step as a CUDA graph, {name}", "launched one by one", eager, found, "ms", same))
    return 0


if __name__ == "__main__":
    sys.exit(main())

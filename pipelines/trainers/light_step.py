"""What a step of training takes whatever its batch, made small on a processor.

A step of a small encoder on short texts takes some tens of milliseconds, of which a few go into work that depends on
the number of weights and modules alone: torch's AdamW adds one to a count of steps for each weight, and transformers'
loop walks all modules to say that they learn, and again to forget their gradients
(docs/decisions/0025-training-step.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW


class _Together(NamedTuple):
    """Weights of one type that have learnt in as many steps."""

    weights: list[Tensor]
    averages: list[Tensor]
    """Of their gradients."""
    squares: list[Tensor]
    """Averages of their gradients' squares."""
    counts: list[Tensor]
    """Of steps (), float32: one tensor, as often as there are weights."""


class SharedStepAdamW(AdamW):
    """torch's fused AdamW, equal to the bit, for weights on one processor: those that have learnt in as many steps
    share the count of them.

    Its state is that of torch's, in which each weight has a count: either is gone on from with the other.
    """

    def __init__(self, params: Any, **keywords: Any) -> None:
        super().__init__(params, **keywords, fused=True)
        self._known: dict[int, tuple[list[int], list[_Together]]] = {}
        """By the place of a group: which of its weights learn, and how they are dealt with."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._known = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of all weights that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for at, group in enumerate(self.param_groups):
            learning = [weight for weight in group["params"] if weight.grad is not None]
            for weights, averages, squares, counts in self._together(at, learning):
                counts[0].add_(1)
                torch._fused_adamw_(
                    weights,
                    [weight.grad for weight in weights],  # type: ignore[misc]
                    averages,
                    squares,
                    [],
                    counts,
                    lr=float(group["lr"]),
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    amsgrad=False,
                    maximize=False,
                )
        return loss

    def _together(self, at: int, learning: list[Tensor]) -> list[_Together]:
        """The weights of the group at a place, by their count and type; as in the last step where the same learn."""
        names = [id(weight) for weight in learning]
        known, parts = self._known.get(at, (None, []))
        if names == known and all(self.state[each.weights[0]].get("step") is each.counts[0] for each in parts):
            return parts
        found: dict[tuple[float, torch.dtype], list[Tensor]] = {}
        for weight in learning:
            state = self.state[weight]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            found.setdefault((float(state["step"]), weight.dtype), []).append(weight)
        parts = []
        for (steps, _), weights in found.items():
            count, states = torch.tensor(steps), [self.state[weight] for weight in weights]
            for state in states:
                state["step"] = count
            averages, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
            parts.append(_Together(weights, averages, squares, [count] * len(weights)))
        self._known[at] = (names, parts)
        return parts


@contextmanager
def few_walks(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Inside the `with` block `model.train()` and `model.zero_grad()` go through the modules and weights that the model
    had at its beginning, one after another, and not down the tree. Gives the weights."""
    modules, weights = list(model.modules()), list(model.parameters())
    plain: Callable[[bool], nn.Module] = model.train

    def train(mode: bool = True) -> nn.Module:
        return plain(mode) if any(module.training != mode for module in modules) else model

    def zero_grad(set_to_none: bool = True) -> None:
        for weight in weights:
            if set_to_none:
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.detach_().zero_()

    model.train, model.zero_grad = train, zero_grad  # type: ignore[method-assign]
    try:
        yield weights
    finally:
        del model.train, model.zero_grad

"""The matrix products of a piece of work, done again alone: what it takes at least, whoever does it.

`products_of` notes each product that torch is asked for (shapes, strides, precision), in the forward and the backward
pass. `alone` asks for the same ones again, on other numbers and without anything around them: no norm, no softmax, no
dropout, no optimizer, no cast, no Python between two of the same kind. What a peer takes, over this, is the highest
ratio that an implementation with these products could reach on the machine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
ASKED = {
    *(_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.linear, _aten.matmul),
    torch.ops.mkldnn._linear_pointwise,
}
"""The last three are seen where no gradient is taken; elsewhere they come as the others."""


class Laid(NamedTuple):
    """How a tensor of plain layout lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


Product = tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""One of torch's operations, and what it was given by place and by name: how its tensors lay, and everything else as it
was."""


class _Noting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Product] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func.overloadpacket in ASKED:
            by_name = tuple((name, _laid(given)) for name, given in named.items())
            self.found[(func, tuple(map(_laid, args)), by_name)] += 1
        return func(*args, **named)


def _laid(given: Any) -> Any:
    if isinstance(given, torch.Tensor) and not given.is_mkldnn:
        return Laid(tuple(given.shape), given.stride(), given.dtype)
    return tuple(given) if isinstance(given, list) else given


def products_of(work: Callable[[], Any]) -> Counter[Product]:
    """The products that `work` asks for, and how often each."""
    with _Noting() as noting:
        work()
    return noting.found


def alone(products: Counter[Product], clock: Callable[[], float] = time.perf_counter, rounds: int = 3) -> float:
    """Seconds of these products and nothing else, the least of `rounds`."""
    tensors: dict[tuple[Laid, bool], torch.Tensor] = {}

    def laid_out(given: Any, name: str = "") -> Any:
        if not isinstance(given, Laid):
            return given
        kept = given, name == "out"  # what is written is none of what is read
        if kept not in tensors:
            numbers = 1 + sum((size - 1) * stride for size, stride in zip(given.shape, given.strides, strict=True))
            tensors[kept] = torch.empty(numbers, dtype=given.dtype).normal_().as_strided(given.shape, given.strides)
        return tensors[kept]

    calls = [
        (func, [laid_out(each) for each in given], {name: laid_out(each, name) for name, each in by_name}, times)
        for (func, given, by_name), times in products.items()
    ]
    taken = []
    with torch.inference_mode():
        for _ in range(rounds + 1):  # the first one is not counted
            started = clock()
            for func, given, named, times in calls:
                for _ in range(times):
                    func(*given, **named)
            taken.append(clock() - started)
    return min(taken[1:])

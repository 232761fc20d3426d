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
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
ASKED = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.linear, _aten.matmul}
"""The last two are seen where no gradient is taken; elsewhere they come as the others."""
Laid = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and precision of a tensor."""
Product = tuple[Any, tuple[Laid | None, ...]]
"""One of torch's operations, and its tensors."""


class _Noting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Product] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in ASKED:
            laid = tuple(None if each is None else (tuple(each.shape), each.stride(), each.dtype) for each in args)
            self.found[(func, laid)] += 1
        return func(*args, **(kwargs or {}))


def products_of(work: Callable[[], Any]) -> Counter[Product]:
    """The products that `work` asks for, and how often each."""
    with _Noting() as noting:
        work()
    return noting.found


def alone(products: Counter[Product], clock: Callable[[], float] = time.perf_counter, rounds: int = 3) -> float:
    """Seconds of these products and nothing else, the least of `rounds`."""
    tensors: dict[Laid, torch.Tensor] = {}
    for _, laid in products:
        for each in laid:
            if each is not None and each not in tensors:
                shape, strides, dtype = each
                tensors[each] = torch.empty_strided(shape, strides, dtype=dtype).normal_()
    calls = [
        (func, [None if each is None else tensors[each] for each in laid], times)
        for (func, laid), times in products.items()
    ]
    taken = []
    with torch.inference_mode():
        for _ in range(rounds + 1):  # the first one is not counted
            started = clock()
            for func, given, times in calls:
                for _ in range(times):
                    func(*given)
            taken.append(clock() - started)
    return min(taken[1:])

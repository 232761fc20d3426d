"""Time, memory and path length of five layers over the length n: table 1 of Vaswani et al. 2017, measured.

Self-attention (explicit weights, and torch's fused kernel), attention restricted to r neighbours on either side, linear
attention, an LSTM and a convolution of width k, each of width d on one sequence, forward and backward, float32. Time is the
median of rounds that take turns; memory is what the backward pass keeps, counted by torch's hooks on saved tensors, each
storage once. Slopes are fitted to the logarithms over the upper half of the lengths and stand beside those of the formula
with both of its parts (projections cost n·d² in every layer). Path length: how many layers it takes until the last position
feels the first, tried on gradients; of the LSTM, steps within its one layer.

    OMP_NUM_THREADS=1 python benchmarks/complexity.py [--longest 8192] [--rounds 3] [--svg complexity.svg]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pipelines.architectures.attention import linear_attention
from pipelines.reports.plots import Scale, element, path, svg, word, x_axis, y_axis

WIDTH, REACH, KERNEL = 128, 64, 3
STYLE = (
    "svg{font:13px system-ui,sans-serif}rect.page{fill:#fff}text{fill:#1d2329}.tick,.label{fill:#69727c}"
    ".grid{stroke:#dfe3e8}polyline{fill:none;stroke-width:2}.formula{stroke-dasharray:2 4;stroke-width:1}"
)
COLOURS = ("#2563a8", "#6ba3d6", "#b4542a", "#3f8f4f", "#8a4fa3", "#7b8794")


class Projected(nn.Module):
    """Queries, keys and values of x (1, n, d), something between them, and a projection of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.outward(self.mixed(*self.inward(x).chunk(3, dim=-1)))

    def mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(1, n, d) of three of them."""
        raise NotImplementedError


class SelfAttention(Projected):
    """softmax(q kᵀ / √d) v."""

    def mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(query @ key.transpose(1, 2) / WIDTH**0.5, dim=-1) @ value


class FusedAttention(Projected):
    """The same by torch's kernel, which keeps no weights."""

    def mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        one = (each[:, None] for each in (query, key, value))
        return nn.functional.scaled_dot_product_attention(*one)[:, 0]


class RestrictedAttention(Projected):
    """The same among REACH neighbours on either side: blocks of REACH see themselves and the blocks beside them."""

    def mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        n = query.shape[1]
        blocks = -(-n // REACH)
        spare = blocks * REACH - n

        def beside(states: Tensor) -> Tensor:  # (blocks, 3 REACH, d)
            padded = nn.functional.pad(states, (0, 0, REACH, REACH + spare))[0]
            return padded.unfold(0, 3 * REACH, REACH).transpose(1, 2)

        asked = nn.functional.pad(query, (0, 0, 0, spare))[0].reshape(blocks, REACH, WIDTH)
        scores = asked @ beside(key).transpose(1, 2) / WIDTH**0.5
        own = torch.arange(REACH)[:, None] + REACH
        near = (torch.arange(3 * REACH)[None, :] - own).abs() <= REACH  # (REACH, 3 REACH)
        place = torch.arange(blocks)[:, None] * REACH + torch.arange(3 * REACH)[None, :] - REACH
        there = (place >= 0) & (place < n)  # (blocks, 3 REACH)
        scores = scores.masked_fill(~(near[None] & there[:, None]), -math.inf)
        return (torch.softmax(scores, dim=-1) @ beside(value)).reshape(1, -1, WIDTH)[:, :n]


class LinearAttention(Projected):
    """Our family's attention_pattern: linear."""

    def mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        one = [each[:, None] for each in (query, key, value)]
        return linear_attention(*one, None, False)[:, 0]


class Recurrent(nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


class Convolutional(nn.Module):
    """A convolution over KERNEL positions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=KERNEL // 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x.transpose(1, 2)).transpose(1, 2)


Cost = Callable[[int], float]
LAYERS: dict[str, tuple[type[nn.Module], str, Cost, Cost]] = {
    "self-attention": (
        SelfAttention, "n²·d", lambda n: 2 * n * n * WIDTH + 4 * n * WIDTH**2, lambda n: n * n + 5 * n * WIDTH,
    ),
    "self-attention, fused": (
        FusedAttention, "n²·d", lambda n: 2 * n * n * WIDTH + 4 * n * WIDTH**2, lambda n: 5 * n * WIDTH,
    ),
    "restricted": (
        RestrictedAttention, "r·n·d", lambda n: 6 * n * REACH * WIDTH + 4 * n * WIDTH**2, lambda n: n * (3 * REACH + 5 * WIDTH),
    ),
    "linear": (LinearAttention, "n·d²", lambda n: 6 * n * WIDTH**2, lambda n: 7 * n * WIDTH),
    "recurrent": (Recurrent, "n·d²", lambda n: 8 * n * WIDTH**2, lambda n: 7 * n * WIDTH),
    "convolutional": (Convolutional, "k·n·d²", lambda n: KERNEL * n * WIDTH**2, lambda n: n * WIDTH),
}  # fmt: skip
"""Class, the leading term of table 1, operations and numbers kept by the formula of the whole layer."""


def seconds(layer: nn.Module, n: int) -> float:
    """Of one forward and backward pass."""
    x = torch.randn(1, n, WIDTH, requires_grad=True)
    started = time.perf_counter()
    layer(x).sum().backward()
    return time.perf_counter() - started


def kept(layer: nn.Module, n: int) -> int:
    """Bytes that the backward pass keeps, weights left out."""
    x = torch.randn(1, n, WIDTH, requires_grad=True)
    outside = {each.untyped_storage().data_ptr() for each in layer.parameters()}
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in outside:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = layer(x)
    del result
    return sum(found.values())


def reached(kind: type[nn.Module], n: int) -> int:
    """Layers until the last of n positions depends on the first. In float64, or what is passed on underflows."""
    layers: list[nn.Module] = []
    for count in range(1, n + 1):
        layers.append(kind().double())
        x = torch.randn(1, n, WIDTH, requires_grad=True, dtype=torch.float64)
        states = x
        for layer in layers:
            states = layer(states)
        (gradient,) = torch.autograd.grad(states[0, -1].sum(), x)
        if gradient[0, 0].abs().max() > 0:
            return count
    return n


def slope(lengths: list[int], values: list[float]) -> float:
    """Of the logarithms over the upper half of the lengths."""
    half = len(lengths) // 2
    return float(np.polyfit(np.log(lengths[half:]), np.log(values[half:]), 1)[0])


def picture(lengths: list[int], measured: dict[str, list[float]]) -> str:
    """Milliseconds by length, both logarithmic; dotted: the formula, through the last point of each."""
    x = Scale([float(n) for n in lengths], 70, 560, log=True)
    drawn = {
        name: [LAYERS[name][2](n) / LAYERS[name][2](lengths[-1]) * values[-1] for n in lengths]
        for name, values in measured.items()
    }
    y = Scale([each for values in (*measured.values(), *drawn.values()) for each in values], 330, 20, log=True)
    parts = [element("style", STYLE), element("rect", class_="page", width="100%", height="100%")]
    parts += [*x_axis(x, 20, 330, "length n"), *y_axis(y, 70, 560, "ms, forward and backward")]
    for at, (name, values) in enumerate(measured.items()):
        for kind, series in (("", values), ("formula", drawn[name])):
            places = [(x(float(n)), y(value)) for n, value in zip(lengths, series, strict=True)]
            parts.append(element("polyline", class_=kind or "measured", points=path(places), stroke=COLOURS[at]))
        parts.append(word(name, "name", 575, 40 + 22 * at, style=f"fill:{COLOURS[at]}"))
    drawing = svg(380, parts, "time by length of six layers, measured and by formula", width=730)
    return drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" width="730" ', 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--svg", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    lengths = [64 * 2**power for power in range(int(math.log2(given.longest // 64)) + 1)]
    layers = {name: kind() for name, (kind, *_) in LAYERS.items()}
    for layer in layers.values():
        seconds(layer, lengths[0])
    taken: dict[str, dict[int, list[float]]] = {name: {n: [] for n in lengths} for name in layers}
    for n in lengths:
        for _ in range(given.rounds):
            for name, layer in layers.items():
                taken[name][n].append(seconds(layer, n))
    times = {name: [1000 * statistics.median(taken[name][n]) for n in lengths] for name in layers}
    memory = {name: [kept(layer, n) / 2**20 for n in lengths] for name, layer in layers.items()}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, d = {WIDTH}, r = {REACH}, k = {KERNEL}\n")
    print(
        "| ms | " + " | ".join(map(str, lengths)) + " | slope | formula's |\n|---" + "|---:" * (len(lengths) + 2) + "|"
    )
    for name, values in times.items():
        formula = slope(lengths, [LAYERS[name][2](n) for n in lengths])
        shown = " | ".join(f"{value:.3g}" for value in values)
        print(f"| {name}, {LAYERS[name][1]} | {shown} | {slope(lengths, values):.2f} | {formula:.2f} |")
    print(
        "\n| MiB kept | "
        + " | ".join(map(str, lengths))
        + " | slope | formula's |\n|---"
        + "|---:" * (len(lengths) + 2)
        + "|"
    )
    for name, values in memory.items():
        formula = slope(lengths, [LAYERS[name][3](n) for n in lengths])
        shown = " | ".join(f"{value:.3g}" for value in values)
        print(f"| {name} | {shown} | {slope(lengths, values):.2f} | {formula:.2f} |")
    print("\n| layers until the last of n positions feels the first | 64 | 256 | table 1 |\n|---|---:|---:|---|")
    said = {"restricted": "n/r", "recurrent": "n steps", "convolutional": "n/k, log_k n dilated"}
    for name, (kind, *_) in LAYERS.items():
        steps = " (n steps)" if name == "recurrent" else ""
        print(f"| {name} | {reached(kind, 64)}{steps} | {reached(kind, 256)}{steps} | {said.get(name, '1')} |")
    if given.svg:
        given.svg.write_text(picture(lengths, times), encoding="utf-8")


if __name__ == "__main__":
    main()

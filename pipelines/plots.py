"""Plots as plain SVG text: dots with intervals, a scatter with its Pareto front, lines. Nothing is loaded from elsewhere.

Colours are CSS classes of the page that a plot stands in, so that a dark page has dark plots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 680
SERIES = 8
"""Colours of lines before they begin again: classes `s0` … `s7`."""


@dataclass(frozen=True)
class Dot:
    """One line of a dot plot."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    single: tuple[float, ...] = ()
    """The values of single seeds."""
    kind: str = ""
    """A CSS class: `reference`, `better`, `worse`, `noise`."""


@dataclass(frozen=True)
class Point:
    """One point of a scatter."""

    name: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    front: bool = False
    """Whether no other point is both cheaper and better."""


@dataclass(frozen=True)
class Line:
    """One line of a line plot."""

    name: str
    points: Sequence[tuple[float, float]]


class Scale:
    """From values to pixels, linear or logarithmic, with round ticks."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool = False) -> None:
        self.log = log and min(values) > 0
        low, high = (math.log10(min(values)), math.log10(max(values))) if self.log else (min(values), max(values))
        room = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
        self.low, self.high = low - room, high + room
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        place = (math.log10(value) if self.log else value) - self.low
        return round(self.start + place / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self, count: int = 6) -> list[float]:
        """Round values inside the scale: steps of 1, 2 or 5, and on a logarithmic scale 1, 2 and 5 of each power of ten."""
        if self.log:
            powers = range(math.floor(self.low), math.ceil(self.high) + 1)
            factors: tuple[int, ...] = (1,) if self.high - self.low > 2.5 else (1, 2, 5)
            found = [factor * 10.0**power for power in powers for factor in factors]
            return [each for each in found if self.low <= math.log10(each) <= self.high]
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        first = math.ceil(self.low / step)
        return [number * step for number in range(first, math.floor(self.high / step) + 1)]


def short(value: float) -> str:
    """A tick's number: `0.82`, `1.5k`, `22M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{round(value, 6):g}"


def dot_plot(dots: Sequence[Dot], label: str) -> str:
    """One line a method: its mean, its interval, its single seeds; a vertical line through the reference's mean."""
    left, row, top = 170, 26, 8
    height = top + row * len(dots) + 38
    values = [each for dot in dots for each in (dot.value, dot.low, dot.high, *dot.single) if each is not None]
    x = Scale(values, left, WIDTH - 16)
    parts = _x_axis(x, top, top + row * len(dots), label)
    for dot in dots:
        if dot.kind == "reference":
            parts.append(f'<line class="guide" x1="{x(dot.value)}" x2="{x(dot.value)}" y1="{top}" y2="{top + row * len(dots)}"/>')
    for at, dot in enumerate(dots):
        y = top + row * at + row / 2
        parts.append(f'<text class="name" x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(dot.name[:26])}</text>')
        told = f"{dot.name}: {dot.value:.4g}" + (f" ({dot.low:.4g} to {dot.high:.4g})" if dot.low is not None and dot.high is not None else "")
        mark = ""
        if dot.low is not None and dot.high is not None:
            mark += f'<line class="interval" x1="{x(dot.low)}" x2="{x(dot.high)}" y1="{y}" y2="{y}"/>'
        mark += "".join(f'<circle class="seed" cx="{x(each)}" cy="{y}" r="2.5"/>' for each in dot.single)
        mark += f'<circle class="mean" cx="{x(dot.value)}" cy="{y}" r="5"/>'
        parts.append(f'<g class="{escape(dot.kind)}"><title>{escape(told)}</title>{mark}</g>')
    return _svg(height, parts, f"{label} of each method with its 95 % interval")


def scatter(points: Sequence[Point], x_label: str, y_label: str, larger_is_better: bool = True) -> str:
    """Score against a cost on a logarithmic axis, with the Pareto front as a line through the points that nothing beats."""
    left, top, height = 64, 12, 300
    bottom = height - 44
    x = Scale([point.x for point in points], left, WIDTH - 110, log=True)
    y = Scale([each for point in points for each in (point.y, point.low, point.high) if each is not None], bottom, top)
    parts = [*_x_axis(x, top, bottom, x_label), *_y_axis(y, left, WIDTH - 110, y_label)]
    front = pareto([(point.x, point.y) for point in points], larger_is_better)
    if len(front) > 1:
        path = " ".join(f"{x(points[at].x)},{y(points[at].y)}" for at in front)
        parts.append(f'<polyline class="front" points="{path}"/>')
    for at, point in enumerate(points):
        px, py = x(point.x), y(point.y)
        mark = f'<line class="interval" x1="{px}" x2="{px}" y1="{y(point.low)}" y2="{y(point.high)}"/>' if point.low is not None and point.high is not None else ""
        mark += f'<circle class="mean" cx="{px}" cy="{py}" r="5"/><text class="name" x="{px + 8}" y="{py - 6}">{escape(point.name[:20])}</text>'
        kind = "on-front" if at in front else "off-front"
        parts.append(f'<g class="{kind}"><title>{escape(point.name)}: {short(point.x)}, {point.y:.4g}</title>{mark}</g>')
    return _svg(height, parts, f"{y_label} against {x_label}, with the Pareto front")


def lines(series: Sequence[Line], x_label: str, y_label: str) -> str:
    """One line a method, named at its end."""
    left, top, height = 64, 12, 280
    bottom = height - 44
    x = Scale([point[0] for line in series for point in line.points], left, WIDTH - 130)
    y = Scale([point[1] for line in series for point in line.points], bottom, top)
    parts = [*_x_axis(x, top, bottom, x_label), *_y_axis(y, left, WIDTH - 130, y_label)]
    ends = _apart([y(line.points[-1][1]) for line in series], 13)
    for at, line in enumerate(series):
        path = " ".join(f"{x(one)},{y(other)}" for one, other in line.points)
        name = f'<text class="name" x="{WIDTH - 122}" y="{ends[at] + 4}">{escape(line.name[:18])}</text>'
        parts.append(f'<g class="s{at % SERIES}"><title>{escape(line.name)}</title><polyline class="curve" points="{path}"/>{name}</g>')
    return _svg(height, parts, f"{y_label} by {x_label}")


def pareto(points: Sequence[tuple[float, float]], larger_is_better: bool = True) -> list[int]:
    """Positions of the points (cost, score) that no other one beats in one and equals in the other, cheapest first."""
    sign = 1.0 if larger_is_better else -1.0
    order = sorted(range(len(points)), key=lambda at: (points[at][0], -sign * points[at][1]))
    front: list[int] = []
    best = -math.inf
    for at in order:
        if sign * points[at][1] > best:
            best = sign * points[at][1]
            front.append(at)
    return front


def _apart(places: Sequence[float], room: float) -> list[float]:
    """The same places, pushed down until none is nearer than `room` to the one above it."""
    found = list(places)
    last = -math.inf
    for at in sorted(range(len(places)), key=lambda each: places[each]):
        found[at] = last = max(places[at], last + room)
    return found


def _x_axis(x: Scale, top: float, bottom: float, label: str) -> list[str]:
    parts = [f'<line class="grid" x1="{x(tick)}" x2="{x(tick)}" y1="{top}" y2="{bottom}"/>' for tick in x.ticks()]
    parts += [f'<text class="tick" x="{x(tick)}" y="{bottom + 16}" text-anchor="middle">{short(tick)}</text>' for tick in x.ticks()]
    return [*parts, f'<text class="label" x="{(x.start + x.end) / 2}" y="{bottom + 34}" text-anchor="middle">{escape(label)}</text>']


def _y_axis(y: Scale, left: float, right: float, label: str) -> list[str]:
    parts = [f'<line class="grid" x1="{left}" x2="{right}" y1="{y(tick)}" y2="{y(tick)}"/>' for tick in y.ticks(5)]
    parts += [f'<text class="tick" x="{left - 8}" y="{y(tick) + 4}" text-anchor="end">{short(tick)}</text>' for tick in y.ticks(5)]
    middle = (y.start + y.end) / 2
    return [*parts, f'<text class="label" x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{escape(label)}</text>']


def _svg(height: float, parts: Sequence[str], told: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(told)}">{"".join(parts)}</svg>'

"""Plots of scores: dots with intervals, scatter with a Pareto front, lines, a search, the frontier of reward and KL.

Plots as plain SVG text: dots with intervals, a scatter with its Pareto front, lines. Nothing is loaded from elsewhere.

Colours are CSS classes of the page that a plot stands in, so that a dark page has dark plots.

A search as SVG: every value that was tried with its score, the winner of each method filled.

The frontier of reward and KL divergence: what each method reaches, and how far from the first model it goes for it.

Gao et al. 2023, "Scaling Laws for Reward Model Overoptimization", arxiv.org/abs/2210.10760, figure 1, compare methods
so: at the same distance, or for the same reward. A ring is one seed, a dot the mean over the seeds, the line joins
the means that no other beats in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 520
"""Narrow, so that the words of a plot can be read on a telephone, which shrinks it."""
SERIES = 8
"""Colours of lines before they begin again, dashed: classes `s0` … `s7`."""
LETTER = 7.0
"""Width of a letter of a name, in pixels."""


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
    note: str = ""
    """Stands behind the value: how many seeds are missing, for one."""


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
    band: Sequence[tuple[float, float, float]] = ()
    """(x, lower, upper) of an area around it."""


class Scale:
    """From values to pixels, linear or logarithmic, with round ticks. What lies beyond is shown at its end."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool = False) -> None:
        self.log = log and min(values) > 0 and max(values) / min(values) > 4  # less than that has too few round powers
        low, high = (math.log10(min(values)), math.log10(max(values))) if self.log else (min(values), max(values))
        room = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
        self.low, self.high = low - room, high + room
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        place = min(max(math.log10(value) if self.log else value, self.low), self.high) - self.low
        return round(self.start + place / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self, count: int = 6) -> list[float]:
        """Round values inside the scale: steps of 1, 2 or 5, and on a logarithmic scale 1, 2 and 5 of each power
        of ten."""
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


def short(value: float, unit: str = "") -> str:
    """A tick's number: `0.82`, `1.5k`, `22M`; with a unit `22 MB`."""
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size and unit not in ("%", "s"):
            return f"{value / size:.4g}{' ' if unit else ''}{prefix}{unit}"
    return f"{round(value, 6):g}{' ' + unit if unit else ''}"


def seen(values: Sequence[float], intervals: Sequence[tuple[float | None, float | None]]) -> list[float]:
    """What a scale must show: all values, and of their intervals as much as leaves the values half of the room.

    One method with a very wide interval would otherwise press all others into a heap.
    """
    low, high = min(values), max(values)
    ends = [each for pair in intervals for each in pair if each is not None]
    room = (high - low) / 2 or max((abs(each - low) for each in ends), default=0.0)
    return [*values, *(min(max(each, low - room), high + room) for each in ends)]


def dot_plot(dots: Sequence[Dot], label: str, absent: Sequence[tuple[str, str]] = ()) -> str:
    """One line a method: its mean, its interval, its single seeds; a vertical line through the reference's mean.

    `absent` are the methods without a value and why; they stand below the others.
    """
    row, top = 30, 8
    texts = [f"{dot.value:.3f}{' ' + dot.note if dot.note else ''}" for dot in dots]
    left = min(
        180.0, 18 + LETTER * max(len(each) for each in [*(dot.name for dot in dots), *(name for name, _ in absent)])
    )
    right = WIDTH - 14 - LETTER * max(len(text) for text in texts)
    rows = top + row * len(dots)
    bottom = rows + row * len(absent)
    x = Scale(
        seen([each for dot in dots for each in (dot.value, *dot.single)], [(dot.low, dot.high) for dot in dots]),
        left,
        right,
    )
    parts = x_axis(x, top, bottom, label)
    for dot in dots:
        if dot.kind == "reference":
            parts.append(f'<line class="guide" x1="{x(dot.value)}" x2="{x(dot.value)}" y1="{top}" y2="{rows}"/>')
    for at, dot in enumerate(dots):
        y = top + row * at + row / 2
        parts.append(_name(dot.name, left, y))
        told = f"{dot.name}: {dot.value:.4g}" + (
            f" ({dot.low:.4g} to {dot.high:.4g})" if dot.low is not None and dot.high is not None else ""
        )
        mark = ""
        if dot.low is not None and dot.high is not None:
            mark += f'<line class="interval" x1="{x(dot.low)}" x2="{x(dot.high)}" y1="{y}" y2="{y}"/>' + _arrows(
                x, dot.low, dot.high, y
            )
        mark += f'<circle class="mean" cx="{x(dot.value)}" cy="{y}" r="5"/>'
        mark += "".join(f'<circle class="seed" cx="{x(each)}" cy="{y + 9}" r="2.5"/>' for each in dot.single)
        mark += f'<text class="value" x="{right + 10:g}" y="{y + 4}">{escape(texts[at])}</text>'
        parts.append(f'<g class="{escape(dot.kind)}"><title>{escape(told)}</title>{mark}</g>')
    for at, (name, why) in enumerate(absent):
        y = rows + row * at + row / 2
        parts.append(_name(name, left, y) + f'<text class="tick" x="{left + 8}" y="{y + 4}">{escape(why)}</text>')
    return svg(bottom + 38, parts, f"{label} of each method with its 95 % interval")


def _name(name: str, left: float, y: float) -> str:
    text = name if len(name) <= 23 else name[:22] + "…"
    return f'<text class="name" x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(text)}</text>'


def _arrows(scale: Scale, low: float, high: float, y: float, upright: bool = False) -> str:
    """A head at each end of an interval that goes on beyond the plot; `y` is its place on the other axis."""
    found = ""
    for value, beyond in ((low, low < scale.low), (high, high > scale.high)):
        if beyond:
            tip = scale(value)
            back = tip + (7 if tip < (scale.start + scale.end) / 2 else -7)
            ends = [(tip, y), (back, y - 4), (back, y + 4)]
            found += (
                '<polygon class="beyond" points="'
                + " ".join(f"{other},{one}" if upright else f"{one},{other}" for one, other in ends)
                + '"/>'
            )
    return found


def scatter(points: Sequence[Point], x_label: str, y_label: str, larger_is_better: bool = True, unit: str = "") -> str:
    """Score against a cost, on a logarithmic axis where costs differ much, with the Pareto front through the
    points that nothing beats."""
    left, top, height = 60, 12, 330
    bottom, right = height - 44, WIDTH - 14
    x = Scale([point.x for point in points], left, right, log=True)
    y = Scale(seen([point.y for point in points], [(point.low, point.high) for point in points]), bottom, top)
    parts = [*x_axis(x, top, bottom, x_label, unit), *y_axis(y, left, right, y_label)]
    front = pareto([(point.x, point.y) for point in points], larger_is_better)
    if len(front) > 1:
        path = " ".join(f"{x(points[at].x)},{y(points[at].y)}" for at in front)
        parts.append(f'<polyline class="front" points="{path}"/>')
    names = [point.name if len(point.name) <= 20 else point.name[:19] + "…" for point in points]
    places = free_places(
        [(x(point.x), y(point.y)) for point in points],
        [LETTER * len(name) for name in names],
        (left, top, right, bottom),
    )
    for at, point in enumerate(points):
        px, py = x(point.x), y(point.y)
        mark = ""
        if point.low is not None and point.high is not None:
            mark += f'<line class="interval" x1="{px}" x2="{px}" y1="{y(point.low)}" y2="{y(point.high)}"/>' + _arrows(
                y, point.low, point.high, px, upright=True
            )
        mark += f'<circle class="mean" cx="{px}" cy="{py}" r="5"/>'
        kind = "on-front" if at in front else "off-front"
        parts.append(
            f'<g class="{kind}"><title>{escape(point.name)}: {short(point.x, unit)}, {point.y:.4g}</title>{mark}</g>'
        )
    parts += [
        f'<text class="name" x="{x0:g}" y="{y0:g}">{escape(name)}</text>'
        for (x0, y0), name in zip(places, names, strict=True)
    ]  # above every interval
    return svg(height, parts, f"{y_label} against {x_label}, with the Pareto front")


def free_places(
    points: Sequence[tuple[float, float]], widths: Sequence[float], frame: tuple[float, float, float, float]
) -> list[tuple[float, float]]:
    """Where the name of each point begins (x, baseline): beside it, and further off where other names and points
    are in the way."""
    tall = 12.0
    left, top, right, bottom = frame
    taken = [(px - 8, py - 8, px + 8, py + 8) for px, py in points]
    found = []
    for (px, py), width in zip(points, widths, strict=True):
        offers = []
        for away in range(8):
            up, down = py - 6 - tall * away, py + 14 + tall * away
            beside = [(px + 10, py + 4), (px - 10 - width, py + 4)] if away == 0 else []
            for begin, line in (*beside, (px + 8, up), (px + 8, down), (px - 8 - width, up), (px - 8 - width, down)):
                begin = min(max(begin, left + 2), right - width)
                box = (begin, line - tall + 2, begin + width, line + 2)
                hit = sum(_common(box, other) for other in taken)
                outside = box[1] < top or box[3] > bottom
                offers.append((hit + 1000 * outside + 6 * away, begin, line, box))
        _, begin, line, box = min(offers, key=lambda each: each[0])
        taken.append(box)
        found.append((begin, line))
    return found


def _common(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    """Area that two boxes share."""
    return max(0.0, min(one[2], other[2]) - max(one[0], other[0])) * max(
        0.0, min(one[3], other[3]) - max(one[1], other[1])
    )


def lines(series: Sequence[Line], x_label: str, y_label: str) -> str:
    """One line a method, named at its end."""
    left, top, height = 60, 12, 330
    bottom = height - 44
    right = WIDTH - 16 - min(140.0, LETTER * max(len(line.name) for line in series))
    x = Scale([point[0] for line in series for point in line.points], left, right)
    y = Scale(
        [
            each
            for line in series
            for each in (*(point[1] for point in line.points), *(end for _, *ends in line.band for end in ends))
        ],
        bottom,
        top,
    )
    parts = [*x_axis(x, top, bottom, x_label), *y_axis(y, left, right, y_label)]
    ends = apart([y(line.points[-1][1]) for line in series], 14, bottom)
    for at, line in enumerate(series):
        path = " ".join(f"{x(one)},{y(other)}" for one, other in line.points)
        text = line.name if len(line.name) <= 20 else line.name[:19] + "…"
        name = f'<text class="name" x="{right + 8:g}" y="{ends[at] + 4:g}">{escape(text)}</text>'
        kind = f"s{at % SERIES}" + (" again" if at >= SERIES else "")
        around = [f"{x(one)},{y(upper)}" for one, _, upper in line.band] + [
            f"{x(one)},{y(lower)}" for one, lower, _ in reversed(line.band)
        ]
        area = f'<polygon class="band" points="{" ".join(around)}"/>' if around else ""
        parts.append(
            f'<g class="{kind}"><title>{escape(line.name)}</title>{area}<polyline class="curve" points="{path}"/>{name}</g>'
        )
    return svg(height, parts, f"{y_label} by {x_label}")


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


def apart(places: Sequence[float], room: float, bottom: float) -> list[float]:
    """The same places, pushed down until none is nearer than `room` to the one above it, and up again from the
    bottom."""
    found = list(places)
    order = sorted(range(len(places)), key=lambda each: places[each])
    last = -math.inf
    for at in order:
        found[at] = last = max(places[at], last + room)
    last = bottom + room
    for at in reversed(order):
        found[at] = last = min(found[at], last - room)
    return found


def x_axis(x: Scale, top: float, bottom: float, label: str, unit: str = "") -> list[str]:
    """Lines, numbers and the name of the axis below a plot."""
    parts = [f'<line class="grid" x1="{x(tick)}" x2="{x(tick)}" y1="{top}" y2="{bottom}"/>' for tick in x.ticks()]
    parts += [
        f'<text class="tick" x="{x(tick)}" y="{bottom + 16}" text-anchor="middle">{short(tick, unit)}</text>'
        for tick in x.ticks()
    ]
    return [
        *parts,
        f'<text class="label" x="{(x.start + x.end) / 2:g}" y="{bottom + 34}" text-anchor="middle">{escape(label)}</text>',
    ]


def y_axis(y: Scale, left: float, right: float, label: str) -> list[str]:
    """The same beside it."""
    parts = [f'<line class="grid" x1="{left}" x2="{right}" y1="{y(tick)}" y2="{y(tick)}"/>' for tick in y.ticks(5)]
    parts += [
        f'<text class="tick" x="{left - 8}" y="{y(tick) + 4}" text-anchor="end">{short(tick)}</text>'
        for tick in y.ticks(5)
    ]
    middle = (y.start + y.end) / 2
    return [
        *parts,
        f'<text class="label" x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{escape(label)}</text>',
    ]


def svg(height: float, parts: Sequence[str], told: str) -> str:
    """The picture; `told` is what it shows, in words."""
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(told)}">{"".join(parts)}</svg>'


@dataclass(frozen=True)
class Tried:
    """One value."""

    value: float
    score: float
    chosen: bool


@dataclass(frozen=True)
class Series:
    """What was tried for one method."""

    name: str
    tried: Sequence[Tried]


def search(series: Sequence[Series], x_label: str, y_label: str) -> str:
    """The picture, values on a logarithmic axis where they differ much."""
    left, top, height = 60, 12, 330
    bottom = height - 44
    right = WIDTH - 16 - min(160.0, LETTER * max(len(each.name) for each in series))
    x = Scale([each.value for one in series for each in one.tried], left, right, log=True)
    y = Scale([each.score for one in series for each in one.tried], bottom, top)
    parts = [*x_axis(x, top, bottom, x_label), *y_axis(y, left, right, y_label)]
    ordered = [sorted(one.tried, key=lambda each: each.value) for one in series]
    ends = apart([y(tried[-1].score) for tried in ordered], 14, bottom)
    for at, (one, tried) in enumerate(zip(series, ordered, strict=True)):
        path = " ".join(f"{x(each.value)},{y(each.score)}" for each in tried)
        text = one.name if len(one.name) <= 22 else one.name[:21] + "…"
        kind = f"s{at % SERIES}" + (" again" if at >= SERIES else "")
        marks = "".join(
            f'<circle class="{"won" if each.chosen else "lost"}" cx="{x(each.value)}" cy="{y(each.score)}" r="{5 if each.chosen else 4}">'
            f"<title>{escape(one.name)}: {x_label} {short(each.value)}, {y_label} {each.score:.4g}</title></circle>"
            for each in tried
        )
        name = f'<text class="name" x="{right + 8:g}" y="{ends[at] + 4:g}">{escape(text)}</text>'
        parts.append(f'<g class="{kind}"><polyline class="curve" points="{path}"/>{marks}{name}</g>')
    return svg(height, parts, f"{y_label} of every {x_label} that was tried")


@dataclass(frozen=True)
class Reached:
    """What one method reached."""

    name: str
    seeds: tuple[tuple[float, float], ...]
    """(KL divergence in nats a completion, mean reward) of each seed."""

    @property
    def mean(self) -> tuple[float, float]:
        """The same over the seeds."""
        count = len(self.seeds)
        return sum(kl for kl, _ in self.seeds) / count, sum(reward for _, reward in self.seeds) / count


def frontier(methods: Sequence[Reached], start: float | None = None) -> str:
    """Reward against KL divergence as SVG. `start` is the mean reward of the first model, which stands at 0."""
    left, top, height = 60, 12, 330
    bottom, right = height - 44, WIDTH - 14
    means = [method.mean for method in methods]
    every = [*(each for method in methods for each in method.seeds), *means, *([] if start is None else [(0.0, start)])]
    x, y = Scale([0.0, *(kl for kl, _ in every)], left, right), Scale([reward for _, reward in every], bottom, top)
    parts = [*x_axis(x, top, bottom, "KL divergence, nats a completion"), *y_axis(y, left, right, "mean reward")]
    known = [*means, *([] if start is None else [(0.0, start)])]
    front = pareto(known)
    if len(front) > 1:
        path = " ".join(f"{x(known[at][0])},{y(known[at][1])}" for at in front)
        parts.append(f'<polyline class="front" points="{path}"/>')
    names = [method.name if len(method.name) <= 20 else method.name[:19] + "…" for method in methods]
    places = free_places(
        [(x(kl), y(reward)) for kl, reward in means], [LETTER * len(name) for name in names], (left, top, right, bottom)
    )
    for at, (method, (kl, reward)) in enumerate(zip(methods, means, strict=True)):
        rings = "".join(
            f'<circle class="seed" cx="{x(one)}" cy="{y(other)}" r="3.5"/>'
            for one, other in method.seeds
            if len(method.seeds) > 1
        )
        kind = "on-front" if at in front else "off-front"
        title = f"{escape(method.name)}: reward {reward:.4g} at {kl:.3g} nats, {len(method.seeds)} seed{'s' if len(method.seeds) != 1 else ''}"
        parts.append(
            f'<g class="{kind}"><title>{title}</title>{rings}<circle class="mean" cx="{x(kl)}" cy="{y(reward)}" r="5"/></g>'
        )
    if start is not None:
        parts.append(
            f'<g class="reference"><title>the model it is held against: reward {start:.4g}</title><circle class="mean" cx="{x(0.0)}" cy="{y(start)}" r="5"/></g>'
        )
    parts += [
        f'<text class="name" x="{x0:g}" y="{y0:g}">{escape(name)}</text>'
        for (x0, y0), name in zip(places, names, strict=True)
    ]
    return svg(height, parts, "mean reward against KL divergence, with the frontier")

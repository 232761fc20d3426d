"""Plots as plain SVG text: dots with intervals, scatters, lines, searches, calibration, confusions, histograms.

Nothing is loaded from elsewhere. Colours are CSS classes of the page that a plot stands in, so that a dark page has
dark plots; every mark says its numbers when the pointer rests on it, and every picture what it shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from pipelines.core.files import JSONObject

WIDTH = 520
"""Narrow, so that the words of a plot can be read on a telephone, which shrinks it."""
SERIES = 8
"""Colours of lines before they begin again, dashed: classes `s0` … `s7`."""
LETTER = 7.0
"""Width of a letter of a name, in pixels."""
MOST_CLASSES = 14
"""Of a confusion matrix that can still be read."""
LEFT, TOP, BOTTOM = 60, 12, 286
"""Of the frame of a plot with two axes; its right side leaves room for names."""

Place = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


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


@dataclass(frozen=True)
class Curve:
    """One line of a line plot."""

    name: str
    points: Sequence[Place]
    band: Sequence[tuple[float, float, float]] = ()
    """(x, lower, upper) of an area around it."""


@dataclass(frozen=True)
class SearchedValue:
    """One value that a search tried."""

    value: float
    score: float
    chosen: bool


@dataclass(frozen=True)
class SearchedValues:
    """What was tried for one method."""

    name: str
    tried: Sequence[SearchedValue]


@dataclass(frozen=True)
class PolicyScores:
    """What one method reached."""

    name: str
    seeds: tuple[Place, ...]
    """(KL divergence in nats a completion, mean reward) of each seed."""

    @property
    def mean(self) -> Place:
        """The same over the seeds."""
        seeds = len(self.seeds)
        return sum(kl for kl, _ in self.seeds) / seeds, sum(reward for _, reward in self.seeds) / seeds


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
        """Round values inside the scale: steps of 1, 2 or 5, and on a logarithmic scale 1, 2 and 5 of each power of
        ten."""
        if self.log:
            powers = range(math.floor(self.low), math.ceil(self.high) + 1)
            factors: tuple[int, ...] = (1,) if self.high - self.low > 2.5 else (1, 2, 5)
            candidates = [factor * 10.0**power for power in powers for factor in factors]
            return [each for each in candidates if self.low <= math.log10(each) <= self.high]
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        first = math.ceil(self.low / step)
        return [number * step for number in range(first, math.floor(self.high / step) + 1)]


def element(tag: str, content: str = "", /, **attributes: str | float) -> str:
    """`<tag name="value">content</tag>`; `class_` is `class`, `text_anchor` is `text-anchor`. `content` is SVG
    already."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else f"{value:g}"}"'
        for name, value in attributes.items()
    )
    return f"<{tag}{named}>{content}</{tag}>" if content else f"<{tag}{named}/>"


def word(content: str, kind: str, x: float, y: float, **attributes: str | float) -> str:
    """A text of the class `kind` at a place."""
    return element("text", escape(content), class_=kind, x=x, y=y, **attributes)


def upright(content: str, x: float, y: float) -> str:
    """The name of a vertical axis, centred at its middle `y`."""
    return word(content, "label", x, y, text_anchor="middle", transform=f"rotate(-90 {x:g} {y:g})")


def group(kind: str, title: str, *marks: str) -> str:
    """Marks of the class `kind` that say `title` under the pointer."""
    return element("g", element("title", escape(title)) + "".join(marks), class_=kind)


def path(places: Sequence[Place]) -> str:
    """The places as an attribute `points`."""
    return " ".join(f"{x:g},{y:g}" for x, y in places)


def svg(height: float, parts: Sequence[str], shows: str, width: float = WIDTH, kind: str = "") -> str:
    """The picture; `shows` is what it shows, in words."""
    of_class = {"class_": kind} if kind else {}
    box = f"0 0 {width:g} {height:g}"
    return element("svg", "".join(parts), **of_class, viewBox=box, role="img", aria_label=shows)


def x_axis(x: Scale, top: float, bottom: float, label: str, unit: str = "") -> list[str]:
    """Lines, numbers and the name of the axis below a plot."""
    ticks = [(x(tick), short(tick, unit)) for tick in x.ticks()]
    parts = [element("line", class_="grid", x1=place, x2=place, y1=top, y2=bottom) for place, _ in ticks]
    parts += [word(number, "tick", place, bottom + 16, text_anchor="middle") for place, number in ticks]
    return [*parts, word(label, "label", (x.start + x.end) / 2, bottom + 34, text_anchor="middle")]


def y_axis(y: Scale, left: float, right: float, label: str) -> list[str]:
    """The same beside it."""
    ticks = [(y(tick), short(tick)) for tick in y.ticks(5)]
    parts = [element("line", class_="grid", x1=left, x2=right, y1=place, y2=place) for place, _ in ticks]
    parts += [word(number, "tick", left - 8, place + 4, text_anchor="end") for place, number in ticks]
    return [*parts, upright(label, 14, (y.start + y.end) / 2)]


def short(value: float, unit: str = "") -> str:
    """A tick's number: `0.82`, `1.5k`, `22M`; with a unit `22 MB`."""
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size and unit not in ("%", "s"):
            return f"{value / size:.4g}{' ' if unit else ''}{prefix}{unit}"
    return f"{round(value, 6):g}{' ' + unit if unit else ''}"


def cut(name: str, letters: int) -> str:
    """A name of at most so many letters."""
    return name if len(name) <= letters else name[: letters - 1] + "…"


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
    values = [each for dot in dots for each in (dot.value, *dot.single)]
    x = Scale(seen(values, [(dot.low, dot.high) for dot in dots]), left, right)
    parts = x_axis(x, top, bottom, label)
    for dot in dots:
        if dot.kind == "reference":
            parts.append(element("line", class_="guide", x1=x(dot.value), x2=x(dot.value), y1=top, y2=rows))
    for at, dot in enumerate(dots):
        y = top + row * at + row / 2
        title = f"{dot.name}: {dot.value:.4g}"
        marks = []
        if dot.low is not None and dot.high is not None:
            title += f" ({dot.low:.4g} to {dot.high:.4g})"
            marks.append(element("line", class_="interval", x1=x(dot.low), x2=x(dot.high), y1=y, y2=y))
            marks += [_arrow((tip, y), back, False) for tip, back in _beyond(x, dot.low, dot.high)]
        marks.append(element("circle", class_="mean", cx=x(dot.value), cy=y, r=5))
        marks += [element("circle", class_="seed", cx=x(each), cy=y + 9, r=2.5) for each in dot.single]
        marks.append(word(texts[at], "value", right + 10, y + 4))
        parts += [word(cut(dot.name, 23), "name", left - 10, y + 4, text_anchor="end"), group(dot.kind, title, *marks)]
    for at, (name, why) in enumerate(absent):
        y = rows + row * at + row / 2
        parts += [word(cut(name, 23), "name", left - 10, y + 4, text_anchor="end"), word(why, "tick", left + 8, y + 4)]
    return svg(bottom + 38, parts, f"{label} of each method with its 95 % interval")


def _beyond(scale: Scale, low: float, high: float) -> list[Place]:
    """(tip, back) of a head at each end of an interval that goes on beyond the plot."""
    tips = [scale(value) for value, beyond in ((low, low < scale.low), (high, high > scale.high)) if beyond]
    return [(tip, tip + (7 if tip < (scale.start + scale.end) / 2 else -7)) for tip in tips]


def _arrow(tip: Place, back: float, is_upright: bool) -> str:
    x, y = tip
    ends = [(x, y), (x - 4, back), (x + 4, back)] if is_upright else [(x, y), (back, y - 4), (back, y + 4)]
    return element("polygon", class_="beyond", points=path(ends))


def scatter(points: Sequence[Point], x_label: str, y_label: str, larger_is_better: bool = True, unit: str = "") -> str:
    """Score against a cost, on a logarithmic axis where costs differ much, with the Pareto front."""
    right = WIDTH - 14
    x = Scale([point.x for point in points], LEFT, right, log=True)
    y = Scale(seen([point.y for point in points], [(point.low, point.high) for point in points]), BOTTOM, TOP)
    parts = [*x_axis(x, TOP, BOTTOM, x_label, unit), *y_axis(y, LEFT, right, y_label)]
    front = pareto([(point.x, point.y) for point in points], larger_is_better)
    if len(front) > 1:
        places = [(x(points[at].x), y(points[at].y)) for at in front]
        parts.append(element("polyline", class_="front", points=path(places)))
    for at, point in enumerate(points):
        px, marks = x(point.x), []
        if point.low is not None and point.high is not None:
            marks.append(element("line", class_="interval", x1=px, x2=px, y1=y(point.low), y2=y(point.high)))
            marks += [_arrow((px, tip), back, True) for tip, back in _beyond(y, point.low, point.high)]
        marks.append(element("circle", class_="mean", cx=px, cy=y(point.y), r=5))
        kind = "on-front" if at in front else "off-front"
        parts.append(group(kind, f"{point.name}: {short(point.x, unit)}, {point.y:.4g}", *marks))
    parts += _names([point.name for point in points], [(x(point.x), y(point.y)) for point in points], right)
    return svg(BOTTOM + 44, parts, f"{y_label} against {x_label}, with the Pareto front")


def _names(names: Sequence[str], points: Sequence[Place], right: float) -> list[str]:
    """The name of each point beside it; drawn last, they stand above every interval."""
    names = [cut(name, 20) for name in names]
    places = free_places(points, [LETTER * len(name) for name in names], (LEFT, TOP, right, BOTTOM))
    return [word(name, "name", x, y) for (x, y), name in zip(places, names, strict=True)]


def free_places(points: Sequence[Place], widths: Sequence[float], frame: Box) -> list[Place]:
    """Where the name of each point begins (x, baseline): beside it, and further off where other names and points are
    in the way."""
    tall = 12.0
    left, top, right, bottom = frame
    taken = [(px - 8, py - 8, px + 8, py + 8) for px, py in points]
    places = []
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
        places.append((begin, line))
    return places


def _common(one: Box, other: Box) -> float:
    """Area that two boxes share."""
    return max(0.0, min(one[2], other[2]) - max(one[0], other[0])) * max(
        0.0, min(one[3], other[3]) - max(one[1], other[1])
    )


def pareto(points: Sequence[Place], larger_is_better: bool = True) -> list[int]:
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


def lines(series: Sequence[Curve], x_label: str, y_label: str) -> str:
    """One line a method, named at its end."""
    right = WIDTH - 16 - min(140.0, LETTER * max(len(line.name) for line in series))
    x = Scale([point[0] for line in series for point in line.points], LEFT, right)
    around = [end for line in series for _, *ends in line.band for end in ends]
    y = Scale([*(value for line in series for _, value in line.points), *around], BOTTOM, TOP)
    parts = [*x_axis(x, TOP, BOTTOM, x_label), *y_axis(y, LEFT, right, y_label)]
    ends = apart([y(line.points[-1][1]) for line in series], 14, BOTTOM)
    for at, line in enumerate(series):
        upper = [(x(one), y(high)) for one, _, high in line.band]
        lower = [(x(one), y(low)) for one, low, _ in reversed(line.band)]
        band = element("polygon", class_="band", points=path(upper + lower)) if line.band else ""
        curve = element("polyline", class_="curve", points=path([(x(one), y(other)) for one, other in line.points]))
        name = word(cut(line.name, 20), "name", right + 8, ends[at] + 4)
        parts.append(group(_colour(at), line.name, band, curve, name))
    return svg(BOTTOM + 44, parts, f"{y_label} by {x_label}")


def _colour(at: int) -> str:
    return f"s{at % SERIES}" + (" again" if at >= SERIES else "")


def apart(places: Sequence[float], room: float, bottom: float) -> list[float]:
    """The same places, pushed down until none is nearer than `room` to the one above it, and up again from the
    bottom."""
    moved = list(places)
    order = sorted(range(len(places)), key=lambda each: places[each])
    last = -math.inf
    for at in order:
        moved[at] = last = max(places[at], last + room)
    last = bottom + room
    for at in reversed(order):
        moved[at] = last = min(moved[at], last - room)
    return moved


def search(series: Sequence[SearchedValues], x_label: str, y_label: str) -> str:
    """Every value that was tried with its score, the winner of each method filled; values on a logarithmic axis where
    they differ much."""
    right = WIDTH - 16 - min(160.0, LETTER * max(len(each.name) for each in series))
    x = Scale([each.value for one in series for each in one.tried], LEFT, right, log=True)
    y = Scale([each.score for one in series for each in one.tried], BOTTOM, TOP)
    parts = [*x_axis(x, TOP, BOTTOM, x_label), *y_axis(y, LEFT, right, y_label)]
    ordered = [sorted(one.tried, key=lambda each: each.value) for one in series]
    ends = apart([y(tried[-1].score) for tried in ordered], 14, BOTTOM)
    for at, (one, tried) in enumerate(zip(series, ordered, strict=True)):
        marks = [element("polyline", class_="curve", points=path([(x(each.value), y(each.score)) for each in tried]))]
        for each in tried:
            title = f"{one.name}: {x_label} {short(each.value)}, {y_label} {each.score:.4g}"
            kind, radius = ("won", 5) if each.chosen else ("lost", 4)
            content = element("title", escape(title))
            marks.append(element("circle", content, class_=kind, cx=x(each.value), cy=y(each.score), r=radius))
        marks.append(word(cut(one.name, 22), "name", right + 8, ends[at] + 4))
        parts.append(element("g", "".join(marks), class_=_colour(at)))
    return svg(BOTTOM + 44, parts, f"{y_label} of every {x_label} that was tried")


def frontier(methods: Sequence[PolicyScores], start: float | None = None) -> str:
    """The frontier of reward and KL divergence: what each method reaches, and how far from the first model it goes.

    `start` is the mean reward of the first model, which stands at 0. Methods compare at the same distance, or for the
    same reward, as in Gao et al. 2023, "Scaling Laws for Reward Model Overoptimization", arxiv.org/abs/2210.10760,
    figure 1. A ring is one seed, a dot the mean over the seeds; the line joins the means that no other beats in both.
    """
    right = WIDTH - 14
    first = [] if start is None else [(0.0, start)]
    means = [method.mean for method in methods]
    every = [*(each for method in methods for each in method.seeds), *means, *first]
    x = Scale([0.0, *(kl for kl, _ in every)], LEFT, right)
    y = Scale([reward for _, reward in every], BOTTOM, TOP)
    parts = [*x_axis(x, TOP, BOTTOM, "KL divergence, nats a completion"), *y_axis(y, LEFT, right, "mean reward")]
    candidates = [*means, *first]
    front = pareto(candidates)
    if len(front) > 1:
        places = [(x(candidates[at][0]), y(candidates[at][1])) for at in front]
        parts.append(element("polyline", class_="front", points=path(places)))
    for at, (method, (kl, reward)) in enumerate(zip(methods, means, strict=True)):
        several = len(method.seeds) > 1
        rings = [
            element("circle", class_="seed", cx=x(one), cy=y(other), r=3.5) for one, other in method.seeds if several
        ]
        title = f"{method.name}: reward {reward:.4g} at {kl:.3g} nats, {len(method.seeds)} seed{'s' if several else ''}"
        mean = element("circle", class_="mean", cx=x(kl), cy=y(reward), r=5)
        parts.append(group("on-front" if at in front else "off-front", title, *rings, mean))
    if start is not None:
        mean = element("circle", class_="mean", cx=x(0.0), cy=y(start), r=5)
        parts.append(group("reference", f"the model it is held against: reward {start:.4g}", mean))
    parts += _names([method.name for method in methods], [(x(kl), y(reward)) for kl, reward in means], right)
    return svg(BOTTOM + 44, parts, "mean reward against KL divergence, with the frontier")


def reliability(bins: Sequence[JSONObject], shows: str) -> str:
    """How often a model is right where it says it is so sure: bars of accuracy over confidence.

    Guo et al. 2017, figure 1. The shaded part is what lies between a bar and the diagonal, where it should end.
    """
    left, top, side = 52, 10, 300
    bottom = top + side

    def x(value: float) -> float:
        return round(left + value * side, 1)

    def y(value: float) -> float:
        return round(bottom - value * side, 1)

    parts = []
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(element("line", class_="grid", x1=left, x2=x(1), y1=y(tick), y2=y(tick)))
        parts.append(word(f"{tick:g}", "tick", left - 8, y(tick) + 4, text_anchor="end"))
        parts.append(word(f"{tick:g}", "tick", x(tick), bottom + 16, text_anchor="middle"))
    most = max((each["examples"] for each in bins), default=1)
    for each in bins:
        begin, width = x(each["low"]) + 1, x(each["high"]) - x(each["low"]) - 2
        end, aim = y(each["accuracy"]), y(each["confidence"])
        # few examples are drawn paler: their bar is little more than chance
        strength = f"{0.35 + 0.65 * (each['examples'] / most) ** 0.5:.2f}"
        height = max(0.0, bottom - end)
        bar = element("rect", class_="bar", x=begin, width=width, y=end, height=height, fill_opacity=strength)
        gap = element("rect", class_="gap", x=begin, width=width, y=min(end, aim), height=abs(end - aim))
        title = f"confidence {each['confidence']:.2f}, right {each['accuracy']:.2f}, {each['examples']:,} decisions"
        parts.append(group("", title, bar, gap))
    parts.append(element("line", class_="diagonal", x1=x(0), y1=y(0), x2=x(1), y2=y(1)))
    parts.append(word("confidence", "label", x(0.5), bottom + 34, text_anchor="middle"))
    parts.append(upright("share that is right", 14, top + side / 2))
    return svg(bottom + 44, parts, shows, left + side + 14, "square")


def confusion_matrix(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Rows are the true classes, columns the predicted ones, the darker the larger the share of the row.

    Empty for more classes than can be read.
    """
    if not names or len(names) > MOST_CLASSES:
        return ""
    heads = [cut(name, 16) for name in names]
    longest = LETTER * max(len(name) for name in heads)
    many = len(names) > 4
    cell = 44.0 if many else max(84.0, longest + 10)
    side = cell * len(names)
    left, top = 34 + longest, 34.0 + (longest * 0.75 if many else 18)
    parts = [word("said", "label", left + side / 2, 14, text_anchor="middle"), upright("true", 12, top + side / 2)]
    for at, name in enumerate(heads):
        x, y = left + cell * (at + 0.5), top - 8
        turned = {"transform": f"rotate(-40 {x:g} {y:g})"} if many else {}
        parts.append(word(name, "tick", x, y, text_anchor="start" if many else "middle", **turned))
        parts.append(word(name, "name", left - 8, top + cell * (at + 0.5) + 4, text_anchor="end"))
    for row, line in enumerate(counts):
        total = sum(line)
        for column, count in enumerate(line):
            share = count / total if total else 0.0
            x, y = left + cell * column, top + cell * row
            box = {"x": x, "y": y, "width": cell, "height": cell}
            shade = element("rect", class_="cell", **box, fill_opacity=f"{0.9 * share:.3f}")
            frame = element("rect", class_="frame", **box)
            number = word(f"{count:,}", "count strong" if share > 0.55 else "count", x + cell / 2, y + cell / 2 + 4)
            title = f"{names[row]} taken for {names[column]}: {count:,} of {total:,} ({share:.1%})"
            parts.append(group("", title, shade, frame, number))
    return svg(top + side + 8, parts, "confusion matrix", left + side + (longest * 0.75 if many else 10), "square")


def histograms(histogram: Mapping[str, Sequence[float]], shows: str) -> str:
    """How scores lie: bars of the chosen answers (blue) and of the rejected ones (orange) between each two `edges`."""
    left, right, top, bottom = 60, WIDTH - 14, 10, 230
    edges = histogram["edges"]
    most = max((*histogram["chosen"], *histogram["rejected"], 1))
    x, y = Scale(edges, left, right), Scale([0, most], bottom, top)
    parts = [*x_axis(x, top, bottom, "score"), *y_axis(y, left, right, "answers")]
    for side, kind in (("chosen", "bar"), ("rejected", "gap")):
        for place, count in enumerate(histogram[side]):
            if count:
                start, end = x(edges[place]), x(edges[place + 1])
                box = {"x": start, "width": max(1.0, end - start - 1), "y": y(count), "height": y(0) - y(count)}
                bar = element("rect", class_=kind, **box, fill_opacity=0.55)
                title = f"{count:g} {side} from {edges[place]:.3g} to {edges[place + 1]:.3g}"
                parts.append(group("", title, bar))
    return svg(bottom + 44, parts, shows)

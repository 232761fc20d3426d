"""Plots of one model as SVG: a reliability diagram, a confusion matrix, histograms of a reward model's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.core.files import JSONObject
from pipelines.reports.plots import LETTER, WIDTH, Scale, cut, element, group, svg, upright, word, x_axis, y_axis

SIDE = 300
"""Of the square of a reliability diagram."""
LEFT, TOP, BOTTOM = 52, 10, 44
"""Around it."""
MOST_CLASSES = 14
"""Of a confusion matrix that can still be read."""


def reliability(bins: Sequence[JSONObject], shows: str) -> str:
    """How often a model is right where it says it is so sure: bars of accuracy over confidence.

    Guo et al. 2017, figure 1. The shaded part is what lies between a bar and the diagonal, where it should end.
    """
    low = TOP + SIDE

    def x(value: float) -> float:
        return round(LEFT + value * SIDE, 1)

    def y(value: float) -> float:
        return round(low - value * SIDE, 1)

    parts = []
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(element("line", class_="grid", x1=LEFT, x2=x(1), y1=y(tick), y2=y(tick)))
        parts.append(word(f"{tick:g}", "tick", LEFT - 8, y(tick) + 4, text_anchor="end"))
        parts.append(word(f"{tick:g}", "tick", x(tick), low + 16, text_anchor="middle"))
    most = max((each["examples"] for each in bins), default=1)
    for each in bins:
        left, width = x(each["low"]) + 1, x(each["high"]) - x(each["low"]) - 2
        top, aim = y(each["accuracy"]), y(each["confidence"])
        # few examples are drawn paler: their bar is little more than chance
        strength = f"{0.35 + 0.65 * (each['examples'] / most) ** 0.5:.2f}"
        height = max(0.0, low - top)
        bar = element("rect", class_="bar", x=left, width=width, y=top, height=height, fill_opacity=strength)
        gap = element("rect", class_="gap", x=left, width=width, y=min(top, aim), height=abs(top - aim))
        title = f"confidence {each['confidence']:.2f}, right {each['accuracy']:.2f}, {each['examples']:,} decisions"
        parts.append(group("", title, bar, gap))
    parts.append(element("line", class_="diagonal", x1=x(0), y1=y(0), x2=x(1), y2=y(1)))
    parts.append(word("confidence", "label", x(0.5), low + 34, text_anchor="middle"))
    parts.append(upright("share that is right", 14, TOP + SIDE / 2))
    return svg(low + BOTTOM, parts, shows, LEFT + SIDE + 14, "square")


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

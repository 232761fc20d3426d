"""Plots of one run: reliability diagram, confusion matrix, histograms of scores, the course of PPO.

A reliability diagram as SVG: how often a model is right where it says it is so sure.

A confusion matrix as SVG: rows are the true classes, columns what was said, the darker the larger the share of the row.

How the scores of chosen and of rejected answers lie, as SVG: two histograms over one axis.

How a run of PPO went: its reward, KL and other signs over the iterations, and what the policy wrote at first and at
last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pipelines.core.events import read_events
from pipelines.reports import plots
from pipelines.reports.plots import Scale, svg, x_axis, y_axis

SIDE = 300
LEFT, TOP, BOTTOM = 52, 10, 44


def reliability(bins: Sequence[Mapping[str, Any]], told: str) -> str:
    """Bars of accuracy over confidence; the shaded part is what lies between a bar and the diagonal, where it should
    end.

    Guo et al. 2017, figure 1. `told` is what the picture says, for those who cannot see it. The bars below it say how
    many examples each bin has.
    """
    low = TOP + SIDE

    def x(value: float) -> float:
        return round(LEFT + value * SIDE, 1)

    def y(value: float) -> float:
        return round(low - value * SIDE, 1)

    parts = []
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{x(1)}" y1="{y(tick)}" y2="{y(tick)}"/><text class="tick" x="{LEFT - 8}" y="{y(tick) + 4}" text-anchor="end">{tick:g}</text>'
        )
        parts.append(f'<text class="tick" x="{x(tick)}" y="{low + 16}" text-anchor="middle">{tick:g}</text>')
    most = max((each["examples"] for each in bins), default=1)
    for each in bins:
        left, wide = x(each["low"]) + 1, x(each["high"]) - x(each["low"]) - 2
        top, aim = y(each["accuracy"]), y(each["confidence"])
        title = f"confidence {each['confidence']:.2f}, right {each['accuracy']:.2f}, {each['examples']:,} decisions"
        # few examples are drawn paler: their bar is little more than chance
        strength = 0.35 + 0.65 * (each["examples"] / most) ** 0.5
        bar = f'<rect class="bar" x="{left:g}" width="{wide:g}" y="{top}" height="{max(0.0, low - top):g}" fill-opacity="{strength:.2f}"/>'
        gap = f'<rect class="gap" x="{left:g}" width="{wide:g}" y="{min(top, aim):g}" height="{abs(top - aim):g}"/>'
        parts.append(f"<g><title>{title}</title>{bar}{gap}</g>")
    parts.append(f'<line class="diagonal" x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}"/>')
    middle = TOP + SIDE / 2
    parts.append(f'<text class="label" x="{x(0.5)}" y="{low + 34}" text-anchor="middle">confidence</text>')
    parts.append(
        f'<text class="label" x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">share that is right</text>'
    )
    return f'<svg class="square" viewBox="0 0 {LEFT + SIDE + 14} {low + BOTTOM}" role="img" aria-label="{told}">{"".join(parts)}</svg>'


MOST = 14
"""Classes that still can be read."""
LETTER = 7.0


def matrix(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """The picture; empty for more classes than can be read."""
    if not names or len(names) > MOST:
        return ""
    short = [name if len(name) <= 16 else name[:15] + "…" for name in names]
    longest = LETTER * max(len(name) for name in short)
    many = len(names) > 4
    cell = 44.0 if many else max(84.0, longest + 10)
    left, top = 34 + longest, 34.0 + (longest * 0.75 if many else 18)
    parts = [
        f'<text class="label" x="{left + cell * len(names) / 2:g}" y="14" text-anchor="middle">said</text>',
        f'<text class="label" x="12" y="{top + cell * len(names) / 2:g}" text-anchor="middle" transform="rotate(-90 12 {top + cell * len(names) / 2:g})">true</text>',
    ]
    for at, name in enumerate(short):
        x, y = left + cell * (at + 0.5), top - 8
        turned = f' transform="rotate(-40 {x:g} {y:g})" text-anchor="start"' if many else ' text-anchor="middle"'
        parts.append(f'<text class="tick" x="{x:g}" y="{y:g}"{turned}>{escape(name)}</text>')
        parts.append(
            f'<text class="name" x="{left - 8:g}" y="{top + cell * (at + 0.5) + 4:g}" text-anchor="end">{escape(name)}</text>'
        )
    for row, line in enumerate(counts):
        total = sum(line)
        for column, count in enumerate(line):
            share = count / total if total else 0.0
            x, y = left + cell * column, top + cell * row
            title = f"{names[row]} taken for {names[column]}: {count:,} of {total:,} ({share:.1%})"
            box = f'x="{x:g}" y="{y:g}" width="{cell:g}" height="{cell:g}"'
            strong = " strong" if share > 0.55 else ""
            parts.append(
                f'<g><title>{escape(title)}</title><rect class="cell" {box} fill-opacity="{0.9 * share:.3f}"/><rect class="frame" {box}/>'
                f'<text class="count{strong}" x="{x + cell / 2:g}" y="{y + cell / 2 + 4:g}">{count:,}</text></g>'
            )
    width = left + cell * len(names) + (longest * 0.75 if many else 10)
    return f'<svg class="square" viewBox="0 0 {width:g} {top + cell * len(names) + 8:g}" role="img" aria-label="confusion matrix">{"".join(parts)}</svg>'


HEIGHT = 220
LEFT_PLOTS_SCORES, RIGHT, TOP_PLOTS_SCORES, BOTTOM_PLOTS_SCORES = 60, 620, 10, 44


def scores(histogram: Mapping[str, Sequence[float]], told: str) -> str:
    """Bars of the chosen answers (blue) and of the rejected ones (orange) between each two `edges`; `told` is what
    the picture says."""
    edges, low = histogram["edges"], TOP_PLOTS_SCORES + HEIGHT
    most = max((*histogram["chosen"], *histogram["rejected"], 1))
    x, y = Scale(edges, LEFT_PLOTS_SCORES, RIGHT), Scale([0, most], low, TOP_PLOTS_SCORES)
    bottom = y(0)
    parts = [*x_axis(x, TOP_PLOTS_SCORES, low, "score"), *y_axis(y, LEFT_PLOTS_SCORES, RIGHT, "answers")]
    for side, kind in (("chosen", "bar"), ("rejected", "gap")):
        for place, count in enumerate(histogram[side]):
            if count:
                left, wide = x(edges[place]), x(edges[place + 1]) - x(edges[place])
                title = f"{count:g} {side} from {edges[place]:.3g} to {edges[place + 1]:.3g}"
                bar = f'<rect class="{kind}" x="{left:g}" width="{max(1.0, wide - 1):g}" y="{y(count):g}" height="{bottom - y(count):g}" fill-opacity="0.55"/>'
                parts.append(f"<g><title>{title}</title>{bar}</g>")
    return svg(low + BOTTOM_PLOTS_SCORES, parts, told)


Points = list[tuple[float, float]]

FIGURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("reward of a completion", ("reward",)),
    ("KL to the reference, nats a completion", ("kl",)),
    ("weight of the KL (kl_coef)", ("kl_coef",)),
    ("entropy, nats a token", ("entropy",)),
    ("share of tokens held back by clipping", ("clip_fraction", "value_clip_fraction")),
    ("value loss", ("value_loss",)),
    ("variance of the returns that the values explain", ("explained_variance",)),
    ("tokens of a completion", ("response_length",)),
    ("share of completions", ("ended", "distinct")),
)
"""Plots with what they show."""
STEADY = ("kl_coef",)
"""Signs that are shown only when they change."""
MOST_POINTS = 300
SMOOTHED = 20
"""A signal with more iterations than this has the mean over a twentieth of them drawn through it."""


def signals(folder: Path, stage: str) -> dict[str, Points]:
    """Each sign of a ppo stage by iteration, as the run's events tell it; of a stage that was done twice, the last
    time."""
    found: dict[str, dict[int, float]] = {}
    wanted = {name for _, names in FIGURES for name in names}
    for event in read_events(folder / "events.jsonl"):
        if event.get("stage") == stage and event["event"] == "metric" and isinstance(event.get("step"), int):
            for name, value in (event.get("metrics") or {}).items():
                if name in wanted and isinstance(value, int | float):
                    found.setdefault(name, {})[event["step"]] = float(value)
    return {name: [(float(step), value) for step, value in sorted(points.items())] for name, points in found.items()}


def samples(folder: Path, stage: str) -> list[dict[str, Any]]:
    """The first and the last `sample` events of a ppo stage: `{step, completions}`."""
    told = [
        {"step": event.get("step"), "completions": event["completions"]}
        for event in read_events(folder / "events.jsonl")
        if event.get("stage") == stage and event["event"] == "sample" and event.get("completions")
    ]
    return told if len(told) < 2 else [told[0], told[-1]]


def figures(title: str, found: Mapping[str, Points]) -> list[dict[str, str]]:
    """A plot for each sign that there is: `{title, plot}`."""
    drawn = []
    for label, names in FIGURES:
        shown = [
            name
            for name in names
            if len(found.get(name, ())) > 1 and not (name in STEADY and len({value for _, value in found[name]}) == 1)
        ]
        if shown:
            lines = [line for name in shown for line in _lines(name, found[name])]
            drawn.append({"title": title, "plot": plots.lines(lines, "iteration", label)})
    return drawn


def _lines(name: str, points: Points) -> list[plots.Line]:
    """The sign itself, and its running mean where there are many iterations."""
    window = len(points) // SMOOTHED
    if window < 2:
        return [plots.Line(name, points)]
    return [
        plots.Line(name, _thinned(points)),
        plots.Line(f"{name}, mean of {window}", _thinned(running_mean(points, window))),
    ]


def running_mean(points: Sequence[tuple[float, float]], window: int) -> Points:
    """The mean of the latest `window` values at each point, of fewer at the beginning."""
    found: Points = []
    total = 0.0
    for place, (step, value) in enumerate(points):
        total += value - (points[place - window][1] if place >= window else 0.0)
        found.append((step, total / min(place + 1, window)))
    return found


def _thinned(points: Points) -> Points:
    every = max(1, -(-len(points) // MOST_POINTS))
    return points[::every]

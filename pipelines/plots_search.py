"""A search as SVG: every value that was tried with its score, the winner of each method filled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pipelines.plots import LETTER, SERIES, WIDTH, Scale, apart, short, svg, x_axis, y_axis


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

"""How the scores of chosen and of rejected answers lie, as SVG: two histograms over one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.plots import Scale, svg, x_axis, y_axis

HEIGHT = 220
LEFT, RIGHT, TOP, BOTTOM = 60, 620, 10, 44


def scores(histogram: Mapping[str, Sequence[float]], told: str) -> str:
    """Bars of the chosen answers (blue) and of the rejected ones (orange) between each two `edges`; `told` is what the picture says."""
    edges, low = histogram["edges"], TOP + HEIGHT
    most = max((*histogram["chosen"], *histogram["rejected"], 1))
    x, y = Scale(edges, LEFT, RIGHT), Scale([0, most], low, TOP)
    bottom = y(0)
    parts = [*x_axis(x, TOP, low, "score"), *y_axis(y, LEFT, RIGHT, "answers")]
    for side, kind in (("chosen", "bar"), ("rejected", "gap")):
        for place, count in enumerate(histogram[side]):
            if count:
                left, wide = x(edges[place]), x(edges[place + 1]) - x(edges[place])
                title = f"{count:g} {side} from {edges[place]:.3g} to {edges[place + 1]:.3g}"
                bar = f'<rect class="{kind}" x="{left:g}" width="{max(1.0, wide - 1):g}" y="{y(count):g}" height="{bottom - y(count):g}" fill-opacity="0.55"/>'
                parts.append(f"<g><title>{title}</title>{bar}</g>")
    return svg(low + BOTTOM, parts, told)

"""A reliability diagram as SVG: how often a model is right where it says it is so sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SIDE = 300
LEFT, TOP, BOTTOM = 52, 10, 44


def reliability(bins: Sequence[Mapping[str, Any]], told: str) -> str:
    """Bars of accuracy over confidence; the shaded part is what lies between a bar and the diagonal, where it should end.

    Guo et al. 2017, figure 1. `told` is what the picture says, for those who cannot see it. The bars below it say how many
    examples each bin has.
    """
    low = TOP + SIDE

    def x(value: float) -> float:
        return round(LEFT + value * SIDE, 1)

    def y(value: float) -> float:
        return round(low - value * SIDE, 1)

    parts = []
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{x(1)}" y1="{y(tick)}" y2="{y(tick)}"/><text class="tick" x="{LEFT - 8}" y="{y(tick) + 4}" text-anchor="end">{tick:g}</text>')
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
    parts.append(f'<text class="label" x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">share that is right</text>')
    return f'<svg class="square" viewBox="0 0 {LEFT + SIDE + 14} {low + BOTTOM}" role="img" aria-label="{told}">{"".join(parts)}</svg>'

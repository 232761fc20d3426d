"""A confusion matrix as SVG: rows are the true classes, columns what was said, the darker the larger the share of the row."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

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
        parts.append(f'<text class="name" x="{left - 8:g}" y="{top + cell * (at + 0.5) + 4:g}" text-anchor="end">{escape(name)}</text>')
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

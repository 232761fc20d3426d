"""The frontier of reward and KL divergence: what each method reaches, and how far from the first model it goes for it.

Gao et al. 2023, "Scaling Laws for Reward Model Overoptimization", arxiv.org/abs/2210.10760, figure 1, compare methods so: at the
same distance, or for the same reward. A ring is one seed, a dot the mean over the seeds, the line joins the means that no
other beats in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pipelines.plots import LETTER, WIDTH, Scale, free_places, pareto, svg, x_axis, y_axis


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
    places = free_places([(x(kl), y(reward)) for kl, reward in means], [LETTER * len(name) for name in names], (left, top, right, bottom))
    for at, (method, (kl, reward)) in enumerate(zip(methods, means, strict=True)):
        rings = "".join(f'<circle class="seed" cx="{x(one)}" cy="{y(other)}" r="3.5"/>' for one, other in method.seeds if len(method.seeds) > 1)
        kind = "on-front" if at in front else "off-front"
        title = f"{escape(method.name)}: reward {reward:.4g} at {kl:.3g} nats, {len(method.seeds)} seed{'s' if len(method.seeds) != 1 else ''}"
        parts.append(f'<g class="{kind}"><title>{title}</title>{rings}<circle class="mean" cx="{x(kl)}" cy="{y(reward)}" r="5"/></g>')
    if start is not None:
        parts.append(f'<g class="reference"><title>the model it is held against: reward {start:.4g}</title><circle class="mean" cx="{x(0.0)}" cy="{y(start)}" r="5"/></g>')
    parts += [f'<text class="name" x="{x0:g}" y="{y0:g}">{escape(name)}</text>' for (x0, y0), name in zip(places, names, strict=True)]
    return svg(height, parts, "mean reward against KL divergence, with the frontier")

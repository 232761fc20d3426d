"""The learning curves of a publication as one picture, `curves.png`, which its card shows.

A PNG and no SVG: the Hub shows it in a card wherever the card is read. Its bytes depend on the curves and on matplotlib
alone, so that what is published again is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.core.files import whole_file

if TYPE_CHECKING:
    from pipelines.reports.results import Points

FILE = "curves.png"
WIDTH, HEIGHT = 6.0, 2.6
"""Inches of the panel of one stage."""


def write_curves(folder: Path, stages: Mapping[str, Path]) -> str:
    """Draw the stages that trained, by id, each in its folder; returns what the picture shows, for those who do not
    see it. Empty, and no file, where no stage kept a curve of at least two points."""
    from pipelines.reports.results import read_curves

    curves = {stage: read_curves(place) for stage, place in stages.items()}
    drawn = {stage: each for stage, each in curves.items() if len(each[0]) > 1 or each[1]}
    if not drawn:
        return ""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT * len(drawn)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for row, (stage, (loss, held_out)) in enumerate(drawn.items(), start=1):
        axes = figure.add_subplot(len(drawn), 1, row)
        lines = [axes.plot(*_columns(loss), color="C0", label="training loss")[0]] if loss else []
        scores = {name: points for name, points in held_out.items() if name != "loss"}
        if "loss" in held_out:
            lines += axes.plot(*_columns(held_out["loss"]), color="C1", marker="o", markersize=3, label="held-out loss")
        axes.set_ylabel("loss")
        if scores:
            right = axes.twinx()
            right.set_ylabel("held-out score")
            for number, (name, points) in enumerate(scores.items(), start=2):
                lines += right.plot(
                    *_columns(points), color=f"C{number}", linestyle="--", marker="o", markersize=3, label=name
                )
        axes.set_title(stage, loc="left", fontsize=10, parse_math=False)
        axes.set_xlabel("step")
        axes.grid(visible=True, alpha=0.25)
        axes.legend(handles=lines, fontsize=7, loc="best")
    with whole_file(folder / FILE) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})
    return "; ".join(f"{stage}: {_words(*each)}" for stage, each in drawn.items())


def _columns(points: Points) -> tuple[list[float], list[float]]:
    """(steps, values)"""
    return [step for step, _ in points], [value for _, value in points]


def _words(loss: Points, held_out: Mapping[str, Points]) -> str:
    shown = {"training loss": loss} if loss else {}
    shown |= {f"held-out {name}": points for name, points in held_out.items()}
    ends = (f"{name} from {points[0][1]:.3g} to {points[-1][1]:.3g}" for name, points in shown.items())
    return f"{', '.join(ends)} at step {max(points[-1][0] for points in shown.values()):g}"

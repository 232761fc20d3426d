"""How a run of PPO went: its reward, KL and other signs over the iterations, and what the policy wrote at first and at last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines import plots
from pipelines.events import read_events

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
    """Each sign of a ppo stage by iteration, as the run's events tell it; of a stage that was done twice, the last time."""
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
        shown = [name for name in names if len(found.get(name, ())) > 1 and not (name in STEADY and len({value for _, value in found[name]}) == 1)]
        if shown:
            lines = [line for name in shown for line in _lines(name, found[name])]
            drawn.append({"title": title, "plot": plots.lines(lines, "iteration", label)})
    return drawn


def _lines(name: str, points: Points) -> list[plots.Line]:
    """The sign itself, and its running mean where there are many iterations."""
    window = len(points) // SMOOTHED
    if window < 2:
        return [plots.Line(name, points)]
    return [plots.Line(name, _thinned(points)), plots.Line(f"{name}, mean of {window}", _thinned(running_mean(points, window)))]


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

"""What came out of a run: scores beside the baselines, where the checkpoint lies, what to try next.

Everything is read from the run folder: `stages/NN-id/metrics.json` and `details.json` of the evaluate stages,
`publication.json` of the publish stages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.scores import SMALLER_IS_BETTER, better, is_score
from service.cli.progress import number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

OPPONENTS = {
    "majority": "the majority class",
    "naive_bayes": "naive Bayes",
    "naive_bayes_pairs": "naive Bayes on word pairs",
    "unigram": "a unigram model",
    "bigram": "a bigram model",
}
BASELINE_NAMES = {
    "majority": "majority class",
    "naive_bayes": "naive Bayes (words)",
    "naive_bayes_pairs": "naive Bayes (word pairs)",
    "unigram": "unigram model",
    "bigram": "bigram model",
}
"""How the baselines are called where people read."""


@dataclass(frozen=True)
class Score:
    """What one model reached on one benchmark."""

    benchmark: str
    model: str
    """Id of the stage that trained it."""
    metrics: dict[str, float]
    """The first is the one to compare by."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """95 % intervals, by metric."""
    stage: str = ""
    """The evaluate stage that measured it."""

    @property
    def main(self) -> str:
        """Name of the metric to compare by."""
        return next(iter(self.metrics))


@dataclass(frozen=True)
class Outcome:
    """What a complete run left behind."""

    scores: tuple[Score, ...] = ()
    baselines: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """By benchmark, then by baseline: the metrics."""
    published: tuple[str, ...] = ()
    """Locations of the published checkpoints."""
    models: tuple[Path, ...] = ()
    """Folders of the trained models in the run folder, the last one last."""
    notes: tuple[str, ...] = ()
    """What a reader of the scores should know."""

    def as_data(self) -> dict[str, Any]:
        """As `--json` tells it."""
        return {
            "scores": [
                {
                    "benchmark": score.benchmark,
                    "model": score.model,
                    "stage": score.stage,
                    "metrics": _finite(score.metrics),
                    "intervals": {metric: list(interval) for metric, interval in score.intervals.items()},
                }
                for score in self.scores
            ],
            "baselines": {
                name: {each: _finite(values) for each, values in found.items()}
                for name, found in self.baselines.items()
            },
            "comparisons": comparisons(self),
            "published": list(self.published),
        }


def collect(folder: Path, stages: Sequence[tuple[str, str]]) -> Outcome:
    """Read what the stages of a recipe, given as (id, kind), left in a run folder."""
    scores: list[Score] = []
    baselines: dict[str, dict[str, dict[str, float]]] = {}
    published: list[str] = []
    models: list[Path] = []
    notes: list[str] = []
    for position, (id, kind) in enumerate(stages, start=1):
        place = folder / "stages" / f"{position:02d}-{id}"
        if kind == "evaluate":
            measured = outcome_of(_read(place / "metrics.json"), _read(place / "details.json"), id)
            scores += measured.scores
            notes += measured.notes
            for benchmark, found in measured.baselines.items():
                baselines.setdefault(benchmark, {}).update({name: dict(values) for name, values in found.items()})
        elif kind == "publish" and (location := _read(place / "publication.json").get("location")):
            published.append(str(location))
        elif (place / "model").is_dir():
            models.append(place / "model")
    return Outcome(tuple(scores), baselines, tuple(published), tuple(models), tuple(notes))


def outcome_of(metrics: Mapping[str, Any], details: Mapping[str, Any], stage: str) -> Outcome:
    """What one evaluate stage measured, by the contents of its `metrics.json` and `details.json`."""
    scores: list[Score] = []
    baselines: dict[str, dict[str, dict[str, float]]] = {}
    for benchmark, values in metrics.items():
        reached = {name: value for name, value in _numbers(values).items() if is_score(name)}
        if not reached:
            continue
        detail = _mapping(details.get(benchmark))
        scores.append(
            Score(benchmark, str(detail.get("model") or stage), reached, _intervals(detail.get("intervals")), stage)
        )
        for name, found in _mapping(detail.get("baselines")).items():
            if numbers := _numbers(found):
                baselines.setdefault(benchmark, {})[name] = numbers
    missing = _mapping(details.get("glue")).get("missing")
    notes = (f"The GLUE score needs nine tasks; not scored: {', '.join(missing)}.",) if missing else ()
    return Outcome(tuple(scores), baselines, notes=notes)


def comparisons(outcome: Outcome) -> list[str]:
    """One sentence a benchmark: does the best model beat the strongest of the guessers?"""
    return [sentence for benchmark in _benchmarks(outcome) if (sentence := compare(outcome, benchmark))]


def compare(outcome: Outcome, benchmark: str) -> str:
    """The honest sentence about one benchmark; empty when there is nothing to compare with."""
    scores = [score for score in outcome.scores if score.benchmark == benchmark]
    baselines = outcome.baselines.get(benchmark, {})
    if not scores or not baselines:
        return ""
    metric = scores[0].main
    rival = max(baselines, key=lambda name: _worth(metric, baselines[name].get(metric, math.nan)))
    comparable = [score for score in scores if not math.isnan(score.metrics.get(metric, math.nan))]
    bar = baselines[rival].get(metric, math.nan)
    if not comparable or math.isnan(bar):
        return ""
    best = max(comparable, key=lambda score: _worth(metric, score.metrics[metric]))
    reached = best.metrics[metric]
    against = f"{metric} {number(reached)} against {number(bar)}"
    opponent = OPPONENTS.get(rival, rival)
    whose = f"'{best.model}'"
    if not better(metric, reached, bar):
        return f"On {benchmark}, {whose} does not beat {opponent}: {against}."
    around = best.intervals.get(metric)
    if around is None:
        return (
            f"On {benchmark}, {whose} is ahead of {opponent}: {against}, without an interval to judge the difference "
            "by."
        )
    if around[0] <= bar <= around[1]:
        return f"On {benchmark}, {whose} is ahead of {opponent}, but within its 95 % interval: {against}."
    return f"On {benchmark}, {whose} beats {opponent}: {against}."


def show(outcome: Outcome, folder: Path, again: str, console: Console | None = None) -> None:
    """Print the summary on stdout."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = console or Console(highlight=False)
    for benchmark in _benchmarks(outcome):
        console.print()
        width = console.width
        needed, table = _fitting(outcome, benchmark, console)
        console.width = max(width, needed)  # a narrow terminal wraps the lines; a number is never cut
        console.print(table)
        console.width = width
        if sentence := compare(outcome, benchmark):
            console.print()
            console.print(Padding(Text(sentence), (0, 0, 0, 2)))
    for each in outcome.notes:
        console.print()
        console.print(Padding(Text(each), (0, 0, 0, 2)))
    console.print()
    for label, text, note in lines(outcome, folder, again):
        line = Text(f"  {label:<12}", style="bold").append(text, style="not bold")
        console.print(
            line.append(f"   {note}" if note else "", style="not bold dim"), soft_wrap=True
        )  # to be copied whole


def _fitting(outcome: Outcome, benchmark: str, console: Console) -> tuple[int, Padding]:
    """(its width, the table): a row a model, or a row a metric where only that fits, or fits better."""
    from rich.padding import Padding

    found = []
    for made in (scores_table, metrics_table):
        table = Padding(made(outcome, benchmark), (0, 0, 0, 2), expand=False)
        found.append((console.measure(table, options=console.options.update(max_width=1000)).maximum, table))
        if found[-1][0] <= console.width:
            return found[-1]
    return min(found, key=lambda each: each[0])


def scores_table(outcome: Outcome, benchmark: str) -> Table:
    """One row a model, the best one bold, then the baselines."""
    from rich import box
    from rich.table import Table

    scores = [score for score in outcome.scores if score.benchmark == benchmark]
    metrics = list(dict.fromkeys(metric for score in scores for metric in score.metrics))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    table.add_column(benchmark, header_style="bold", overflow="fold")
    for metric in metrics:
        table.add_column(metric, justify="right", no_wrap=True)
        if any(metric in score.intervals for score in scores):
            table.add_column("95 % interval", no_wrap=True, style="dim")
    best = max(scores, key=lambda score: _worth(metrics[0], score.metrics.get(metrics[0], math.nan)))
    repeated = {score.model for score in scores if sum(score.model == other.model for other in scores) > 1}
    for score in scores:
        name = f"{score.model} ({score.stage})" if score.model in repeated else score.model
        row = [name]
        for metric in metrics:
            row.append(number(score.metrics[metric]) if metric in score.metrics else "")
            if any(metric in other.intervals for other in scores):
                interval = score.intervals.get(metric)
                row.append(f"{number(interval[0])} – {number(interval[1])}" if interval else "")
        table.add_row(*row, style="bold" if score is best and len(scores) > 1 else None)
    for name, values in outcome.baselines.get(benchmark, {}).items():
        row = [BASELINE_NAMES.get(name, name)]
        for metric in metrics:
            row.append(number(values[metric]) if metric in values else "")
            if any(metric in other.intervals for other in scores):
                row.append("")
        table.add_row(*row, style="dim")
    return table


def metrics_table(outcome: Outcome, benchmark: str) -> Table:
    """The same turned on its side: one row a metric, the models and baselines beside each other."""
    from rich import box
    from rich.table import Table

    scores = [score for score in outcome.scores if score.benchmark == benchmark]
    baselines = outcome.baselines.get(benchmark, {})
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    table.add_column(benchmark, header_style="bold", no_wrap=True)
    repeated = {score.model for score in scores if sum(score.model == other.model for other in scores) > 1}
    for score in scores:
        table.add_column(
            f"{score.model} ({score.stage})" if score.model in repeated else score.model, justify="right", no_wrap=True
        )
        if score.intervals:
            table.add_column("95 % interval", no_wrap=True, style="dim")
    for name in baselines:
        table.add_column(BASELINE_NAMES.get(name, name), justify="right", no_wrap=True, style="dim")
    for metric in dict.fromkeys(metric for score in scores for metric in score.metrics):
        row = [metric]
        for score in scores:
            row.append(number(score.metrics[metric]) if metric in score.metrics else "")
            if score.intervals:
                interval = score.intervals.get(metric)
                row.append(f"{number(interval[0])} – {number(interval[1])}" if interval else "")
        row += [number(values[metric]) if metric in values else "" for values in baselines.values()]
        table.add_row(*row)
    return table


def lines(outcome: Outcome, folder: Path, again: str) -> list[tuple[str, str, str]]:
    """Where things lie, and what to type next: label, text, note."""
    told: list[tuple[str, str, str]] = []
    for location in outcome.published:
        told.append(("Published", location, ""))
    if not outcome.published and outcome.models:
        told.append(("Model", str(outcome.models[-1]), ""))
    told.append(("Run folder", str(folder), ""))
    cards = [card for each in outcome.published if (card := Path(each) / "README.md").is_file()]
    commands = [(f"less {cards[-1]}", "its scores, and the two lines that load it")] if cards else []
    commands.append((again, "once more: what is complete is reused"))
    commands.append(("finery init YOUR.csv", "a recipe from the columns of your own file"))
    return [*told, *(("Next" if first == 0 else "", *command) for first, command in enumerate(commands))]


def _worth(metric: str, value: float) -> float:
    """A score as a number that is larger when it is better; what is not a number is worth nothing."""
    if math.isnan(value):
        return -math.inf
    return -value if metric in SMALLER_IS_BETTER else value


def _benchmarks(outcome: Outcome) -> list[str]:
    return list(dict.fromkeys(score.benchmark for score in outcome.scores))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _numbers(values: Any) -> dict[str, float]:
    """What is a number; `"nan"`, as JSON files carry it, included."""
    found = {}
    for name, value in _mapping(values).items():
        try:
            if not isinstance(value, bool):
                found[name] = float(value)
        except (TypeError, ValueError):
            continue
    return found


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN: what is not a number is null."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _intervals(values: Any) -> dict[str, tuple[float, float]]:
    found = {}
    for name, pair in _mapping(values).items():
        try:
            low, high = (float(value) for value in pair)
        except (TypeError, ValueError):
            continue
        if math.isfinite(low) and math.isfinite(high):
            found[name] = (low, high)
    return found

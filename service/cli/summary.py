"""What came out of a run: scores beside the baselines, where the checkpoint lies, what to try next.

Everything is read from the run folder by `pipelines.core.results`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.files import read_json
from pipelines.core.results import EVALUATIONS, BenchmarkScores, published_at, scores_in, stage_folders, strongest
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
class RunSummary:
    """What a complete run left behind."""

    scores: tuple[BenchmarkScores, ...] = ()
    published: tuple[str, ...] = ()
    """Locations of the published checkpoints."""
    models: tuple[Path, ...] = ()
    """Folders of the trained models in the run folder, the last one last."""
    notes: tuple[str, ...] = ()
    """What a reader of the scores should know."""

    @property
    def baselines(self) -> dict[str, dict[str, dict[str, float]]]:
        """By benchmark, then by baseline: the metrics; a later evaluate stage replaces those of an earlier one."""
        baselines: dict[str, dict[str, dict[str, float]]] = {}
        for score in self.scores:
            if score.baselines:
                baselines.setdefault(score.benchmark, {}).update(score.baselines)
        return baselines

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
                name: {each: _finite(values) for each, values in by_baseline.items()}
                for name, by_baseline in self.baselines.items()
            },
            "comparisons": comparisons(self),
            "published": list(self.published),
        }


def collect(folder: Path, stages: Sequence[tuple[str, str]]) -> RunSummary:
    """Read what the stages of a recipe, given as (id, kind), left in a run folder."""
    scores: list[BenchmarkScores] = []
    published: list[str] = []
    models: list[Path] = []
    notes: list[str] = []
    for (id, kind), place in zip(stages, stage_folders(folder, [id for id, _ in stages]).values(), strict=True):
        if kind in EVALUATIONS:
            outcome = outcome_of(read_json(place / "metrics.json"), read_json(place / "details.json"), id)
            scores += outcome.scores
            notes += outcome.notes
        elif kind == "publish" and (location := published_at(place)) is not None:
            published.append(location)
        elif (place / "model").is_dir():
            models.append(place / "model")
    return RunSummary(tuple(scores), tuple(published), tuple(models), tuple(notes))


def outcome_of(metrics: Mapping[str, Any], details: Mapping[str, Any], stage: str) -> RunSummary:
    """What one evaluate stage measured, by the contents of its `metrics.json` and `details.json`."""
    missing = (details.get("glue") or {}).get("missing")
    notes = (f"The GLUE score needs nine tasks; not scored: {', '.join(missing)}.",) if missing else ()
    return RunSummary(tuple(scores_in(metrics, details, stage)), notes=notes)


def comparisons(outcome: RunSummary) -> list[str]:
    """One sentence a benchmark: does the best model beat the strongest of the guessers?"""
    return [sentence for benchmark in _benchmarks(outcome) if (sentence := compare(outcome, benchmark))]


def compare(outcome: RunSummary, benchmark: str) -> str:
    """The honest sentence about one benchmark; empty when there is nothing to compare with."""
    scores = [score for score in outcome.scores if score.benchmark == benchmark]
    baselines = outcome.baselines.get(benchmark, {})
    if not scores or not baselines:
        return ""
    metric = scores[0].main
    rival = strongest(metric, baselines)
    best = _best(scores, metric)
    if rival is None or math.isnan(best.metrics.get(metric, math.nan)):
        return ""
    name, bar = rival
    against = f"{metric} {number(best.metrics[metric])} against {number(bar)}"
    opponent = OPPONENTS.get(name, name)
    whose = f"'{best.model}'"
    return {
        "behind": f"On {benchmark}, {whose} does not beat {opponent}: {against}.",
        "ahead": f"On {benchmark}, {whose} is ahead of {opponent}: {against}, "
        "without an interval to judge the difference by.",
        "within the interval": f"On {benchmark}, {whose} is ahead of {opponent}, but within its 95 % interval: "
        f"{against}.",
        "better": f"On {benchmark}, {whose} beats {opponent}: {against}.",
    }[best.standing(bar)]


def _best(scores: Sequence[BenchmarkScores], metric: str) -> BenchmarkScores:
    """The model with the best `metric`, the first of equal ones; one without it only where none has it."""
    best = strongest(metric, {str(at): score.metrics for at, score in enumerate(scores)})
    return scores[0] if best is None else scores[int(best[0])]


def show(outcome: RunSummary, folder: Path, again: str, console: Console | None = None) -> None:
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
        # to be copied whole
        console.print(line.append(f"   {note}" if note else "", style="not bold dim"), soft_wrap=True)


def _fitting(outcome: RunSummary, benchmark: str, console: Console) -> tuple[int, Padding]:
    """(its width, the table): a row a model, or a row a metric where only that fits, or fits better."""
    from rich.padding import Padding

    tables = []
    for made in (scores_table, metrics_table):
        table = Padding(made(outcome, benchmark), (0, 0, 0, 2), expand=False)
        tables.append((console.measure(table, options=console.options.update(max_width=1000)).maximum, table))
        if tables[-1][0] <= console.width:
            return tables[-1]
    return min(tables, key=lambda each: each[0])


def scores_table(outcome: RunSummary, benchmark: str) -> Table:
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
    best = _best(scores, metrics[0])
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


def metrics_table(outcome: RunSummary, benchmark: str) -> Table:
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


def lines(outcome: RunSummary, folder: Path, again: str) -> list[tuple[str, str, str]]:
    """Where things lie, and what to type next: label, text, note."""
    rows: list[tuple[str, str, str]] = []
    published = [_from_here(location) for location in outcome.published]
    for location in published:
        rows.append(("Published", location, ""))
    if not outcome.published and outcome.models:
        rows.append(("Model", str(outcome.models[-1]), ""))
    rows.append(("Run folder", str(folder), ""))
    profile = Path(folder) / "profile.html"
    if profile.is_file():
        rows.append(("Profile", str(profile), ""))
    cards = [card for each in published if (card := Path(each) / "README.md").is_file()]
    commands = [(f"less {cards[-1]}", "its scores, and the two lines that load it")] if cards else []
    commands.append((again, "once more: what is complete is reused"))
    commands.append(("finery init YOUR.csv", "a recipe from the columns of your own file"))
    return [*rows, *(("Next" if first == 0 else "", *command) for first, command in enumerate(commands))]


def _from_here(location: str) -> str:
    """A folder inside the working folder as it is named from there."""
    place = Path(location)
    return str(place.relative_to(Path.cwd())) if place.is_relative_to(Path.cwd()) else location


def _benchmarks(outcome: RunSummary) -> list[str]:
    return list(dict.fromkeys(score.benchmark for score in outcome.scores))


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN: what is not a number is null."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}

"""The table of a study, and of a comparison, on a terminal, from plain data as `study.json` holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.progress import duration, number
from service.cli.publish import size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STYLES = {"reference": "bold", "better": "green", "worse": "red", "confirmed": "green", "refuted": "red"}


def show(data: Mapping[str, Any], folder: Path, console: Console | None = None) -> None:
    """Print the table of a study, what came of its hypotheses, what is missing, and where everything lies."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = console or Console(highlight=False)
    for overview in data.get("overviews", ()):
        console.print()
        _whole(console, Padding(overview_table(overview, data["reference"]), (0, 0, 0, 2), expand=False))
    for heading, rows in blocks(data):
        console.print()
        _whole(console, Padding(study_table(heading, rows, data["reference"]), (0, 0, 0, 2), expand=False))
    if data.get("hypotheses"):
        console.print()
        _whole(console, Padding(expected_table(data["hypotheses"]), (0, 0, 0, 2), expand=False))
    console.print()
    console.print(Text(f"  {counts(data)}"))
    if data.get("budget"):
        console.print(Text(f"  {data['budget']['sentence']}"), soft_wrap=True)
    reasons: dict[str, list[str]] = {}
    for cell in data["cells"]:
        if cell["status"] in ("failed", "refused"):
            reasons.setdefault(f"{cell['status']}: {cell['message']}", []).append(cell["cell"])
    for reason, cells in list(reasons.items())[:5]:
        console.print(
            Text(f"  {', '.join(cells[:6])}{', …' if len(cells) > 6 else ''} {reason}", style="dim"), soft_wrap=True
        )
    for label, path in (
        ("Report", folder / "report.html"),
        ("Tables", folder / "table.csv"),
        ("Summary", folder / "README.md"),
    ):
        console.print(Text(f"  {label:<12}", style="bold").append(str(path), style="not bold"), soft_wrap=True)


def overview_table(overview: Mapping[str, Any], reference: str | None) -> Table:
    """One row a method, one column a task, and their mean."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    table.add_column(", ".join(overview["labels"].values()) or "at a glance", header_style="bold", no_wrap=True)
    averaged = any(line["mean"] for line in overview["lines"])
    for name in (
        *overview["columns"],
        *(["mean"] if averaged else []),
        *([f"against {reference}, 95 %"] if averaged and reference else []),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for line in overview["lines"]:
        mean = line["mean"]
        cells = [_short(each) for each in line["scores"]]
        if averaged:
            cells.append("" if mean is None else _marked(_mean_sd(mean), mean["verdict"]))
        if averaged and reference:
            cells.append(
                ""
                if mean is None
                else _against({"reference": mean["verdict"] == "reference", "verdict": mean["verdict"]}, mean)
            )
        table.add_row(line["name"], *cells)
    return table


def _short(score: Mapping[str, Any] | None) -> str:
    """`0.846 ± 0.004 (+0.012)`, green or red outside the noise."""
    if score is None:
        return ""
    apart = score["difference"]
    return _marked(_mean_sd(score) + (f" ({apart['value']:+.3f})" if apart else ""), score["verdict"])


def _marked(text: str, verdict: str) -> str:
    return f"[{STYLES[verdict]}]{text}[/]" if verdict in ("better", "worse") else text


def _mean_sd(figure: Mapping[str, Any]) -> str:
    return number(figure["mean"]) + (f" ± {figure['sd']:.3f}" if figure["sd"] is not None else "")


def blocks(data: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """(heading, rows) that are read together: one benchmark, the same entries of every key but the compared one."""
    grouped: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    benchmarks: dict[tuple[str, ...], str] = {}
    for row in data["rows"]:
        outer = tuple(text for name, text in row["labels"].items() if name != data["compared"])
        if row["benchmark"]:
            benchmarks.setdefault(outer, row["benchmark"])
    for row in data["rows"]:
        outer = tuple(text for name, text in row["labels"].items() if name != data["compared"])
        grouped.setdefault((row["benchmark"] or benchmarks.get(outer, ""), *outer), []).append(row)
    return [(", ".join(part for part in key if part), rows) for key, rows in grouped.items()]


def study_table(heading: str, rows: Sequence[Mapping[str, Any]], reference: str | None) -> Table:
    """One row a method."""
    from rich import box
    from rich.table import Table

    metric = next((row["metric"] for row in rows if row["metric"]), "score")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    table.add_column(heading or "results", header_style="bold", no_wrap=True)
    for name in (
        "seeds",
        metric,
        "95 % interval",
        *([f"against {reference}", "p"] if reference else []),
        "learns",
        "memory",
        "training",
        "on disk",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, metric, reference), style=STYLES.get(row["verdict"]))
    return table


def _cells(row: Mapping[str, Any], metric: str, reference: str | None) -> list[str]:
    done = row["counts"].get("done", 0) + row["counts"].get("reused", 0)
    figure = row["metrics"].get(metric)
    if figure is None:
        status = max(row["counts"], key=lambda each: int(row["counts"][each])).replace("queued", "missing")
        return [row["name"], f"0/{row['expected']}", status]
    costs, share = row["costs"], row["trainable_share"]
    return [
        row["name"],
        f"{done}/{row['expected']}" if done < row["expected"] else str(done),
        _mean_sd(figure),
        _pair(figure["interval"]),
        *([_against(row, figure), _p_of(row, figure)] if reference else []),
        "" if share is None else f"{share:.2%}",
        size(costs["peak_memory_bytes"]) if "peak_memory_bytes" in costs else "",
        duration(costs["train_runtime"]) if "train_runtime" in costs else "",
        size(costs["saved_bytes"]) if "saved_bytes" in costs else "",
    ]


def expected_table(hypotheses: Sequence[Mapping[str, Any]]) -> Table:
    """One row a hypothesis and benchmark."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    for name in ("expected", "where", "difference, 95 %", "p", "outcome"):
        table.add_column(name, no_wrap=True)
    for each in hypotheses:
        (one, other), (low, high) = each["names"], each["interval"]
        p = each["p_equivalent"] if each["expected"] == "equal" else each["p_corrected"]
        cells = [
            each["claim"],
            ", ".join((each["benchmark"], *each["labels"].values())),
            f"{one} less {other}: {each['difference']:+.3f} ({low:+.3f} to {high:+.3f})",
            "" if p is None else p_value(p),
            each["outcome"] + (f": {' and '.join(each['lacks'])}" if each["lacks"] else ""),
        ]
        table.add_row(*map(Text, cells), style=STYLES.get(each["outcome"]))
    return table


def _against(row: Mapping[str, Any], figure: Mapping[str, Any]) -> str:
    if row["reference"]:
        return "reference"
    difference = figure["difference"]
    if difference is None:
        return "not comparable"
    low, high = difference["interval"]
    noise = "  noise" if row["verdict"] == "inside the noise" or not difference["clear"] else ""
    return f"{difference['value']:+.3f} ({low:+.3f} to {high:+.3f}){noise}"


def _p_of(row: Mapping[str, Any], figure: Mapping[str, Any]) -> str:
    """The p-value of the difference, corrected for the study's comparisons where that was done."""
    p = row.get("p_corrected")
    if p is None and figure["difference"] is not None:
        p = figure["difference"].get("p")
    return "" if p is None or row["reference"] else p_value(p)


def counts(data: Mapping[str, Any]) -> str:
    """`5 of 6 cells are done; 1 refused.`"""
    counts = data["counts"]
    rest = [
        f"{count} {status.replace('queued', 'missing')}"
        for status, count in counts.items()
        if count and status != "done"
    ]
    return f"{counts['done']} of {sum(counts.values())} cells are done{'; ' + ', '.join(rest) if rest else ''}."


def show_comparison(data: Mapping[str, Any], console: Console | None = None) -> None:
    """Print what `finery compare` found: one table a benchmark, the first run the reference."""
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = console or Console(highlight=False)
    for benchmark in data["benchmarks"]:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
        table.add_column(benchmark["benchmark"], header_style="bold", no_wrap=True)
        for metric in benchmark["metrics"]:
            table.add_column(metric, justify="right", no_wrap=True)
            table.add_column(f"against {benchmark['reference']}, 95 %", justify="right", no_wrap=True, style="dim")
        for each in benchmark["models"]:
            cells = [each["name"]]
            for metric in benchmark["metrics"]:
                figure = each["metrics"].get(metric)
                cells += ["", ""] if figure is None else [number(figure["value"]), _compared(each, figure)]
            table.add_row(*cells)
        console.print()
        _whole(console, Padding(table, (0, 0, 0, 2), expand=False))
        for sentence in benchmark["sentences"]:
            console.print(Text(f"  {sentence}"), soft_wrap=True)
        if any(_p_values(each, data["tests"]) for each in benchmark["models"]):
            console.print()
            _whole(console, Padding(_tests_table(benchmark, data), (0, 0, 0, 2), expand=False))
    for warning in data["warnings"]:
        console.print(Text(f"  warning: {warning}", style="yellow"), soft_wrap=True)
    for note in data["notes"]:
        console.print(Text(f"  {note}", style="dim"), soft_wrap=True)


TEST_NAMES = {
    "bootstrap": "paired bootstrap",
    "randomisation": "approximate randomisation",
    "mcnemar": "McNemar, exact",
}
CORRECTION_NAMES = {"holm": "Holm", "bh": "Benjamini-Hochberg", "none": ""}


def _p_values(model: Mapping[str, Any], tests: Sequence[str]) -> list[str]:
    """The p-value of each test on the main score, corrected behind it; empty for the reference."""
    figure = next(iter(model["metrics"].values()), None)
    difference = figure["difference"] if figure else None
    if difference is None:
        return []
    texts = []
    for test in tests:
        alone, together = difference["p"].get(test), (difference["corrected"] or {}).get(test)
        texts.append(
            "" if alone is None else p_value(alone) + ("" if together in (None, alone) else f" → {p_value(together)}")
        )
    split = model["mcnemar"]
    return [*texts, "" if split is None else f"{split['only_here']} : {split['only_reference']}"]


def _tests_table(benchmark: Mapping[str, Any], data: Mapping[str, Any]) -> Table:
    """The p-values of every model's main score."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    how = CORRECTION_NAMES[data["correction"]]
    behind = f", → {how} for {data['comparisons']}" if how and data["comparisons"] > 1 else ""
    table.add_column(f"p-values, {benchmark['metrics'][0]}{behind}", no_wrap=True)
    for test in data["tests"]:
        table.add_column(TEST_NAMES[test], justify="right", no_wrap=True)
    table.add_column("right where the other is wrong", justify="right", no_wrap=True)
    for each in benchmark["models"]:
        if cells := _p_values(each, data["tests"]):
            table.add_row(each["name"], *cells)
    return table


def p_value(value: float) -> str:
    """`0.032`, `< 0.001`."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _compared(model: Mapping[str, Any], figure: Mapping[str, Any]) -> str:
    if model["reference"]:
        return "reference"
    difference = figure["difference"]
    return (
        "not comparable"
        if difference is None
        else f"{difference['value']:+.3f} ({difference['interval'][0]:+.3f} to {difference['interval'][1]:+.3f})"
    )


def _pair(pair: Sequence[float] | None) -> str:
    return f"{number(pair[0])} – {number(pair[1])}" if pair else ""


def _whole(console: Console, renderable: Any) -> None:
    """A narrow terminal wraps the lines; a number is never cut."""
    width, needed = console.width, console.measure(renderable, options=console.options.update(max_width=1000)).maximum
    console.width = max(width, needed)
    console.print(renderable)
    console.width = width

"""A study's table and what it says, as Markdown: the `README.md` of its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.core.files import JSONObject
from pipelines.core.pages import count, seconds, size
from pipelines.core.scores import smaller_is_better
from pipelines.core.study_cells import named, told
from pipelines.metrics.statistics import NAMES, shown
from pipelines.studies.hypotheses import HEAD, TestedHypothesis
from pipelines.studies.overview import MEAN, Overview
from pipelines.studies.table import Figure, StudyRow, blocks

MARKS = {"better": " ▲", "worse": " ▼", "equivalent": " ="}
"""Behind a score that differs from the reference outside the noise, or is equivalent to its."""


def readme(
    data: JSONObject,
    rows: Sequence[StudyRow],
    overviews: Sequence[Overview] = (),
    tested: Sequence[TestedHypothesis] = (),
) -> str:
    """The whole page."""
    text = [f"# {data['name']}", "", summary_line(data), ""]
    text += [data["budget"]["sentence"], ""] if data.get("budget") else []
    reference = data["reference"]
    if tested:
        text += ["## What was expected", "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
        text += ["| " + " | ".join(each.cells()) + " |" for each in tested] + [""]
    for overview in overviews:
        head, *lines = ([text for text, _ in line] for line in glance(overview, reference))
        text += [
            f"## {glance_heading(overview)}",
            "",
            "| " + " | ".join(head) + " |",
            "|---" + "|---:" * (len(head) - 1) + "|",
        ]
        text += ["| " + " | ".join(line) + " |" for line in lines] + ["", glance_key(overview, reference), ""]
    for labels, benchmark, block in blocks(data, rows):
        title, best = heading(labels, benchmark), headline(block, reference)
        text += [f"## {title}", ""] if title else []
        text += [best, ""] if best else []
        text += [*table(block, reference), ""]
        text += [f"- {each}" for row in block if (each := sentence(row, reference, family(data)))]
        text += [""]
    text += notes(data)
    text += [
        "Means are over training seeds, with their standard deviation. Intervals are 95 %: over the evaluation "
        "examples (paired bootstrap,",
        "the same resampled examples for every method) and over seeds (Student's t). Memory is the peak of the "
        "training process;",
        "on the disk is what the stage saved in weights. `table.csv` and `table.parquet` hold every metric, "
        "`report.html` the plots.",
        "",
    ]
    return "\n".join(text)


def glance_heading(overview: Overview) -> str:
    """`4 tasks at a glance (encoder bert-mini)`."""
    rest = named(overview.labels)
    return f"{len(overview.columns)} tasks at a glance" + (f" ({rest})" if rest else "")


def glance(overview: Overview, reference: str | None) -> list[list[tuple[str, str]]]:
    """The head and the lines of an overview: the text of each cell, and its verdict."""
    heads = [f"{column} {metric}" for column, metric in zip(overview.columns, overview.metrics, strict=True)]
    lines_of_cells = [[("", ""), *((each, "") for each in heads)]]
    if overview.averaged:
        lines_of_cells[0] += [(MEAN, ""), *([(f"against {reference}, 95 %", ""), ("p", "")] if reference else [])]
    for line in overview.lines:
        cells = [(line.name, "")]
        for row in line.rows:
            cells.append(("", "") if row is None else (_short(row), row.verdict()))
        if overview.averaged:
            cells += [("", "")] * (3 if reference else 1) if line.mean is None else _of_mean(line.mean, reference)
        lines_of_cells.append(cells)
    return lines_of_cells


def _of_mean(mean: StudyRow, reference: str | None) -> list[tuple[str, str]]:
    figure = mean.figures[MEAN]
    cells = [(score(figure) + MARKS.get(mean.verdict(), ""), mean.verdict())]
    return cells + ([(difference(mean, figure), ""), (p_values(mean, figure), "")] if reference else [])


def _short(row: StudyRow) -> str:
    """`0.846 ± 0.004 (+0.012) ▲`."""
    figure = row.figures[str(row.main)]
    apart = "" if figure.difference is None else f" ({figure.difference.value:+.3f})"
    return score(figure) + apart + MARKS.get(row.verdict(), "")


def glance_key(overview: Overview, reference: str | None) -> str:
    """How the overview is read."""
    text = []
    if reference is not None:
        text.append(
            f"In brackets: the difference from {reference}; ▲ better and ▼ worse outside the noise, = "
            f"equivalent within "
            "the study's margin, everything else is inside the noise."
        )
    if overview.averaged:
        text.append("The mean is over the tasks, scores that run to 100 divided by it.")
    elif any(smaller_is_better(each) for each in overview.metrics):
        text.append("There is no mean, for not all scores run to a highest one.")
    return " ".join(text)


def family(data: JSONObject) -> str:
    """`Holm for 8 comparisons`; empty where nothing is corrected."""
    how, count = data.get("correction", "none"), data.get("comparisons", 0)
    return "" if how == "none" or count < 2 else f"{NAMES[how]} for {count} comparisons"


def heading(labels: Mapping[str, str], benchmark: str) -> str:
    """What a block of the table is about: `glue/sst2 (encoder bert-mini)`."""
    rest = named(labels)
    return (f"{benchmark} ({rest})" if rest else benchmark) if benchmark else rest


def best_first(rows: Sequence[StudyRow]) -> list[StudyRow]:
    """Rows with a result, by their score."""
    able = [row for row in rows if row.main is not None]
    return sorted(
        able,
        key=lambda row: row.figures[str(row.main)].mean,
        reverse=bool(able) and not smaller_is_better(able[0].main),
    )


def headline(rows: Sequence[StudyRow], reference: str | None) -> str:
    """Which row has the best score, and whether that means anything; empty with fewer than two results."""
    order = best_first(rows)
    if len(order) < 2:
        return ""
    best = order[0]
    text = f"Highest {best.main}" if not smaller_is_better(best.main) else f"Lowest {best.main}"
    text += f": {best.name}, {score(best.figures[str(best.main)])}"
    verdict = best.verdict()
    if reference is not None and verdict:
        others = [row.name for row in order[1:] if row.verdict() == "better"]
        text += {
            "reference": "; no other is better than it outside the noise",
            "equivalent": f", equivalent to {reference} within {best.margin:g}" if best.margin else "",
            "better": f", better than {reference} outside the noise"
            + (f" (so are {', '.join(others)})" if others else ""),
        }.get(verdict, f", but its difference from {reference} is {verdict}")
        text += "" if verdict in ("better", "reference") or not others else f"; outside the noise: {', '.join(others)}"
    missing = sum(1 for row in rows if done(row) < row.expected)
    return text + (f". {missing} of {len(rows)} rows lack seeds." if missing else ".")


def done(row: StudyRow) -> int:
    """Cells of a row that have a result."""
    return row.counts.get("done", 0) + row.counts.get("reused", 0)


def fate(row: StudyRow) -> str:
    """What became of a row without any result: `failed`, `refused`, `missing`."""
    return max(row.counts, key=lambda each: row.counts[each]).replace("queued", "missing")


def summary_line(data: JSONObject) -> str:
    """How many cells are done, and what became of the others."""
    counts = data["counts"]
    total = sum(counts.values())
    rest = [f"{count} {status}" for status, count in counts.items() if count and status != "done"]
    missing = "; ".join(rest).replace("queued", "missing")
    return f"{counts['done']} of {total} cells are done{f'; {missing}' if missing else ''}."


def table(rows: Sequence[StudyRow], reference: str | None) -> list[str]:
    """Rows as a Markdown table."""
    metric = next((row.main for row in rows if row.main), "score") or "score"
    against = f"against {reference}, 95 %" if reference else ""
    head = [
        "",
        "seeds",
        metric,
        "95 %",
        *([against, "p"] if reference else []),
        "learns",
        "share",
        "peak memory",
        "training",
        "on the disk",
        *(["steps"] if budgeted(rows) else []),
    ]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return lines + ["| " + " | ".join(cells(row, reference, budgeted(rows))) + " |" for row in rows]


def budgeted(rows: Sequence[StudyRow]) -> bool:
    """Whether the budgets of these rows were matched."""
    return any(row.budget for row in rows)


def cells(row: StudyRow, reference: str | None, steps: bool = False) -> list[str]:
    """One row's cells, as text; with the `steps` that it trained, where budgets are matched."""
    ready = done(row)
    if not row.figures:
        return [
            row.name,
            f"0/{row.expected}",
            fate(row),
            "",
            *(["", ""] if reference else []),
            "",
            "",
            "",
            "",
            "",
            *([""] if steps else []),
        ]
    figure = row.figures[str(row.main)]
    return [
        row.name,
        f"{ready}/{row.expected}" if ready < row.expected else str(ready),
        score(figure),
        interval(figure.interval),
        *([difference(row, figure), p_values(row, figure)] if reference else []),
        count(row.costs.get("trainable_parameters")),
        "" if row.share is None else f"{row.share:.2%}" if row.share < 0.1 else f"{row.share:.1%}",
        size(row.costs.get("peak_memory_bytes")),
        seconds(row.costs.get("train_runtime")),
        size(row.costs.get("saved_bytes")),
        *([f"{row.costs['train_steps']:,.0f}" if "train_steps" in row.costs else ""] if steps else []),
    ]


def sentence(row: StudyRow, reference: str | None, corrected_by: str = "") -> str:
    """What the row's difference from the reference says; empty where there is none."""
    verdict = row.verdict()
    if verdict in ("", "reference") or reference is None or row.main is None:
        return ""
    gap = row.figures[row.main].difference
    assert gap is not None
    size_of = f"{gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"
    p_text = "" if gap.p is None else f" p {shown(gap.p)}"
    if p_text and corrected_by and row.p_corrected is not None:
        p_text += f", {shown(row.p_corrected)} after {corrected_by}"
    behind = f" ({p_text.strip()})" if p_text else ""
    if verdict == "inside the noise":
        return f"{row.name}: {row.main} {size_of} against {reference}, inside the noise{behind}."
    lacking = f" No claim: {' and '.join(row.lacks)}." if row.lacks else ""
    if verdict == "equivalent":
        return (
            f"{row.name}: equivalent to {reference} within {row.margin:g}, {row.main} {size_of} (two one-sided tests p "
            f"{shown(row.p_equivalent or 0.0)}{f' after {corrected_by}' if corrected_by else ''}).{lacking}"
        )
    clearly = "" if row.lacks else "clearly "
    return f"{row.name}: {clearly}{verdict} than {reference}, {row.main} {size_of}{behind}.{lacking}"


def notes(data: JSONObject) -> list[str]:
    """What was searched for, and every cell that has no result, with the reason."""
    text: list[str] = []
    if data["search"]:
        most = max(len(group["trials"]) for group in data["search"])
        scored_on = next((group["scored_on"] for group in data["search"] if group.get("scored_on")), "")
        text += [
            "## Search",
            "",
            f"At most {most} trials each, chosen on {scored_on or 'rows of train that were set aside'}; the reported "
            "split was not read.",
            "",
        ]
        for group in data["search"]:
            trials = [f"{told(each['values'])}: {_outcome(each)}" for each in group["trials"]]
            text.append(
                f"- {named(group['labels'])}: "
                + "; ".join(trials)
                + (f" ({group['edge']})" if group.get("edge") else "")
            )
        text.append("")
    missing = [cell for cell in data["cells"] if cell["status"] not in ("done", "reused")]
    if missing:
        text += ["## Cells without a result", ""]
        text += [
            f"- {named(cell['labels'])} ({cell['cell']}): "
            f"{cell['status']}{': ' + cell['message'] if cell['message'] else ''}"
            for cell in missing
        ]
        text.append("")
    return text


def _outcome(trial: JSONObject) -> str:
    if trial["score"] is None:
        return str(trial["status"] if trial["status"] != "failed" else trial["message"])
    return f"{'**' if trial['chosen'] else ''}{trial['metric']} {trial['score']:.3f}{'**' if trial['chosen'] else ''}"


def score(figure: Figure) -> str:
    """`0.846 ± 0.004`."""
    return f"{figure.mean:.3f}" + (f" ± {figure.sd:.3f}" if figure.sd is not None else "")


def interval(pair: tuple[float, float] | None) -> str:
    """`0.812 – 0.871`."""
    return f"{pair[0]:.3f} – {pair[1]:.3f}" if pair else ""


def difference(row: StudyRow, figure: Figure) -> str:
    """`-0.006 (-0.018 – +0.007)`."""
    if row.is_reference:
        return "reference"
    gap = figure.difference
    return f"{gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})" if gap else "not comparable"


def p_values(row: StudyRow, figure: Figure) -> str:
    """`0.012 → 0.048`: alone, and corrected."""
    if row.is_reference or figure.difference is None or figure.difference.p is None:
        return ""
    alone, together = shown(figure.difference.p), row.p_corrected
    return alone if together is None or shown(together) == alone else f"{alone} → {shown(together)}"

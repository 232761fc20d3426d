"""`finery evaluate`, `predict`, `score` and `harness`: how good models are, and what they say of one's own file.

`evaluate` scores models on disk or on the Hub as an evaluate stage would; `predict` writes what a model says about
one's own file, or a task's split, with probabilities; `score` says what a prediction file is worth by the official
rules, without a model; `harness` runs any task of the lm-evaluation-harness on a checkpoint. Child processes do the
work.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import EXIT_DONE, CommandError, DataError
from pipelines.core.files import lines_of
from service.cli.child import ask, ask_and_show, refuse, show_or_print
from service.cli.standard_input import read_all

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class EvaluateOptions:
    """What is asked: the models, and how they are scored."""

    models: Sequence[str]
    benchmarks: Sequence[str]
    out: Path | None
    submission: Path | None
    partial: bool
    settings: Mapping[str, Any]
    """Further keys of an evaluate stage, those without a value left out."""

    def words(self) -> dict[str, Any]:
        """In the words of the child."""
        return {
            "models": list(self.models),
            "benchmarks": list(self.benchmarks),
            "out": None if self.out is None else str(self.out),
            "submission": None if self.submission is None else str(self.submission),
            "partial": self.partial,
            "settings": dict(self.settings),
        }


def separated(given: Sequence[str] | None) -> list[str]:
    """The names of an option that may be given several times, and may hold several with commas between them."""
    return [name for each in given or () for part in each.split(",") if (name := part.strip())]


def evaluate(options: EvaluateOptions, as_json: bool) -> int:
    """Show the scores, or what was written. Returns the exit code."""
    if options.partial and options.submission is None:
        raise CommandError("--partial is about a submission; name its file with --submission out.zip, or leave it out")

    def show_answer(data: dict[str, object]) -> None:
        from rich.console import Console

        show(data, Console(highlight=False))

    return ask_and_show("evaluate", options.words(), "Reading the model, then the benchmarks …", as_json, show_answer)


def show(data: Mapping[str, Any], console: Console) -> None:
    """Scores beside the baselines, what a reader should know, and where the files lie."""
    from rich.padding import Padding

    from service.cli.summary import outcome_of, scores_table

    outcome = outcome_of(data["metrics"], data["details"], "evaluate")
    for benchmark in dict.fromkeys(score.benchmark for score in outcome.scores):
        console.print()
        console.print(Padding(scores_table(outcome, benchmark), (0, 0, 0, 2), expand=False))
    console.print()
    for note in outcome.notes:
        console.print(f"  {note}", soft_wrap=True)
    for warning in data["warnings"]:
        print(f"  {warning}", file=sys.stderr)
    for path in data["files"]:
        console.print(f"  {path}", soft_wrap=True)
    if submission := data.get("submission"):
        console.print(f"  Submission  {submission['file']}   {len(submission['files'])} of 11 files", soft_wrap=True)
        for reason in submission["missing"]:
            console.print(f"  left out    {reason}", soft_wrap=True)


LINE = "text"
"""The column that lines of plain text become."""
STANDARD_INPUT = "standard input"
"""What mistakes in its rows are said to be in."""


@dataclass(frozen=True)
class PredictOptions:
    """The options, in the words of the child."""

    model: str
    task: str | None
    data: str | None
    text: list[str]
    split: str | None
    out: str
    limit: int | None
    max_length: int | None
    batch_size: int
    plain: bool = False
    """Whether the rows are lines of plain text in one column."""


def predict(options: PredictOptions, as_json: bool) -> int:
    """Write the predictions and say what they look like. Returns the exit code."""
    if options.data is not None and options.split is not None:
        raise CommandError("--split is a part of a task's data, and --data is a file; leave one of them out")
    if options.text and options.data is None:
        raise CommandError("--text names columns of a file of yours; give it with --data")
    return ask_and_show("predict", asdict(options), "Reading the model, then predicting …", as_json, show_predictions)


def predict_from_input(options: PredictOptions, as_json: bool) -> int:
    """Predict the rows on standard input; without `--out`, write them to standard output. Returns the exit code."""
    if options.data is not None or options.split is not None:
        raise CommandError("- reads standard input; leave --data and --split out")
    lines = lines_of(read_all())
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise DataError("standard input is empty; give one text a line, or JSONL with the columns of the task")
    columns = options.text
    plain = not is_jsonl(first)
    with tempfile.TemporaryDirectory(prefix="predict-") as place:
        rows, out = Path(place) / "input.jsonl", Path(options.out or Path(place) / "output.jsonl")
        if plain:
            if len(columns) > 1:
                raise CommandError("--text names columns of JSONL, and standard input holds one text a line")
            columns = columns or [LINE]
            lines = [json.dumps({columns[0]: line}, ensure_ascii=False) for line in lines if line.strip()]
        rows.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        asked = replace(options, data=str(rows), text=columns, out=str(out), plain=plain)
        answer = ask("predict", asdict(asked), "Reading the model, then predicting …", as_json or not options.out)
        if answer.code != EXIT_DONE:
            return refuse(replace(answer, error=answer.error.replace(str(rows), STANDARD_INPUT)), as_json)
        if options.out:
            return show_or_print(answer.data, as_json, show_predictions)
        written = out.read_text(encoding="utf-8")
    for warning in answer.data["warnings"]:
        print(warning, file=sys.stderr)
    if as_json:
        told = {key: value for key, value in answer.data.items() if key != "file"}
        predictions = [json.loads(line) for line in lines_of(written)]
        print(json.dumps({"status": "done", "exit_code": EXIT_DONE, **told, "predictions": predictions}))
    else:
        sys.stdout.write(written)
    return EXIT_DONE


def is_jsonl(first: str) -> bool:
    """Whether the lines are objects, by the first of them."""
    try:
        return isinstance(json.loads(first), dict)
    except ValueError:
        return False


def show_predictions(data: Mapping[str, Any]) -> None:
    """How many predictions of what there are, and where they lie."""
    for warning in data["warnings"]:
        print(warning, file=sys.stderr)
    print(f"  {data['rows']} predictions   {data['file']}")
    for name, count in data["counts"].items():
        print(f"  {count:>7}  {name}")


@dataclass(frozen=True)
class ScoreOptions:
    """The options, in the words of the child."""

    benchmark: str
    predictions: str
    references: str
    na_prob_file: str | None
    na_prob_thresh: float
    missing: str


def score(options: ScoreOptions, as_json: bool) -> int:
    """Print the scores as one JSON object, and nothing else. Returns the exit code."""
    answer = ask("score", asdict(options), "Scoring …", True)
    if answer.code != EXIT_DONE:
        return refuse(answer, as_json)
    for note in answer.data["notes"]:
        print(note, file=sys.stderr)
    print(json.dumps(answer.data["scores"], indent=2))
    return EXIT_DONE


@dataclass(frozen=True)
class HarnessOptions:
    """The options, in the words of the child."""

    model: str
    tasks: tuple[str, ...]
    num_fewshot: int | None
    limit: int | None
    include_path: str | None
    batch_size: int
    seed: int


def names_of(tasks: str) -> tuple[str, ...]:
    """The names in a list with commas. Raises CommandError when there is none."""
    names = tuple(name.strip() for name in tasks.split(",") if name.strip())
    if not names:
        raise CommandError("--tasks names no task; give one or more, such as --tasks hellaswag,lambada_openai")
    return names


def harness(options: HarnessOptions, as_json: bool) -> int:
    """Show the scores. Returns the exit code."""

    def show_answer(data: dict[str, object]) -> None:
        from rich.console import Console

        show_harness_scores(data, Console(highlight=False))

    return ask_and_show("harness", asdict(options), "Asking the harness' questions …", as_json, show_answer)


def show_harness_scores(data: dict[str, Any], console: Console) -> None:
    """One row a score."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    for name, justify in (
        ("task", "left"),
        ("examples", "right"),
        ("questions", "right"),
        ("metric", "left"),
        ("score", "right"),
        ("standard error", "right"),
    ):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for task, result in data["tasks"].items():
        for number, (metric, score) in enumerate(result["scores"].items()):
            shown = [task, _count(result["num_fewshot"]), _count(result["questions"])] if number == 0 else ["", "", ""]
            table.add_row(
                *shown, metric, f"{score['value']:.4f}", "" if score["stderr"] is None else f"{score['stderr']:.4f}"
            )
    console.print(table)
    if data["cut"]:
        console.print(
            f"note: {data['cut']} requests are longer than the {data['reads']} tokens that the model reads and lost "
            "their beginning"
        )


def _count(value: object) -> str:
    return "" if value is None else f"{value:,}"

"""`finery evaluate`: score models that lie on disk or on the Hub, as an evaluate stage would. A child process does the work."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import EXIT_DONE, CommandError
from service.cli.answer import ask, refuse

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Question:
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
            "models": list(self.models), "benchmarks": list(self.benchmarks), "out": None if self.out is None else str(self.out),
            "submission": None if self.submission is None else str(self.submission), "partial": self.partial, "settings": dict(self.settings),
        }  # fmt: skip


def separated(given: Sequence[str] | None) -> list[str]:
    """The names of an option that may be given several times, and may hold several with commas between them."""
    return [name for each in given or () for part in each.split(",") if (name := part.strip())]


def evaluate(question: Question, as_json: bool) -> int:
    """Show the scores, or what was written. Returns the exit code."""
    if question.partial and question.submission is None:
        raise CommandError("--partial is about a submission; name its file with --submission out.zip, or leave it out")
    answer = ask("evaluate", question.words(), "Reading the model, then the benchmarks …", as_json)
    if answer.code != EXIT_DONE:
        return refuse(answer, as_json)
    if as_json:
        print(json.dumps({"status": "done", "exit_code": EXIT_DONE, **answer.data}, ensure_ascii=False))
        return EXIT_DONE
    from rich.console import Console

    show(answer.data, Console(highlight=False))
    return EXIT_DONE


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


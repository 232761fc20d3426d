"""`finery predict`: what a model says about one's own file, or a task's split, with probabilities. A child process does the work."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

from pipelines.errors import EXIT_DONE, CommandError
from service.cli.answer import ask, refuse


@dataclass(frozen=True)
class Question:
    """What is asked, in the words of the child."""

    model: str
    task: str | None
    data: str | None
    text: list[str]
    split: str | None
    out: str
    limit: int | None
    max_length: int | None
    batch_size: int


def predict(question: Question, as_json: bool) -> int:
    """Write the predictions and say what they look like. Returns the exit code."""
    if question.data is not None and question.split is not None:
        raise CommandError("--split is a part of a task's data, and --data is a file; leave one of them out")
    if question.text and question.data is None:
        raise CommandError("--text names columns of a file of yours; give it with --data")
    answer = ask("predict", asdict(question), "Reading the model, then predicting …", as_json)
    if answer.code != EXIT_DONE:
        return refuse(answer, as_json)
    if as_json:
        print(json.dumps({"status": "done", "exit_code": EXIT_DONE, **answer.data}, ensure_ascii=False))
        return EXIT_DONE
    data = answer.data
    for warning in data["warnings"]:
        print(warning, file=sys.stderr)
    print(f"  {data['rows']} predictions   {data['file']}")
    for name, count in data["counts"].items():
        print(f"  {count:>7}  {name}")
    return EXIT_DONE

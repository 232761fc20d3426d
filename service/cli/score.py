"""`finery score`: what a prediction file is worth, by the official rules. A child process reads the files; no model is involved."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

from pipelines.errors import EXIT_DONE
from service.cli.answer import ask, refuse


@dataclass(frozen=True)
class Question:
    """What is asked, in the words of the child."""

    benchmark: str
    predictions: str
    references: str
    na_prob_file: str | None
    na_prob_thresh: float
    missing: str


def score(question: Question, as_json: bool) -> int:
    """Print the scores as one JSON object, and nothing else. Returns the exit code."""
    answer = ask("score", asdict(question), "Scoring …", True)
    if answer.code != EXIT_DONE:
        return refuse(answer, as_json)
    for note in answer.data["notes"]:
        print(note, file=sys.stderr)
    print(json.dumps(answer.data["scores"], indent=2))
    return EXIT_DONE

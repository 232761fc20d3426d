"""`finery score`: what anybody's prediction file is worth, by the official rules of SQuAD, GLUE and RACE."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pipelines.core.errors import CommandError
from pipelines.core.files import JSONObject
from pipelines.core.registry import TASKS, nearest
from pipelines.evaluation.official.glue import PREFIX, score_glue
from pipelines.evaluation.official.race import score_race
from pipelines.evaluation.official.squad import score_squad, score_squad_v2

RACE = ("race", "race/middle", "race/high", "race/all")


@dataclass(frozen=True)
class ScoreRequest:
    """What `finery score` was asked."""

    benchmark: str
    predictions: str
    references: str
    na_prob_file: str | None = None
    na_prob_thresh: float = 1.0
    missing: str = "refuse"


def answer(fields: JSONObject) -> JSONObject:
    """`scores`, and `notes` that a reader should know. Raises CommandError with one sentence for anything that is
    wrong with the files."""
    notes: list[str] = []
    return {"scores": scores_of(ScoreRequest(**fields), notes), "notes": notes}


def scores_of(request: ScoreRequest, notes: list[str]) -> JSONObject:
    """The scores, as plain data. Raises CommandError."""
    name, predictions, references = request.benchmark, Path(request.predictions), Path(request.references)
    if request.na_prob_file is not None and name != "squad_v2":
        raise CommandError(
            f"--na-prob-file is for squad_v2, and '{name}' knows no questions without an answer; leave it out"
        )
    if request.missing == "zero" and name != "squad":
        raise CommandError(
            "--missing zero is what the official script of squad does, and of no other; add the predictions that "
            f"'{name}' lacks"
        )
    if not math.isfinite(request.na_prob_thresh):
        raise CommandError("--na-prob-thresh must be a finite number")
    if name == "squad":
        return score_squad(predictions, references, request.missing, notes)
    if name == "squad_v2":
        odds = None if request.na_prob_file is None else Path(request.na_prob_file)
        return score_squad_v2(predictions, references, odds, request.na_prob_thresh, notes)
    if name in RACE:
        return score_race(predictions, references)
    if name.startswith(PREFIX):
        return score_glue(name, predictions, references)
    benchmarks = ["squad", "squad_v2", *RACE, *(each for each in TASKS if each.startswith(PREFIX))]
    raise CommandError(f"unknown benchmark '{name}'.{nearest(name, benchmarks)} Available: {', '.join(benchmarks)}")

"""The trials of a search: what each scored on data that no cell reports on, and which values win."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.core.errors import StageError
from pipelines.core.files import read_json
from pipelines.core.results import folder_named, read_scores
from pipelines.core.scores import smaller_is_better
from pipelines.core.study_cells import TRIAL_SCORES, Values
from pipelines.core.study_matrix import label
from pipelines.core.study_options import Search

PREFIX = "eval_"
"""What scores on the rows set aside are called in a stage's `metrics.json`."""
BESIDE = ("mean_token_accuracy",)
"""What stands beside the loss of models of language and decides only by its name."""
MEAN = "mean"
"""What a stage on several tasks calls the mean of their scores; each task's own are `mrpc_f1` and `mrpc_loss`."""


@dataclass
class Trial:
    """One trial."""

    name: str
    """Its run folder, below the study's."""
    rung: int
    at: int
    """Position of its values in the grid."""
    values: Values
    status: str = "queued"
    message: str = ""
    reason: str = ""
    metric: str = ""
    score: float | None = None
    """The mean over its seeds; None where one of them diverged or has not ended well."""
    by_seed: list[float | None] = field(default_factory=list)
    scores: Mapping[str, float] = field(default_factory=dict)
    """Everything that was measured on the rows set aside."""
    chosen: bool = False

    @property
    def complete(self) -> bool:
        """Whether it ran to its end."""
        return self.status in ("done", "reused")

    @property
    def loss(self) -> float:
        """On the rows set aside; without end where it is not known."""
        loss = self.scores.get("loss", math.inf)
        return loss if math.isfinite(loss) else math.inf

    def ended(self, status: str, message: str, reason: str) -> None:
        """One of its runs ended; what went wrong with one is said of all."""
        if self.status == "queued" or self.complete:
            self.status, self.message, self.reason = status, message, reason
        if not self.complete:
            self.score = None

    def measured(self, metric: str, score: float | None, scores: Mapping[str, float]) -> None:
        """One of its runs was scored; the means are over all that were."""
        before = len(self.by_seed)
        self.by_seed.append(score)
        able = [each for each in self.by_seed if each is not None]
        self.metric = metric
        self.score = math.fsum(able) / len(able) if self.complete and len(able) == len(self.by_seed) else None
        self.scores = {
            name: (self.scores.get(name, 0.0) * before + value) / (before + 1) for name, value in scores.items()
        }

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "folder": self.name,
            "rung": self.rung,
            "values": dict(self.values),
            "status": self.status,
            "message": self.message,
            "metric": self.metric,
            "score": self.score,
            "by_seed": self.by_seed,
            "scores": dict(self.scores),
            "chosen": self.chosen,
        }


def rungs(search: Search) -> list[Values]:
    """What every trial of a rung gets beside its own values: one rung without halving."""
    if search.halving is None:
        return [{}]
    [(path, budgets)] = search.halving.items()
    return [{path: budget} for budget in budgets]


def score_of(folder: Path, stage: str, metric: str | None) -> tuple[str, float | None, dict[str, float]]:
    """(metric, score to choose by, all scores) of a trial. Raises StageError without any.

    They are what its evaluate stage measured, where the search has one, else what `stage` scored on the rows set aside.
    Without a `metric` it is the stage's first score; of several tasks none decides alone, but their mean.
    """
    trained = folder_named(folder, stage)
    assert trained is not None
    if stage == TRIAL_SCORES:
        scores, where = _evaluated(trained), "in the trials"
    else:
        metrics, where = read_json(trained / "metrics.json"), "on the rows set aside"
        scores = {key.removeprefix(PREFIX): _number(value) for key, value in metrics.items() if key.startswith(PREFIX)}
    if not scores:
        raise StageError(
            f"stage '{stage}' left no score of rows set aside, so nothing can be searched by; search over a "
            "supervised stage, or say by study.search.evaluate how trials are scored"
        )
    if metric is not None and metric not in scores:
        raise StageError(f"study.search.metric is '{metric}', but stage '{stage}' measured {', '.join(scores)} {where}")
    measured = [name for name in scores if not _is_loss(name) and name not in BESIDE]
    chosen = metric or next(name for name in (MEAN, *measured, "loss", *scores) if name in scores)
    value = scores[chosen]
    return chosen, value if math.isfinite(value) else None, scores


def _evaluated(folder: Path) -> dict[str, float]:
    """What an evaluate stage measured on its one benchmark."""
    results = read_scores(folder, TRIAL_SCORES)
    if len(results) > 1:
        names = ", ".join(each.benchmark for each in results)
        raise StageError(f"study.search.evaluate measured {names}, and a search is decided by one; name one of them")
    return dict(results[0].metrics) if results else {}


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Trials that have a score, the best first; of equal ones that with the smaller loss, then the earlier in the grid.

    Short trials often leave every score at that of the larger class, where the loss still tells the values apart.
    """
    able = [each for each in trials if each.score is not None]
    return sorted(able, key=lambda each: (_cost(each), each.loss, each.at))


def _cost(trial: Trial) -> float:
    assert trial.score is not None
    return trial.score if smaller_is_better(trial.metric) else -trial.score


def _is_loss(name: str) -> bool:
    return name == "loss" or name.endswith("_loss")


def edge(grid: Sequence[Values], chosen: Values) -> str:
    """A sentence where a number won that is the smallest or largest of its grid: a wider grid may do better."""
    sentences = []
    for path, value in chosen.items():
        tried = sorted(
            {each[path] for each in grid if isinstance(each[path], int | float) and not isinstance(each[path], bool)}
        )
        if len(tried) > 1 and value in (tried[0], tried[-1]):
            sentences.append(
                f"{path.rpartition('.')[2]} {label(value)} is the "
                f"{'smallest' if value == tried[0] else 'largest'} that was tried"
            )
    return f"{' and '.join(sentences)}, so a wider grid may do better" if sentences else ""


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan

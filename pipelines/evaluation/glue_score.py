"""The GLUE score: the mean over tasks, in percent, as the leaderboard averages it.

Wang et al. 2019, section 4, arxiv.org/abs/1804.07461: of a task with two metrics, or two test sets, their mean counts; the
score is the mean over the nine tasks, each counted once. The diagnostics set has no part in it. WNLI's development set
contradicts its training set, so that most publications state the score without it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFIX = "glue/"
TASKS = {
    "glue/cola": ("matthews_correlation",),
    "glue/sst2": ("accuracy",),
    "glue/mrpc": ("accuracy", "f1"),
    "glue/stsb": ("pearson", "spearmanr"),
    "glue/qqp": ("accuracy", "f1"),
    "glue/mnli": ("accuracy", "accuracy_mm"),
    "glue/qnli": ("accuracy",),
    "glue/rte": ("accuracy",),
    "glue/wnli": ("accuracy",),
}
"""What of each task is averaged."""
WNLI = "glue/wnli"
KEY = "glue"
"""Where the score stands in `metrics.json` and `details.json`."""


def task_scores(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Of each task that was scored in full, one number in percent."""
    return {
        name: 100.0 * sum(metrics[name][each] for each in parts) / len(parts)
        for name, parts in TASKS.items()
        if name in metrics and all(each in metrics[name] for each in parts)
    }


def glue_score(metrics: Mapping[str, Mapping[str, float]]) -> tuple[dict[str, float], dict[str, Any]]:
    """(`score` and `score_without_wnli` as far as their tasks are there, what they stand on). Both empty below two tasks."""
    each = task_scores(metrics)
    if len(each) < 2:
        return {}, {}
    missing = [name for name in TASKS if name not in each]
    found: dict[str, float] = {}
    if not missing:
        found["score"] = sum(each.values()) / len(each)
    if set(missing) <= {WNLI}:
        others = [value for name, value in each.items() if name != WNLI]
        found["score_without_wnli"] = sum(others) / len(others)
    return found, {"tasks": each, "missing": missing, "percent": ["score", "score_without_wnli"]}

"""The report of zero- and few-shot questions: scores with intervals, the spread over draws, guessers, what found no room."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.evaluation.baselines import score_baselines
from pipelines.evaluation.doubts import no_better_than_majority
from pipelines.evaluation.few_shot_said import Answered, Ranked, Told
from pipelines.evaluation.few_shot_scores import score_options, spread
from pipelines.evaluation.intervals import intervals
from pipelines.fields.scores import OF_A_HUNDRED, score_names
from pipelines.protocols import Rows, Task

if TYPE_CHECKING:
    from pipelines.evaluation.report import Report


def add(
    report: Report, name: str, task: Task, said: Sequence[Answered], about: Mapping[str, Any], train: Rows | None, started: float
) -> None:
    """Keep the answers to every split of one benchmark, asked with one number of examples. `about` stands in details.json."""
    scores: dict[str, float] = {}
    ranges: dict[str, tuple[float, float]] = {}
    drawn: dict[str, dict[str, float]] = {}
    guesses: dict[str, dict[str, float]] = {}
    for each in said:
        assert each.labels is not None  # refused before anything was asked
        score = each.score_of(task)
        scores |= _suffixed(score(each.said, each.labels), each.suffix)
        ranges |= _suffixed(intervals(score, each.said, each.labels, report.context.seed), each.suffix)
        if each.draws > 1:
            drawn |= _suffixed(spread(each.by_draw(task)), each.suffix)
        for guesser, reached in _guessed(task, each, train, report.baselines).items():
            guesses.setdefault(guesser, {}).update(_suffixed(reached, each.suffix))
    percent = score_names(metric for metric in task.metrics if metric in OF_A_HUNDRED) if isinstance(said[0], Told) and said[0].right is None else ()
    report.metrics[name] = scores
    report.predicted += said
    report.details[name] = {
        **about,
        "examples": {each.split: len(each.rows) for each in said},
        "splits": {each.suffix: each.split for each in said},
        "precision": "no",
        "intervals": ranges,
        "baselines": guesses,
        **({"spread": drawn} if drawn else {}),
        **({"percent": percent} if percent else {}),
        "seconds": round(time.monotonic() - started, 3),
    }
    for doubt in _doubts(name, said, scores, ranges, guesses, about["few_shot"]):
        if doubt is not None:
            report.context.events.emit("warning", message=doubt)


def _suffixed(values: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    return {f"{name}{suffix}": value for name, value in values.items()}


def _guessed(task: Task, said: Answered, train: Rows | None, asked: Sequence[str]) -> dict[str, dict[str, float]]:
    """Chance, and what guessers that are fitted on the training rows reach; nothing where answers are texts."""
    if isinstance(said, Told) or (isinstance(said, Ranked) and said.values is not None):
        return {}
    assert isinstance(said, Ranked)
    chance = float(np.mean([1 / len(each.options) for each in said.questions]))
    found = {"chance": dict.fromkeys(said.ways, chance)}
    classes = len(task.head.labels)
    if train is None or not classes:
        return found
    score = score_options(["acc"], task.metrics, classes)
    names = dict.fromkeys(("majority", *asked))
    reached, _ = score_baselines(names, lambda logits, labels: score(logits[:, None, None], labels), classes, train, {"": said.rows})
    return found | reached


def _doubts(
    name: str, said: Sequence[Answered], scores: Mapping[str, float], ranges: Mapping[str, tuple[float, float]],
    guesses: Mapping[str, Mapping[str, float]], asked: Mapping[str, Any],
) -> list[str | None]:  # fmt: skip
    found: list[str | None] = []
    for each in said:
        if isinstance(each, Ranked) and each.values is None and each.constant():
            word = each.questions[0].options[int(each.nats[0, 0].argmax())]
            found.append(f"{name}: the likeliest answer is the same for every question of '{each.split}' (the first time: {word!r})")
    if "majority" in guesses:
        found.append(no_better_than_majority(name, scores, ranges, guesses["majority"]))
    elif "chance" in guesses:
        found.append(no_better_than_majority(name, scores, ranges, guesses["chance"], guess="choosing by chance"))
    if asked["questions_cut"]:
        found.append(f"{name}: {asked['questions_cut']} questions are longer than the model reads and lost their beginning; their scores say little")
    if asked["examples_dropped"]:
        found.append(
            f"{name}: {asked['questions_with_fewer_examples']} questions found no room for all their examples: {asked['examples_dropped']} examples were left out"
        )
    return found

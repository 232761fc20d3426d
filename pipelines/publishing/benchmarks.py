"""Which benchmarks the evaluate stages of a recipe score, on whose model, and by which metrics: known before a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.fields.scores import score_names, text_scores
from pipelines.protocols import Task
from pipelines.recipe import START, Recipe, Stage
from pipelines.registry import TASKS

TRAINED_AS = {"glue/ax": "glue/mnli"}
"""Benchmarks without training rows, and the task whose models they examine."""


def evaluations(recipe: Recipe, before: int) -> list[Stage]:
    """The evaluate stages before a position."""
    return [stage for stage in recipe.stages[:before] if stage.stage == "evaluate"]


def scored_before(recipe: Recipe, before: int) -> dict[str, set[str]]:
    """Benchmark -> ids of the stages whose models are scored on it before a position; `model` is the recipe's own."""
    found: dict[str, set[str]] = {}
    for stage in evaluations(recipe, before):
        for benchmark, model in _scored_by(recipe, stage).items():
            found.setdefault(benchmark, set()).add(model)
    return found


def _scored_by(recipe: Recipe, evaluate: Any) -> dict[str, str]:
    if evaluate.prompts is not None:
        return dict.fromkeys(evaluate.policy_scores(recipe), evaluate.policy_model(recipe))
    if evaluate.few_shot is not None:
        return dict.fromkeys(evaluate.few_shot_scores(recipe), evaluate.few_shot_model(recipe) or START)
    earlier = recipe.stages[: recipe.stages.index(evaluate)]
    subjects = {model: subject for stage in earlier for model, subject in stage.subjects().items()}
    trained = {model: subject.task if isinstance(subject.task, str) else model for model, subject in subjects.items()}
    source = evaluate.source
    meant = [model for model in trained if source in (None, model, model.partition("/")[0])]
    named = getattr(evaluate, "benchmarks", None)
    texts = _texts_of(recipe, evaluate)
    if texts and named is None:
        return texts
    if named is None:
        return {trained[model]: model for model in meant}
    latest = {task: each for each, task in trained.items() if len(meant) < 2 or each in meant}
    found = {}
    for name in named:
        benchmark = trained.get(name, name)
        owner = name if name in trained else latest.get(name) or latest.get(TRAINED_AS.get(name, ""))
        one = meant[0] if source is not None and len(meant) == 1 else None if len(meant) > 1 else source
        found[benchmark] = one or owner or START
    return found | texts


def _texts_of(recipe: Recipe, evaluate: Any) -> dict[str, str]:
    """Held-out texts that an evaluate stage measures, and the stage whose model it asks."""
    chosen = evaluate.text_model(recipe)
    return {} if chosen is None else dict.fromkeys(evaluate.text_names(recipe), chosen.id)


def metrics_of(recipe: Recipe, benchmark: str) -> list[str]:
    """The names of a benchmark's scores, such as `accuracy` and `accuracy_mm`."""
    for evaluate in (stage for stage in recipe.stages if stage.stage == "evaluate"):
        asked = evaluate.few_shot_scores(recipe) | evaluate.policy_scores(recipe)
        if benchmark in asked:
            names: list[str] = asked[benchmark]
            return names
        texts = _texts_of(recipe, evaluate)
        if benchmark in texts:
            pretrained: Any = recipe.stage(texts[benchmark])
            return list(text_scores(pretrained.objective.name))
    task: Task = TASKS.load(benchmark) if benchmark in TASKS else _inline(recipe, benchmark)
    suffixes: Mapping[str, str] = task.evaluation_splits
    return [f"{metric}{suffix}" for suffix in suffixes for metric in (getattr(task, "scores", None) or score_names(task.metrics))]


def _inline(recipe: Recipe, model: str) -> Any:
    subject: Any = recipe.stage(model).subjects()[model]
    return subject.task.task(model)

"""What a model must score before it is published, and which benchmarks the evaluate stages of its recipe score.

A requirement is an entry of `require`: `{"glue/mrpc.f1": ">= 0.80"}`. Whether it can be looked up at all (on whose
model a benchmark is scored, and by which metrics) is known from the recipe, before a run.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.core.config import show
from pipelines.core.errors import CommandError
from pipelines.core.interfaces import Task
from pipelines.core.recipe import START, Recipe, Stage
from pipelines.core.registry import METRICS, TASKS, nearest
from pipelines.core.scores import POLICY_SCORES, SMALLER_IS_BETTER, bounds, score_names

if TYPE_CHECKING:
    from pipelines.evaluation.evaluate import Evaluate

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
EXAMPLE = "write an operator and a number, such as '>= 0.80'"
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_COMPARISON = re.compile(r"\s*(?P<operator>[^\s\d.+\-\w]*)\s*(?P<number>.*?)\s*", re.DOTALL)


@dataclass(frozen=True)
class Requirement:
    """One comparison that a score must pass."""

    benchmark: str
    """`glue/mrpc`, or the id of a stage with an inline task."""
    metric: str
    """`f1`, with the suffix of its split where a benchmark has several: `accuracy_mm`."""
    operator: str
    threshold: float
    written: str
    """The comparison as it stands in the recipe."""

    @property
    def path(self) -> str:
        """The key in the recipe: `glue/mrpc.f1`."""
        return f"{self.benchmark}.{self.metric}"

    def met_by(self, score: float) -> bool:
        """Whether the score passes. Not-a-number passes nothing."""
        return OPERATORS[self.operator](score, self.threshold)

    def out_of_bounds(self, highest: float, written: str | None = None) -> str | None:
        """Why no score up to `highest` was meant by the threshold, as it was written; None where one can be."""
        shown, threshold = show(written or self.written), self.threshold
        if highest == 1.0 and abs(threshold) > 1:
            return (
                f"is {shown}, but the scores of {self.benchmark} lie between -1 and 1; "
                f"write {threshold / 100:g} for {threshold:g} %"
            )
        if highest == 100.0 and 0 < abs(threshold) < 1:
            return f"is {shown}, but the scores of {self.benchmark} lie between 0 and 100; write {threshold * 100:g}"
        if highest == 100.0 and threshold > 100:
            return f"is {shown}, but the scores of {self.benchmark} lie between 0 and 100; write a number between them"
        return None

    def unmet(self, scores: Mapping[str, Mapping[str, float]]) -> str | None:
        """What is wrong with the scores, or None when the requirement is met."""
        score = scores.get(self.benchmark, {}).get(self.metric)
        if score is None:
            scored = ", ".join(f"{name}.{metric}" for name, metrics in scores.items() for metric in metrics)
            return f"{self.path} must be {self.written} but was not scored (scored: {scored or 'nothing'})"
        if self.met_by(score):
            return None
        return f"{self.path} is {score:.6g}, must be {self.written}"


def parse(path: str, comparison: object) -> Requirement:
    """Read one entry of `require`. Raises ValueError with a sentence that names what is allowed."""
    benchmark, dot, metric = path.rpartition(".")
    if not dot or not benchmark or not metric or path != path.strip():
        raise ValueError(f"'{path}' is no metric; write BENCHMARK.METRIC, such as glue/mrpc.f1")
    if not _goes_by(metric, score_names(_metrics_of(benchmark))):
        names = sorted({*score_names(METRICS), *SMALLER_IS_BETTER, *POLICY_SCORES, "pair_accuracy", "acc"})
        if not _goes_by(metric, names):
            raise ValueError(f"unknown metric '{metric}'.{nearest(metric, names)} Available: {', '.join(names)}")
    if not isinstance(comparison, str):
        raise ValueError(f"is {show(comparison)}, must be a comparison; {EXAMPLE}")
    match = _COMPARISON.fullmatch(comparison)
    symbol = match["operator"] if match else ""
    if match is None or symbol not in OPERATORS:
        given = f"operator '{symbol}'" if symbol else "no operator"
        raise ValueError(f"is {show(comparison)} with {given}; allowed: {', '.join(OPERATORS)}; {EXAMPLE}")
    if not _NUMBER.fullmatch(match["number"]):
        raise ValueError(f"is {show(comparison)}, but '{match['number']}' is not a number; {EXAMPLE}")
    threshold = float(match["number"])
    if math.isinf(threshold):
        raise ValueError(f"is {show(comparison)}, but '{match['number']}' is too large a number; {EXAMPLE}")
    found = Requirement(benchmark, metric, symbol, threshold, f"{symbol} {match['number']}")
    if mistake := found.out_of_bounds(_bounds_of(benchmark, metric)[1], comparison):
        raise ValueError(mistake)
    return found


def _goes_by(score: str, names: Iterable[str]) -> bool:
    return any(score == name or score.startswith(f"{name}_") for name in names)


def _metrics_of(benchmark: str) -> tuple[str, ...]:
    """Of a named benchmark, also where it is asked with examples, such as `glue/mrpc/8-shot`; empty for others."""
    name = benchmark if benchmark in TASKS else benchmark.rpartition("/")[0]
    metrics: tuple[str, ...] = TASKS.load(name).metrics if name in TASKS else ()
    return metrics


def _bounds_of(benchmark: str, score: str) -> tuple[float, float]:
    """Between what a named benchmark's own score must lie: a threshold of 80 can never have been meant for a fraction,
    nor one of 0.8 for a percentage. What is asked with examples scores `acc` too."""
    metrics = _metrics_of(benchmark)
    own = score_names(metrics)
    if metrics and _goes_by(score, (*own, "acc")):
        return bounds(score, own, metrics)
    return -math.inf, math.inf


def evaluations(recipe: Recipe, before: int) -> list[Stage]:
    """The evaluate stages before a position."""
    return [stage for stage in recipe.stages[:before] if stage.stage == "evaluate"]


def only_of(stage: Evaluate, recipe: Recipe, model: str, benchmarks: list[str]) -> Evaluate:
    """The stage with what it asked of this model alone. Raises CommandError where it needs other models too."""
    if stage.prompts is not None:
        raise CommandError("completions are sampled, and rewarded by models beside this one; use finery reproduce")
    choices, _ = stage.choices(recipe)
    if any(choice.model != model for choice in choices):
        stage = stage.model_copy(
            update={
                "source": model,
                "benchmarks": tuple(choice.name for choice in choices if choice.model == model),
                "tasks": {name: task for name, task in stage.tasks.items() if name in benchmarks},
            }
        )
        recipe = recipe.model_copy(
            update={"stages": tuple(stage if each.id == stage.id else each for each in recipe.stages)}
        )
    owners = {choice.owner for choice in stage.choices(recipe)[0]}
    others = [each for each in stage.reads(recipe) if each != model and each not in owners]
    if others:
        raise CommandError(f"it also reads {', '.join(others)}, which the folder does not hold; use finery reproduce")
    return stage.model_copy(update={"baselines": ()})


def scored_before(recipe: Recipe, before: int) -> dict[str, set[str]]:
    """Benchmark -> ids of the stages whose models are scored on it before a position; `model` is the recipe's own."""
    scored: dict[str, set[str]] = {}
    for stage in evaluations(recipe, before):
        for benchmark, model in _scored_by(recipe, stage).items():
            scored.setdefault(benchmark, set()).add(model)
    return scored


def _trained_by(benchmark: str) -> str:
    """The task whose models a benchmark asks where no stage trained on it; empty where there is none."""
    return (TASKS.load(benchmark).trained_by or "") if benchmark in TASKS else ""


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
    owners = {}
    for name in named:
        benchmark = trained.get(name, name)
        owner = name if name in trained else latest.get(name) or latest.get(_trained_by(name))
        one = meant[0] if source is not None and len(meant) == 1 else None if len(meant) > 1 else source
        owners[benchmark] = one or owner or START
    return owners | texts


def _texts_of(recipe: Recipe, evaluate: Any) -> dict[str, str]:
    """Held-out texts that an evaluate stage measures, and the stage whose model it asks."""
    chosen = evaluate.text_model(recipe)
    return {} if chosen is None else dict.fromkeys(evaluate.text_names(recipe), chosen.id)


def metrics_of(recipe: Recipe, benchmark: str) -> list[str]:
    """The names of a benchmark's scores, such as `accuracy` and `accuracy_mm`."""
    for evaluate in (stage for stage in recipe.stages if stage.stage == "evaluate"):
        prompted = evaluate.few_shot_scores(recipe) | evaluate.policy_scores(recipe)
        if benchmark in prompted:
            names: list[str] = prompted[benchmark]
            return names
        texts = _texts_of(recipe, evaluate)
        if benchmark in texts:
            pretrained: Any = recipe.stage(texts[benchmark])
            return list(pretrained.objective.text_scores)
    task: Task = TASKS.load(benchmark) if benchmark in TASKS else _inline(recipe, benchmark)
    suffixes: Mapping[str, str] = task.evaluation_splits
    return [
        f"{metric}{suffix}"
        for suffix in suffixes
        for metric in (getattr(task, "scores", None) or score_names(task.metrics))
    ]


def _inline(recipe: Recipe, model: str) -> Any:
    own = [stage.tasks[model] for stage in recipe.stages if stage.stage == "evaluate" and model in stage.tasks]
    if own:
        return own[-1].task(model)
    subject: Any = recipe.stage(model).subjects()[model]
    return subject.task.task(model)

"""Which model is scored on which benchmark.

With `from`, the model of that stage scores everything. Otherwise each benchmark is scored by the latest earlier stage
that was trained on it: `glue/mrpc` by the last stage with `task: glue/mrpc`, and the id of a supervised stage by that
stage. Without `benchmarks`, every task trained before is scored. What nothing was trained on is scored by the recipe's
own checkpoint, which may have been fine-tuned elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.core.config import ConfigIssue
from pipelines.core.recipe import START, Recipe, Stage, trained_by
from pipelines.core.registry import TASK_KINDS, TASKS, nearest
from pipelines.tasks.evaluation import BenchmarkChoice, same_classes


def choose(
    recipe: Recipe, stage: Stage, benchmarks: Sequence[str] | None
) -> tuple[list[BenchmarkChoice], list[ConfigIssue]]:
    """What `stage` scores, and what is wrong with asking for it. Places of mistakes are relative to the stage."""
    earlier = recipe.stages[: recipe.stages.index(stage)]
    trained = trained_by(earlier)
    issues = _unfit_source(recipe, stage, earlier, trained)
    if issues:
        return [], issues
    if benchmarks is None:
        return _everything(recipe, stage, trained)
    choices: list[BenchmarkChoice] = []
    for position, name in enumerate(benchmarks):
        choice = _one(name, recipe, stage, trained)
        if isinstance(choice, BenchmarkChoice):
            choice = _unfit(choice, trained) or choice
        if isinstance(choice, str):
            issues.append((("benchmarks", position), choice))
        elif choice.name in (each.name for each in choices):
            again = f"'{name}' scores '{choice.name}' a second time; use another evaluate stage to compare two models"
            issues.append((("benchmarks", position), again))
        else:
            choices.append(choice)
    return choices, issues


def _task_name(subject: Any, model: str) -> str:
    """The benchmark's name; a task that is described in place is named after its model."""
    return subject.task if isinstance(subject.task, str) else model


def _choice(owner: str, subject: Any, model: str) -> BenchmarkChoice:
    return BenchmarkChoice(_task_name(subject, owner), subject.task, model, owner, subject)


def _of(source: str | None, trained: dict[str, Any]) -> list[str]:
    """The models that a `from` means: one, or all of a stage that trained several."""
    return [model for model in trained if source is not None and source in (model, model.partition("/")[0])]


def _unfit_source(recipe: Recipe, stage: Stage, earlier: Sequence[Stage], trained: dict[str, Any]) -> list[ConfigIssue]:
    """`from` must lead to a model with a trained head."""
    source = stage.source
    if source is None or _of(source, trained):
        return []
    allowed = f"Allowed: {', '.join(trained)}" if trained else "no earlier stage trains a task"
    if source == START:
        if recipe.model.architecture is None:
            return []
        return [(("from",), f"'{START}' is built from scratch, so it knows no task yet. {allowed}")]
    named = next((each for each in earlier if each.id == source), None)
    if named is not None and _answers_already(named, stage):
        return []
    if named is None:  # `recipe` reports ids that do not exist
        return []
    return [(("from",), f"'{source}' is a '{named.stage}' stage, which leaves no model trained on a task. {allowed}")]


def _answers_already(named: Stage, stage: Stage) -> bool:
    """Whether a pretrained decoder is asked to go on with prompts, which it can without being trained on a task."""
    objective = getattr(named, "objective", None)
    benchmarks = getattr(stage, "benchmarks", None) or ()
    decoder = named.stage == "pretrain" and objective is not None and objective.head.kind == "causal_lm"
    return (
        decoder
        and bool(benchmarks)
        and all(
            name in TASKS and TASK_KINDS.load(TASKS.load(name).kind).head_kind == "causal_lm" for name in benchmarks
        )
    )


def _everything(
    recipe: Recipe, stage: Stage, trained: dict[str, Any]
) -> tuple[list[BenchmarkChoice], list[ConfigIssue]]:
    """Every task trained before, each by the latest stage that trained it."""
    if models := _of(stage.source, trained):
        return [_choice(model, trained[model], model) for model in models], []
    if stage.source is None and trained:
        latest = {_task_name(each, model): model for model, each in trained.items()}
        return [_choice(model, trained[model], model) for model in latest.values()], []
    if stage.source not in (None, START):  # reported already
        return [], []
    if recipe.model.checkpoint is not None:
        return [], [
            (("benchmarks",), "is missing: no earlier stage trains a task, so say what to score the checkpoint on")
        ]
    return [], [
        ((), "has nothing to score: no earlier stage trains a task; add {stage: supervised, task: …} before it")
    ]


def _one(name: str, recipe: Recipe, stage: Stage, trained: dict[str, Any]) -> BenchmarkChoice | str:
    """The choice for one named benchmark, or what is wrong with it."""
    models = _of(stage.source, trained)
    if name in trained:
        one = models[0] if len(models) == 1 else stage.source if not models else None
        return _choice(name, trained[name], one or name)
    own = getattr(stage, "tasks", {}).get(name)
    if own is None and name not in TASKS:
        other = next((each for each in recipe.stages if each.id == name), None)
        if other is not None:
            several = [model for model in trained if model.partition("/")[0] == name]
            why = (
                f"trains several: {', '.join(several)}"
                if several
                else f"is a '{other.stage}' stage, which trains no task"
            )
            why = "comes later" if other.subjects() and not several else why
            return f"stage '{name}' {why}. Allowed: {', '.join([*trained, *TASKS])}"
        choices = [*trained, *TASKS]
        return f"unknown benchmark '{name}'.{nearest(name, choices)} Available: {', '.join(choices)}"
    # glue/ax asks the models of glue/mnli
    needed = name if own is not None else getattr(TASKS.load(name), "trained_by", None) or name
    fitting = [
        model
        for model, each in trained.items()
        if _task_name(each, model) in (name, needed) or (own is not None and each.task == own)
    ]
    task = name if own is None else own
    if len(models) > 1:
        fitting = [model for model in fitting if model in models]
        if not fitting:
            return f"'{stage.source}' did not train '{needed}'; its models are {', '.join(models)}"
    owner = fitting[-1] if fitting else None
    subject = trained[owner] if owner else None
    if stage.source is not None and len(models) <= 1:
        return BenchmarkChoice(name, task, models[0] if models else stage.source, owner, subject)
    if owner is not None:
        return BenchmarkChoice(name, task, owner, owner, subject)
    if recipe.model.checkpoint is not None:
        return BenchmarkChoice(name, task, START, None)
    names = dict.fromkeys(_task_name(each, model) for model, each in trained.items())
    others = f"; trained before: {', '.join(names)}" if trained else ""
    return (
        f"no earlier stage trained '{needed}', and the model is built from scratch{others}. "
        f"Add {{stage: supervised, task: {needed}}} before this stage"
    )


def _unfit(choice: BenchmarkChoice, trained: dict[str, Any]) -> str | None:
    """Why a model that was trained on another task cannot be scored on this one, as far as no data need be read."""
    subject = trained.get(choice.model)
    if subject is None or _task_name(subject, choice.model) == choice.name:
        return None
    trained_task: Any = _choice(choice.model, subject, choice.model).open_task()
    asked_task: Any = choice.open_task()
    both_known = (
        trained_task.labels and asked_task.labels
    )  # otherwise the training rows tell them, when the model is opened
    if trained_task.kind == asked_task.kind and (
        not both_known or same_classes(trained_task.labels, asked_task.labels)
    ):
        return None
    return (
        f"'{choice.name}' cannot be scored with the model of '{choice.model}', which learnt "
        f"'{_task_name(subject, choice.model)}' "
        f"({_outputs(trained_task)}, needed: {_outputs(asked_task)}); name a stage that was trained on it in 'from'"
    )


def _outputs(task: Any) -> str:
    outputs: str | None = TASK_KINDS.load(task.kind).outputs
    return outputs or ", ".join(task.labels or ("classes of its own",))

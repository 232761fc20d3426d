"""Which model scores which benchmark.

With `from`, the model of that stage scores everything. Otherwise each benchmark is scored by the latest earlier stage
that was trained on it: `glue/mrpc` by the last stage with `task: glue/mrpc`, and the id of a supervised stage by that
stage. Without `benchmarks`, every task trained before is scored. What nothing was trained on is scored by the recipe's
own checkpoint, which may have been fine-tuned elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.blocks import Found
from pipelines.evaluation.labels import same_classes
from pipelines.protocols import Task
from pipelines.recipe import START, Recipe, Stage
from pipelines.registry import TASKS, nearest


@dataclass(frozen=True)
class Choice:
    """One benchmark and the model that is scored on it."""

    name: str
    """`glue/mrpc`, or the id of the stage that describes an inline task: the key in `metrics.json`."""
    task: Any
    """The benchmark as a recipe writes it: a name, or the block of an inline task."""
    model: str
    """Id of the stage whose model is scored, or `model` for the recipe's own."""
    owner: Stage | None
    """The supervised stage that was trained on the benchmark's task, if there is one."""

    @property
    def kind(self) -> str:
        """The kind of the task, in the words of the TASK_KINDS table."""
        found: str = TASKS.load(self.task).kind if isinstance(self.task, str) else self.task.kind
        return found

    def trained_length(self, recipe: Recipe) -> int | None:
        """`max_source_length` or `max_length` of the stage that trained the model; None for the recipe's own model."""
        return self._trained(recipe, "max_source_length") or self._trained(recipe, "max_length")

    def trained_target_length(self, recipe: Recipe) -> int | None:
        """The same for the texts that the model learnt to write."""
        return self._trained(recipe, "max_target_length") or self._trained(recipe, "max_length")

    def _trained(self, recipe: Recipe, key: str) -> int | None:
        stage = next((each for each in recipe.stages if each.id == self.model), None)
        length: int | None = getattr(stage, key, None)
        return length

    def open_task(self) -> Task:
        """The task itself, ready to be read."""
        from pipelines.data.tasks import resolve

        found: Task = resolve(self.task, self.name)
        return found


def choose(recipe: Recipe, stage: Stage, benchmarks: Sequence[str] | None) -> tuple[list[Choice], list[Found]]:
    """What `stage` scores, and what is wrong with asking for it. Places of mistakes are relative to the stage."""
    earlier = recipe.stages[: recipe.stages.index(stage)]
    trained = {each.id: each for each in earlier if _trains_a_task(each)}
    found = _unfit_source(recipe, stage, earlier, trained)
    if found:
        return [], found
    if benchmarks is None:
        return _everything(recipe, stage, trained)
    choices: list[Choice] = []
    for position, name in enumerate(benchmarks):
        choice = _one(name, recipe, stage, trained)
        if isinstance(choice, Choice):
            choice = _unfit(choice, trained) or choice
        if isinstance(choice, str):
            found.append((("benchmarks", position), choice))
        elif choice.name in (each.name for each in choices):
            again = f"'{name}' scores '{choice.name}' a second time; use another evaluate stage to compare two models"
            found.append((("benchmarks", position), again))
        else:
            choices.append(choice)
    return choices, found


def _trains_a_task(stage: Stage) -> bool:
    return stage.stage == "supervised" and getattr(stage, "task", None) is not None


def _task_name(stage: Stage) -> str:
    task: Any = getattr(stage, "task", None)
    return task if isinstance(task, str) else stage.id


def _choice(owner: Stage, model: str) -> Choice:
    return Choice(_task_name(owner), getattr(owner, "task", None), model, owner)


def _unfit_source(recipe: Recipe, stage: Stage, earlier: Sequence[Stage], trained: dict[str, Stage]) -> list[Found]:
    """`from` must lead to a model with a trained head."""
    source = stage.source
    if source is None or source in trained:
        return []
    allowed = f"Allowed: {', '.join(trained)}" if trained else "no earlier stage trains a task"
    if source == START:
        if recipe.model.architecture is None:
            return []
        return [(("from",), f"'{START}' is built from scratch, so it knows no task yet. {allowed}")]
    named = next((each for each in earlier if each.id == source), None)
    if named is None:  # `recipe` reports ids that do not exist
        return []
    return [(("from",), f"'{source}' is a '{named.stage}' stage, which leaves no model trained on a task. {allowed}")]


def _everything(recipe: Recipe, stage: Stage, trained: dict[str, Stage]) -> tuple[list[Choice], list[Found]]:
    """Every task trained before, each by the latest stage that trained it."""
    if stage.source in trained:
        return [_choice(trained[stage.source], stage.source)], []
    if stage.source is None and trained:
        latest = {_task_name(each): each for each in trained.values()}
        return [_choice(each, each.id) for each in latest.values()], []
    if stage.source not in (None, START):  # reported already
        return [], []
    if recipe.model.checkpoint is not None:
        return [], [
            (("benchmarks",), "is missing: no earlier stage trains a task, so say what to score the checkpoint on")
        ]
    return [], [
        ((), "has nothing to score: no earlier stage trains a task; add {stage: supervised, task: …} before it")
    ]


def _one(name: str, recipe: Recipe, stage: Stage, trained: dict[str, Stage]) -> Choice | str:
    """The choice for one named benchmark, or what is wrong with it."""
    if name in trained:
        return _choice(trained[name], stage.source or name)
    if name not in TASKS:
        other = next((each for each in recipe.stages if each.id == name), None)
        if other is not None:
            why = "comes later" if _trains_a_task(other) else f"is a '{other.stage}' stage, which trains no task"
            return f"stage '{name}' {why}. Allowed: {', '.join([*trained, *TASKS])}"
        known = [*trained, *TASKS]
        return f"unknown benchmark '{name}'.{nearest(name, known)} Available: {', '.join(known)}"
    needed = getattr(TASKS.load(name), "trained_by", None) or name  # glue/ax asks the models of glue/mnli
    owner = next((each for each in reversed(trained.values()) if _task_name(each) in (name, needed)), None)
    if stage.source is not None:
        return Choice(name, name, stage.source, owner)
    if owner is not None:
        return Choice(name, name, owner.id, owner)
    if recipe.model.checkpoint is not None:
        return Choice(name, name, START, None)
    others = f"; trained before: {', '.join(dict.fromkeys(map(_task_name, trained.values())))}" if trained else ""
    return (
        f"no earlier stage trained '{needed}', and the model is built from scratch{others}. "
        f"Add {{stage: supervised, task: {needed}}} before this stage"
    )


def _unfit(choice: Choice, trained: dict[str, Stage]) -> str | None:
    """Why a model that was trained on another task cannot be scored on this one, as far as no data need be read."""
    stage = trained.get(choice.model)
    if stage is None or _task_name(stage) == choice.name:
        return None
    learnt: Any = _choice(stage, stage.id).open_task()
    asked: Any = choice.open_task()
    known = learnt.labels and asked.labels  # otherwise the training rows tell them, when the model is opened
    if learnt.kind == asked.kind and (not known or same_classes(learnt.labels, asked.labels)):
        return None
    return (
        f"'{choice.name}' cannot be scored with the model of '{stage.id}', which learnt '{_task_name(stage)}' "
        f"({_outputs(learnt)}, needed: {_outputs(asked)}); name a stage that was trained on it in 'from'"
    )


def _outputs(task: Any) -> str:
    if task.kind == "seq2seq":
        return "texts"
    return "a number" if task.kind == "regression" else ", ".join(task.labels or ("classes of its own",))

"""Multi-task fine-tuning: several tasks at once on one body, a head for each. Liu et al. 2019,
arxiv.org/abs/1901.11504.

How often each task is seen is a share of the parts of optimizer steps, not of examples. With n_t training examples of
task t, at most K of them counted (T5's `K`, Raffel et al. 2020, arxiv.org/abs/1910.10683, section 3.5.2):

- proportional  n_t / sum n
- uniform       1 / T
- temperature   n_t^(1/T) / sum n^(1/T); mT5 writes the exponent as alpha (Xue et al. 2021, arxiv.org/abs/2010.11934)
- annealed      n_t^a / sum n^a with a = 1 - 0.8 (e - 1) / (E - 1) in epoch e of E (Stickland and Murray 2019,
                arxiv.org/abs/1902.02671, section 3.1): proportional at first, nearly uniform at the end
- explicit      the shares that the recipe gives, by task
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipelines.core.config import Block, ConfigIssue, ConfigIssues, Pick
from pipelines.core.errors import StageError
from pipelines.core.files import write_json
from pipelines.core.recipe import ID, Recipe, Stage
from pipelines.core.registry import TASK_KINDS, TUNERS, nearest
from pipelines.core.scores import smaller_is_better
from pipelines.core.training_arguments import TrainingArguments
from pipelines.tasks.subject import Subject
from pipelines.tasks.text_to_text import AsText
from pipelines.trainers import model_selection, tuning

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context, Head
    from pipelines.tasks.base import TaskKind
    from pipelines.tasks.training import PreparedTask
    from pipelines.trainers.model_selection import Examples
    from pipelines.trainers.multi_task_model import SharedBody


ANNEALED_BY = 0.8
"""What the exponent of annealed sampling loses from the first epoch to the last."""

Share = Annotated[float, Field(gt=0)]


SamplingName = Literal["proportional", "uniform", "temperature", "annealed", "explicit"]


class Sampling(Block):
    """How often each task is seen."""

    name: SamplingName = "proportional"
    """The rule."""
    temperature: float | None = Field(None, ge=1)
    """For `temperature`: 1 is proportional, large is uniform."""
    shares: dict[str, Share] | None = None
    """For `explicit`: how often each task is seen, by its id; only their ratios matter."""

    @model_validator(mode="after")
    def _settings_fit(self) -> Sampling:
        issues = []
        for key, rule in (("temperature", "temperature"), ("shares", "explicit")):
            given = getattr(self, key) is not None
            if given and self.name != rule:
                issues.append(((key,), f"belongs to {rule} sampling, and this is {self.name}; leave it out"))
            if not given and self.name == rule:
                issues.append(((key,), f"is missing, which {rule} sampling needs"))
        if issues:
            raise ConfigIssues(issues)
        return self

    def weights(self, sizes: Sequence[int], ids: Sequence[str], epoch: int, epochs: int) -> list[float]:
        """Shares of the tasks in `epoch` (the first is 0) of `epochs`; they add up to 1."""
        if self.name == "explicit":
            given = self.shares or {}
            weights = [given[each] for each in ids]
        elif self.name == "uniform":
            weights = [1.0] * len(sizes)
        else:
            exponent = {"proportional": 1.0, "temperature": 1 / (self.temperature or 1.0)}.get(
                self.name, annealed(epoch, epochs)
            )
            weights = [float(size) ** exponent for size in sizes]
        total = sum(weights)
        return [weight / total for weight in weights]


def annealed(epoch: int, epochs: int) -> float:
    """The exponent of annealed sampling."""
    return 1.0 if epochs <= 1 else 1 - ANNEALED_BY * min(epoch, epochs - 1) / (epochs - 1)


def in_words(value: Any) -> Any:
    """`sampling: uniform` is short for `sampling: {name: uniform}`."""
    return {"name": value} if isinstance(value, str) else value


SamplingField = Annotated[Sampling, BeforeValidator(in_words, json_schema_input_type=Sampling | SamplingName)]


def apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in whole numbers as near to the weights as can be (largest remainders); ties go to the first."""
    exact = [total * weight for weight in weights]
    counts = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda position: (counts[position] - exact[position], position))
    for position in by_remainder[: total - sum(counts)]:
        counts[position] += 1
    return counts


def parts_of_epoch(sizes: Sequence[int], part: int, tasks_per_step: int) -> int:
    """Parts of steps, each of `part` examples of one task, in an epoch: as many as it takes to see everything once, in
    whole steps."""
    parts = sum(-(-size // part) for size in sizes)
    return -(-parts // tasks_per_step) * tasks_per_step


class TaskOfSeveral(Subject):
    """One task of a multi-task stage."""

    id: str = Field("", pattern=ID, validate_default=False)
    """The task's name in the stage. Default: the last part of the task's own name, `mrpc` of `glue/mrpc`."""
    weight: float = Field(1.0, gt=0, le=1000)
    """What the task's loss is multiplied by."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "id" not in data and isinstance(data.get("task"), str):
            return {**data, "id": data["task"].rpartition("/")[2]}
        return data


class WrittenTask(TaskOfSeveral):
    """The same where answers are written."""

    as_text: ClassVar[bool] = True


def _is_decided(entry: TaskOfSeveral) -> bool:
    """Whether the answers of the task are classes or numbers, which can be written."""
    return bool(TASK_KINDS.load(entry.resolved(entry.id).kind).labels_texts)


def _can_be_written(kind: type[TaskKind]) -> bool:
    """Whether the answers to such tasks are texts, or classes and numbers that can be written."""
    return kind.labels_texts or kind.prompt_form == "texts"


def _written(entry: TaskOfSeveral) -> WrittenTask:
    """The entry, its answers written."""
    return WrittenTask.model_construct(**{name: getattr(entry, name) for name in type(entry).model_fields})


class MultiTask(Stage):
    """Fine-tune one body on several tasks, each with a head of its own."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: multi_task, from: model, tasks: [{task: glue/rte}, {task: glue/mrpc}]}",
        "{stage: multi_task, id: several, from: model, tasks: [{task: glue/rte, weight: 2.0}, "
        "{task: glue/mrpc, id: again, max_length: 64}, {id: own, task: {kind: classification, "
        "columns: [text], label: source, train: builtin/python-docs}}], sampling: {name: explicit, "
        "shares: {rte: 2.0, again: 1.0, own: 1.0}}, loss_weighting: uncertainty, tasks_per_step: 2, "
        "gradient_conflicts: 10, arguments: {eval_strategy: epoch, global_batch_size: 16}, "
        "early_stopping_patience: 2}",
        "{stage: multi_task, from: model, form: text_to_text, tasks: [{task: glue/rte}, {task: glue/stsb}], "
        "gradient_surgery: pcgrad, tuner: lora}",
    )
    stage: Literal["multi_task"] = "multi_task"
    tasks: tuple[TaskOfSeveral, ...] = Field(min_length=2, max_length=64)
    """What is learnt: entries with `task`, and further keys of the supervised stage about it."""
    form: Literal["heads", "text_to_text"] = "heads"
    """`heads`: a head for each task on one body; `text_to_text`: one model that writes every answer, as T5 does."""
    sampling: SamplingField = Field(default_factory=Sampling)
    """How often each task is seen: `proportional`, `uniform`, `annealed`, or a mapping for `temperature` and
    `explicit`."""
    max_examples_per_task: int | None = Field(None, ge=1)
    """Examples of a task that count for its share: T5's artificial limit. All of them are still seen in time."""
    tasks_per_step: int | None = Field(None, ge=1, le=64)
    """Tasks that share an optimizer step. Default: 1, or all of them with gradient surgery."""
    loss_weighting: Literal["fixed", "uncertainty"] = "fixed"
    """`fixed`: by each entry's `weight`; `uncertainty`: by a learnt variance of each task besides."""
    gradient_surgery: Literal["pcgrad"] | None = None
    """`pcgrad`: take from each task's gradient what conflicts with another's."""
    gradient_conflicts: int | None = Field(None, ge=1)
    """Steps between two measurements of the cosine between the tasks' gradients; needs several tasks a step."""
    tuner: Annotated[Any, Pick(TUNERS, "name")] = "full"
    """Which weights learn."""
    early_stopping_patience: int | None = Field(None, ge=1)
    """Evaluations without a better score after which a task leaves the mixture; needs `arguments.eval_strategy`."""
    arguments: TrainingArguments = TrainingArguments()
    """transformers TrainingArguments by name, and `global_batch_size`, which the tasks of a step share."""

    trains: ClassVar[bool] = True

    @model_validator(mode="after")
    def _entries_fit(self) -> MultiTask:
        issues: list[ConfigIssue] = []
        ids = self.ids
        for position, (name, entry) in enumerate(zip(ids, self.tasks, strict=True)):
            if not name:
                issues.append((("tasks", position, "id"), "is missing: a task that is described in place needs a name"))
            elif name in ids[:position]:
                issues.append(
                    (("tasks", position, "id"), f"'{name}' is the name of an earlier task too; names must differ")
                )
            if entry.auxiliary_lm is not None:
                issues.append(
                    (("tasks", position, "auxiliary_lm"), "is offered by the supervised stage only; leave it out")
                )
        if self.sampling.shares is not None and set(self.sampling.shares) != set(ids):
            odd = sorted(set(self.sampling.shares) ^ set(ids))
            hint = nearest(odd[0], ids) if odd[0] not in ids else ""
            issues.append(
                (
                    ("sampling", "shares"),
                    f"must name each of {', '.join(ids)} and nothing else; '{odd[0]}' does not fit.{hint}".rstrip("."),
                )
            )
        issues += self._unfit_steps()
        if issues:
            raise ConfigIssues(issues)
        return self

    def _unfit_steps(self) -> Iterator[ConfigIssue]:
        count = len(self.tasks)
        if self.parts > count:
            yield ("tasks_per_step",), f"is {self.parts}, but there are {count} tasks"
        if self.gradient_surgery and self.parts < 2:
            yield (
                ("tasks_per_step",),
                "is 1, but gradient surgery compares the tasks of a step; leave it out, or give at least 2",
            )
        if self.gradient_conflicts and self.parts < 2:
            yield ("gradient_conflicts",), "compares the tasks of a step; set tasks_per_step to at least 2"
        if self.parts == count and self.sampling.name != "uniform" and "sampling" in self.model_fields_set:
            yield (
                ("sampling",),
                f"is {self.sampling.name}, but every step sees every task; use uniform, or fewer tasks_per_step",
            )
        arguments, total = self.arguments, self.arguments.global_batch_size
        if total is not None and total % self.parts:
            yield (
                ("arguments", "global_batch_size"),
                f"is {total}, which {self.parts} tasks a step cannot share; make it a multiple of {self.parts}",
            )
        if self.parts > 1 and "gradient_accumulation_steps" in arguments.model_fields_set:
            yield (
                ("arguments", "gradient_accumulation_steps"),
                "follows from tasks_per_step; give global_batch_size instead",
            )
        if self.early_stopping_patience is not None and arguments.eval_strategy == "no":
            yield ("early_stopping_patience",), "needs arguments.eval_strategy: epoch or steps"

    @property
    def ids(self) -> list[str]:
        """The tasks' names."""
        return [entry.id for entry in self.tasks]

    @property
    def parts(self) -> int:
        """Tasks that share a step."""
        return self.tasks_per_step or (len(self.tasks) if self.gradient_surgery else 1)

    @property
    def every_step_sees_all(self) -> bool:
        """Whether sampling has nothing to decide."""
        return self.parts == len(self.tasks)

    @property
    def sampled(self) -> Sampling:
        """How often each task is seen in truth."""
        return Sampling(name="uniform") if self.every_step_sees_all else self.sampling

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        kinds = Counter()  # type: Counter[str]
        for place, entry in enumerate(self.tasks):
            for inner, message in self._learning_mistakes(entry, recipe):
                yield ("tasks", place, *inner), message
            kinds["seq2seq_lm" if self.writes else entry.learnt_as().head_kind] += 1
        if not self.writes and len({entry.pooling for entry in self.tasks}) > 1:
            first = self.tasks[0].pooling
            place = next(place for place, entry in enumerate(self.tasks) if entry.pooling != first)
            yield (
                ("tasks", place, "pooling"),
                f"is {self.tasks[place].pooling or 'left out'}, but that of the first task is {first or 'left out'}, "
                "and they share a body: give all of them one pooling, or none",
            )
        longest = max(entry.max_length for entry in self.tasks)
        for kind in kinds:
            yield from tuning.issues(self, recipe, kind, longest)
        if not self.writes and (self.tuner.positions or self.tuner.stages or self.tuner.quantization):
            yield (
                ("tuner",),
                f"is {self.tuner.name}, which several heads cannot share; use full, lora, adapter, ia3, "
                "bitfit or last_layer",
            )
        if self.tuner.adapts and len(kinds) > 1:
            yield (
                ("tuner",),
                f"is {self.tuner.name}, whose adapter is saved with heads of one kind, but the tasks need "
                f"{', '.join(sorted(kinds))}; use full",
            )
        processes = recipe.launch.num_processes
        told = recipe.launch.profile == "fsdp2"  # by the profile's own issues
        if self.gradient_surgery and isinstance(processes, int) and processes > 1 and not told:
            yield ("gradient_surgery",), f"works on one process, but launch.num_processes is {processes}"

    @property
    def writes(self) -> bool:
        """Whether every answer is a text."""
        return self.form == "text_to_text"

    def _learning_mistakes(self, entry: TaskOfSeveral, recipe: Recipe) -> Iterable[ConfigIssue]:
        kind = entry.resolved(entry.id).kind
        if self.writes and not _can_be_written(TASK_KINDS.load(kind)):
            written = ", ".join(TASK_KINDS.where(_can_be_written))
            yield ("task",), f"is of the kind {kind}, which has no form as text; those that have are {written}"
        else:
            yield from self.learnt(entry).learning_mistakes(entry.id, recipe)

    def learnt(self, entry: TaskOfSeveral) -> TaskOfSeveral:
        """The entry as it is learnt: its answers written, where they are."""
        return _written(entry) if self.writes and _is_decided(entry) else entry

    def _lessons(
        self, context: Context, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[list[PreTrainedModel], list[PreparedTask], list[Head]]:
        """(the model of each task, its lesson, its head); where answers are written the model is one."""
        models: list[Any] = []
        lessons, heads = [], []
        for entry in self.tasks:
            task: Any = entry.resolved(entry.id)
            task = AsText(task) if self.writes and _is_decided(entry) else task
            learnt = self.learnt(entry)
            heads.append(learnt.learnt_as().training_head(entry, task))
            # one base for all: that of the first, whose body the others get
            models.append(
                models[0] if models and self.writes else tuning.opened(self, context, heads[-1], keeps_base=not models)
            )
            lessons.append(
                learnt.training().prepare(
                    entry, task, context, models[-1], tokenizer, tuning.room_for_text(self, models[-1])
                )
            )
        return models, lessons, heads

    def cost(self, planning: Planning) -> StagePlan:
        from pipelines.trainers.multi_task_costs import cost

        return cost(self, planning)

    def subjects(self) -> Mapping[str, Any]:
        return {f"{self.id}/{entry.id}": self.learnt(entry) for entry in self.tasks}

    def content(self, recipe: Recipe) -> dict[str, str]:
        return {
            f"{entry.id}.{role}": content_hash
            for entry in self.tasks
            for role, content_hash in entry.training_content(entry.id).items()
        }

    def modules(self, recipe: Recipe) -> set[str]:
        return {TASK_KINDS.module("seq2seq" if self.writes else entry.resolved(entry.id).kind) for entry in self.tasks}

    def special_tokens(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(token for entry in self.tasks for token in entry.needed_tokens()))

    def texts(self) -> Iterator[str]:
        """The texts of all training rows, task by task."""
        return chain.from_iterable(entry.training_texts(entry.id) for entry in self.tasks)

    def run(self, context: Context) -> None:
        """Encode every task, mix, train, save a model a task and the body."""
        from pipelines.models.heads import head_settings
        from pipelines.trainers.multi_task_model import OfTheFirst, SharedBody
        from pipelines.trainers.multi_task_sampling import MixtureSampler, TaskMixture
        from pipelines.trainers.multi_task_trainer import (
            MultiTaskPlan,
            MultiTaskTrainer,
            collator,
            label_names,
            loss_of,
        )
        from pipelines.trainers.trainer import fit

        if self.gradient_surgery and context.world.size > 1:
            raise StageError(
                f"gradient_surgery works on one process, but there are {context.world.size}; set "
                "launch.num_processes: 1"
            )
        tokenizer = context.open_tokenizer()
        models, lessons, heads = self._lessons(context, tokenizer)
        examples, selections = self._divided(lessons, context.seed, self.arguments.eval_strategy != "no")
        shared = SharedBody(models, self.tuner, self.ids)
        if self.loss_weighting == "uncertainty":
            shared.weigh_by_uncertainty()
        mixture = TaskMixture(examples, [lesson.marked for lesson in lessons])
        sampler = partial(
            MixtureSampler,
            mixture,
            self.ids,
            self.sampled,
            tasks_per_step=self.parts,
            most=self.max_examples_per_task,
            by_length=self.arguments.train_sampling_strategy != "random",
        )
        plan = MultiTaskPlan(
            ids=self.ids,
            lessons=lessons,
            selections=selections,
            weights=[entry.weight for entry in self.tasks],
            squared=[head_settings(head).get("problem_type") == "regression" for head in heads],
            metrics=[lesson.metric for lesson in lessons],
            sampler=sampler,
            tasks_per_step=self.parts,
            surgery=self.gradient_surgery is not None,
            conflicts_every=self.gradient_conflicts,
            patience=self.early_stopping_patience,
        )
        shared, metrics = fit(
            context,
            shared,
            tokenizer,
            mixture,
            collate=collator(self.ids, lessons),
            loss=loss_of(self.ids, lessons),
            label_names=label_names(self.ids, lessons, plan.weights),
            arguments=self.arguments,
            overrides=self._overrides(context.world.size, lessons),
            selection=selections[0] if selections else None,
            tuner=OfTheFirst(self.tuner, shared),
            trainer_of=partial(MultiTaskTrainer, plan=plan),
        )
        self._save(context, shared, tokenizer, heads, metrics)

    def _divided(self, lessons: list[PreparedTask], seed: int, selects: bool) -> tuple[list[Examples], list[Examples]]:
        """(what each task is trained on, what it is selected by)."""
        if not selects:
            return [lesson.examples for lesson in lessons], []
        pairs = []
        for entry, lesson in zip(self.tasks, lessons, strict=True):
            pairs.append(model_selection.set_aside(lesson.examples, seed, entry.max_eval_samples, f"task '{entry.id}'"))
        return [train for train, _ in pairs], [held_out for _, held_out in pairs]

    def _overrides(self, processes: int, lessons: list[PreparedTask]) -> dict[str, Any]:
        """The batch divided among the tasks of a step, and the score that decides."""
        overrides: dict[str, Any] = {}
        each, accumulated = self.arguments.batch_sizes(processes)
        if self.parts > 1:
            share = each * accumulated // self.parts
            if share * self.parts != each * accumulated:
                raise StageError(
                    f"a step of {each * accumulated} examples a process cannot be shared by {self.parts} tasks; "
                    f"make arguments.global_batch_size a multiple of {self.parts * processes}"
                )
            overrides |= {"per_device_train_batch_size": share, "gradient_accumulation_steps": self.parts}
        if self.arguments.eval_strategy != "no" and not self.arguments.metric_for_best_model:
            scored = any(lesson.score is not None for lesson in lessons)
            overrides["metric_for_best_model"] = "mean" if scored else "loss"
        decides = (self.arguments.metric_for_best_model or "").removeprefix("eval_")
        owner = max((each for each in self.ids if decides.startswith(f"{each}_")), key=len, default=None)
        if owner is not None and self.arguments.greater_is_better is None:
            overrides["greater_is_better"] = not smaller_is_better(decides.removeprefix(f"{owner}_"))
        return overrides

    def _save(
        self,
        context: Context,
        shared: SharedBody,
        tokenizer: PreTrainedTokenizerBase,
        heads: list[Head],
        metrics: Mapping[str, float],
    ) -> None:
        from pipelines.models.fsdp import gathered

        with gathered(shared, world=context.world):
            if context.world.is_main:
                self._write(context, shared, tokenizer, heads, metrics)
        context.barrier()

    def _write(
        self,
        context: Context,
        shared: SharedBody,
        tokenizer: PreTrainedTokenizerBase,
        heads: list[Head],
        metrics: Mapping[str, float],
    ) -> None:
        import shutil

        from pipelines.trainers.checkpoints import name_final_base, write_head
        from pipelines.trainers.multi_task_model import linked, save_body, save_tasks

        temporary, final = context.folder / "tasks.tmp", context.folder / "tasks"
        for place in (temporary, final, context.folder / "model"):
            shutil.rmtree(place, ignore_errors=True)

        def beside(place: Path, task: int) -> None:
            tokenizer.save_pretrained(str(place))
            name_final_base(place, context)
            write_head(place, heads[task])

        save_tasks(shared, self.tuner, temporary, beside)
        temporary.rename(final)
        if self.writes:
            shutil.copytree(final / self.ids[0] / "model", context.folder / "model", copy_function=linked)
        elif self.tuner.merges:
            save_body(shared, self.tuner, context.folder / "model")
            tokenizer.save_pretrained(str(context.folder / "model"))
        write_json(context.folder / "metrics.json", metrics)

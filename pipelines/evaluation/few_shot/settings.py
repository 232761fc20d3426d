"""The block `few_shot` of an evaluate stage: which language model is asked about which tasks, and what is wrong with
it.

Brown et al. 2020, "Language Models are Few-Shot Learners", section 2.4, arxiv.org/abs/2005.14165: K examples of the
task stand before the question, drawn from its training rows, and the model completes the text. See
docs/how-to/few-shot.md. `from` names the stage whose model is asked; else it is the latest before that leaves a
language model: a pretrain stage, or a supervised one whose model writes. Where there is none it is the recipe's own
checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator

from pipelines.core.config import Block, ConfigIssue, ConfigIssues
from pipelines.core.interfaces import Head
from pipelines.core.recipe import START, Recipe, Stage, trained_by
from pipelines.core.registry import TASK_KINDS, TASKS, nearest
from pipelines.core.scores import score_names
from pipelines.evaluation.few_shot.prompts import AMONG_KNOWN, PromptTemplate, form_of, prompt_for, unfit

if TYPE_CHECKING:
    from pipelines.evaluation.evaluate import Evaluate


Normalisation = Literal["characters", "bytes", "tokens"]
Calibration = Literal["contextual", "answer_context"]
NORMALISED = {"characters": "acc_norm", "bytes": "acc_bytes", "tokens": "acc_tokens"}
"""The score of each way to divide a log-likelihood by the length of its answer."""


def _several(value: Any) -> Any:
    """One name stands for a list of it; `none` for an empty list."""
    if value == "none":
        return ()
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _names(*allowed: str) -> WithJsonSchema:
    one: dict[str, Any] = {"enum": list(allowed)}
    return WithJsonSchema({"anyOf": [{"enum": [*allowed, "none"]}, {"type": "array", "items": one}]})


class FewShot(Block):
    """Zero-, one- and few-shot questions."""

    shots: tuple[Annotated[int, Field(ge=0, le=1024)], ...] = Field((0,), min_length=1)
    """How many examples stand before a question; each number is a benchmark of its own: `glue/sst2/8-shot`."""
    draws: int = Field(1, ge=1, le=100)
    """How often other examples are drawn. Scores are means over the draws, and their spread stands in details.json."""
    seed: int | None = Field(None, ge=0, lt=2**32)
    """Draws the examples. Default: the stage's."""
    examples: Literal["question", "split"] = "question"
    """Whether examples are drawn for each question (GPT-3), or once for all questions of a split, which is faster."""
    stratified: bool = False
    """Whether the examples of a task with classes hold all classes equally often, as far as their number allows."""
    answer: Literal["likelihood", "generation"] | None = None
    """Whether the likeliest of the possible answers is taken, or what the model writes. Default: the likeliest where
    a task has possible answers, what is written where answers are texts."""
    normalisation: Annotated[
        tuple[Normalisation, ...], BeforeValidator(_several), _names("characters", "bytes", "tokens")
    ] = ("characters",)
    """By what the log-likelihood of an answer is divided for a second accuracy: characters (acc_norm, as lm_eval),
    bytes (acc_bytes), tokens (acc_tokens)."""
    calibration: Annotated[
        tuple[Calibration, ...], BeforeValidator(_several), _names("contextual", "answer_context")
    ] = ()
    """Corrections for answers that a model likes anyway: contextual (Zhao et al. 2021: acc_contextual), answer_context
    (Brown et al. 2020: acc_answer_context)."""
    prompts: Mapping[str, PromptTemplate] = Field(default_factory=dict)
    """Prompts by benchmark, instead of those that Finery has: `{glue/sst2: {text: "{sentence} It was", answers:
    [bad, good]}}`."""

    @field_validator("shots", "normalisation", "calibration")
    @classmethod
    def _once(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        again = [at for at, each in enumerate(value) if each in value[:at]]
        if again:
            raise ConfigIssues([((at,), f"'{value[at]}' is named twice") for at in again])
        return value

    def names(self, benchmark: str) -> dict[str, int]:
        """The keys of a benchmark in metrics.json, with the number of examples of each."""
        return {f"{benchmark}/{count}-shot": count for count in self.shots}

    def accuracies(self) -> tuple[str, ...]:
        """The scores of answers chosen by likelihood."""
        return (
            "acc",
            *(NORMALISED[each] for each in self.normalisation),
            *(f"acc_{each}" for each in self.calibration),
        )


HEADS = {"encoder": Head("masked_lm"), "decoder": Head("causal_lm"), "encoder-decoder": Head("seq2seq_lm")}


@dataclass(frozen=True)
class FewShotTask:
    """One benchmark that is asked."""

    name: str
    """A task's name, or the id of the stage that describes one in place."""
    task: Any
    """As a recipe writes it."""
    owner: str | None
    """Id of the stage that describes the task in place."""

    @property
    def kind(self) -> str:
        """The kind of the task, as a recipe writes it."""
        return str(self.open_task().kind if isinstance(self.task, str) else self.task.kind)

    def open_task(self) -> Any:
        """The task itself, ready to be read."""
        from pipelines.tasks.base import resolve

        return resolve(self.task, self.name)


def model_of(recipe: Recipe, stage: Stage) -> str | None:
    """Id of the stage whose model is asked, `model` for the recipe's own, None where there is none."""
    if stage.source is not None:
        return stage.source
    earlier = recipe.stages[: recipe.stages.index(stage)]
    written = {model: subject for model, subject in trained_by(earlier).items() if _writes(subject)}
    speaking: list[str] = [
        each.id for each in earlier if (each.stage == "pretrain" and not each.objective.unaskable) or each.id in written
    ]
    if speaking:
        return speaking[-1]
    return START if recipe.model.checkpoint is not None else None


def head_of(recipe: Recipe, model: str) -> Head | None:
    """The head that a stage's model is asked through; None where only its config tells."""
    if model == START:
        return None
    stage: Any = next((each for each in recipe.stages if each.id == model.partition("/")[0]), None)
    if stage is not None and stage.stage == "pretrain":
        head: Head = stage.objective.head
        return Head("masked_lm") if head.kind == "pretraining" else head
    subject = trained_by(recipe.stages).get(model)
    if subject is None:
        return None
    return Head("causal_lm" if TASK_KINDS.load(_kind(subject)).head_kind == "causal_lm" else "seq2seq_lm")


def reads_both_ways(recipe: Recipe, model: str) -> bool:
    """Whether the model was trained to read its context in both directions."""
    stage: Any = next((each for each in recipe.stages if each.id == model), None)
    return stage is not None and stage.stage == "pretrain" and bool(stage.objective.prefix_both_ways)


def subjects(recipe: Recipe, stage: Evaluate) -> list[FewShotTask]:
    """What is asked: only benchmarks that exist."""
    described = trained_by(recipe.stages[: recipe.stages.index(stage)])
    choices = []
    for name in stage.benchmarks or ():
        if name in described and not isinstance(described[name].task, str):
            choices.append(FewShotTask(name, described[name].task, name))
        elif name in stage.tasks:
            choices.append(FewShotTask(name, stage.tasks[name], None))
        elif name in TASKS:
            choices.append(FewShotTask(name, name, None))
    return choices


def kinds(recipe: Recipe, stage: Evaluate) -> set[str]:
    """The kinds of the tasks that are asked."""
    return set() if stage.few_shot is None else {each.open_task().kind for each in subjects(recipe, stage)}


def scores(recipe: Recipe, stage: Evaluate) -> dict[str, list[str]]:
    """The keys of everything that is asked in metrics.json, with the names of its scores."""
    by_key: dict[str, list[str]] = {}
    settings = stage.few_shot
    if settings is None:
        return by_key
    for each in subjects(recipe, stage):
        task = each.open_task()
        names = _score_names(settings, task)
        suffixes = task.evaluation_splits
        by_key |= {
            key: [f"{name}{suffix}" for suffix in suffixes for name in names] for key in settings.names(each.name)
        }
    return by_key


def _score_names(settings: FewShot, task: Any) -> tuple[str, ...]:
    own = score_names(task.metrics)
    if form_of(task) not in ("classes", "choices"):
        return own
    if writes(settings, task):
        return ("acc",)
    return (*settings.accuracies(), *(name for name in own if name != "accuracy"))


def reads(recipe: Recipe, stage: Evaluate) -> tuple[str, ...]:
    """The stage whose model is asked, then those that describe a task in place."""
    owners = [each.owner for each in subjects(recipe, stage) if each.owner is not None]
    return tuple(dict.fromkeys([model_of(recipe, stage) or START, *owners]))


def content(recipe: Recipe, stage: Evaluate) -> dict[str, str]:
    """Hashes of the rows that are asked and of those that examples are drawn from, and of the prompts."""
    hashes: dict[str, str] = {}
    for each in subjects(recipe, stage):
        task = each.open_task()
        hashes |= {f"{each.name}:{split}": value for split, value in task.content().items()}
        if task.trained_by is not None:
            hashes |= {
                f"{task.trained_by}:{split}": value
                for split, value in TASKS.load(task.trained_by).content().items()
                if split == "train"
            }
        words = prompt_of(stage, each.name, task).model_dump_json()
        hashes[f"{each.name}:prompt"] = hashlib.sha256(words.encode()).hexdigest()
    return hashes


def prompt_of(stage: Evaluate, name: str, task: Any) -> PromptTemplate:
    """The stage's own prompt for a benchmark, else Finery's."""
    assert stage.few_shot is not None
    return stage.few_shot.prompts.get(name) or prompt_for(task)


def mistakes(stage: Evaluate, recipe: Recipe) -> Iterator[ConfigIssue]:
    """What is wrong with asking, places relative to the stage."""
    settings = stage.few_shot
    assert settings is not None
    yield from _unfit_model(stage, recipe)
    again = [at for at, name in enumerate(stage.baselines) if name in stage.baselines[:at]]
    yield from ((("baselines", at), f"'{stage.baselines[at]}' is named twice") for at in again)
    for key in ("datasets", "stride", "spans", "chat_template"):
        if key in stage.model_fields_set and getattr(stage, key) is not None:
            yield (key,), "is not for zero- and few-shot questions; leave it out, or use another evaluate stage"
    if stage.mixed_precision != "no":
        yield ("mixed_precision",), "is bf16, but zero- and few-shot questions are asked in float32; leave it out"
    if stage.benchmarks is None:
        yield ("benchmarks",), "is missing: few_shot asks a model about tasks that it was not trained on, so name them"
        return
    by_name = {each.name: each for each in subjects(recipe, stage)}
    for at, name in enumerate(stage.benchmarks):
        if name not in by_name:
            yield ("benchmarks", at), f"unknown benchmark '{name}'.{nearest(name, TASKS)} Available: {', '.join(TASKS)}"
        elif name in stage.benchmarks[:at]:
            yield ("benchmarks", at), f"'{name}' is named twice"
        else:
            yield from _unfit_task(stage, by_name[name], at, head_of(recipe, model_of(recipe, stage) or START))
    for name in settings.prompts:
        if name not in stage.benchmarks:
            yield (
                ("few_shot", "prompts", name),
                f"is a prompt for a benchmark that is not asked.{nearest(name, stage.benchmarks)} Asked: "
                f"{', '.join(stage.benchmarks)}",
            )


def _unfit_model(stage: Evaluate, recipe: Recipe) -> Iterator[ConfigIssue]:
    chosen = model_of(recipe, stage)
    earlier = recipe.stages[: recipe.stages.index(stage)]
    if chosen is None:
        yield (
            ("few_shot",),
            "asks a language model, and no earlier stage leaves one; add {stage: pretrain, …} before it, or "
            "start from a checkpoint",
        )
    elif chosen == START and recipe.model.checkpoint is None:
        yield ("from",), f"'{START}' is built from scratch, so it knows no language yet; name a pretrain stage"
    elif chosen != START:
        named: Any = next((each for each in earlier if each.id == chosen.partition("/")[0]), None)
        if named is None:  # `recipe` reports ids that do not exist
            return
        place = ("from",) if stage.source is not None else ("few_shot",)
        if named.stage == "pretrain" and named.objective.unaskable:
            yield (
                place,
                f"'{chosen}' was trained with {named.objective.name}, which {named.objective.unaskable}; "
                "ask another model",
            )
        elif named.stage != "pretrain" and not _writes(trained_by(earlier).get(chosen)):
            yield place, f"'{chosen}' is a '{named.stage}' stage, which leaves no language model; name a pretrain stage"


def _unfit_task(stage: Evaluate, subject: FewShotTask, at: int, head: Head | None) -> Iterator[ConfigIssue]:
    settings = stage.few_shot
    assert settings is not None
    task = subject.open_task()
    form = form_of(task)
    if TASK_KINDS.load(subject.kind).prompt_form is None:
        yield (
            ("benchmarks", at),
            f"'{subject.name}' is of the kind {subject.kind}, whose answers cannot be asked for in a prompt; "
            "train a head for it",
        )
        return
    prompt = prompt_of(stage, subject.name, task)
    for place, message in unfit(prompt, task):
        yield ("few_shot", "prompts", subject.name, *place), message
    if form == "numbers" and not isinstance(prompt.answers, tuple):
        yield (
            ("few_shot", "prompts"),
            f"must name the numbers that may answer '{subject.name}': {{{subject.name}: {{text: …, answers: "
            '["0", "1", …]}}}}',
        )
    if settings.answer == "likelihood" and form not in AMONG_KNOWN:
        yield (
            ("few_shot", "answer"),
            f"is likelihood, but '{subject.name}' has no possible answers to choose among; leave it out, or "
            "ask it in another stage",
        )
    if settings.answer == "generation" and form == "numbers":
        yield (
            ("few_shot", "answer"),
            f"is generation, but the numbers of '{subject.name}' are asked for by likelihood; leave it out",
        )
    if head is not None and head.kind == "masked_lm" and writes(settings, task):
        yield (
            ("benchmarks", at),
            f"'{subject.name}' needs an answer that is written, and an encoder writes none; ask a decoder or "
            "an encoder-decoder",
        )


def writes(settings: FewShot, task: Any) -> bool:
    """Whether the answer to a question of this task is written, not chosen."""
    return settings.answer == "generation" or form_of(task) not in AMONG_KNOWN


def _kind(subject: Any) -> str:
    task: Any = TASKS.load(subject.task) if isinstance(subject.task, str) else subject.task
    return "seq2seq" if getattr(subject, "as_text", False) else str(task.kind)


def _writes(subject: Any) -> bool:
    """Whether what was learnt are texts, from left to right, so that the model is a language model still."""
    objective: Any = getattr(subject, "objective", None)
    if subject is None or (objective is not None and objective.unaskable):
        return False
    return bool(TASK_KINDS.load(_kind(subject)).writes())

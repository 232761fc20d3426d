"""`finery data show`: what a stage would learn from, as its model would read it.

Nothing is trained. The tokenizer is the run's own (one that must be learnt is learnt, and found again by the run),
the model has no weights, and the examples come from the code that training uses. Of a stage that learns from
preferences both answers are shown, each with what the model learns to write of it; a reward model reads all of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import CommandError
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import IGNORED, Context, Head
from pipelines.core.load import load
from pipelines.core.model_types import usable_positions
from pipelines.core.recipe import Recipe, Stage
from pipelines.core.signals import StopSignal
from pipelines.data import chat_templates
from pipelines.models import heads, opening, remote_code
from pipelines.runs.run import RecipeRun
from pipelines.runs.workspace import RunFolder, StageStore
from pipelines.tasks.first_batch import pair_pieces, summary
from pipelines.tasks.preference.training import PreferenceTraining
from pipelines.tasks.text_to_text import AsText
from pipelines.trainers import input_formats, tuning
from pipelines.trainers.preferences import pairs_for
from pipelines.trainers.reward import HEAD

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.runs.run import RecipeRun

MOST_ROWS = 100


@dataclass(frozen=True)
class ShowDataRequest:
    """What `finery data show` was asked."""

    recipe: str
    overrides: tuple[str, ...] = ()
    stage: str | None = None
    rows: int = 2


@dataclass
class Listener:
    """Takes the place of an event log, and keeps what is said."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def emit(self, event: str, **fields: Any) -> None:
        """Keep one event."""
        self.events.append({"event": event, **fields})

    def of(self, stage: str) -> Listener:
        """The same, whoever speaks."""
        return self

    def taken(self, event: str) -> list[dict[str, Any]]:
        """The events of this name so far, which are then forgotten."""
        events = [each for each in self.events if each["event"] == event]
        self.events = [each for each in self.events if each["event"] != event]
        return events


def answer(fields: JSONObject) -> JSONObject:
    """The first examples of every task of a stage, as plain data. Raises FineryError."""
    request = ShowDataRequest(**{**fields, "overrides": tuple(fields.get("overrides", ()))})
    recipe = load(request.recipe, request.overrides)
    stage = chosen(recipe, request.stage)
    with TemporaryDirectory(prefix="data-show-") as place:
        job = RecipeRun(recipe, RunFolder(Path(place) / recipe.name, StageStore()), StopSignal())
        with job.place.open(recipe.to_yaml()):
            job.begin()
            job.make_tokenizer()
            context, listener = _context(job, stage, Path(place))
            about = {"recipe": recipe.name, "stage": stage.id}
            if learns_pairs(stage):
                return about | {"tasks": [shown(context, listener, stage, min(request.rows, MOST_ROWS))]}
            return about | {
                "tasks": [
                    _shown(context, listener, name, each, min(request.rows, MOST_ROWS))
                    for name, each in stage.subjects().items()
                ]
            }


def chosen(recipe: Recipe, name: str | None) -> Stage:
    """The stage of that id, else the first that learns a task. Raises CommandError."""
    teaching: list[Stage] = [stage for stage in recipe.stages if stage.subjects() or learns_pairs(stage)]
    names = ", ".join(stage.id for stage in teaching) or "none of this recipe's"
    if name is None:
        if not teaching:
            raise CommandError(
                f"'{recipe.name}' has no stage that learns a task; data show is for stages that learn labelled "
                "rows or preferences"
            )
        return teaching[0]
    stage_of_name = next((stage for stage in teaching if stage.id == name), None)
    if stage_of_name is None:
        raise CommandError(f"'{name}' is no stage that learns a task. Stages that do: {names}")
    return stage_of_name


def _context(job: RecipeRun, stage: Stage, place: Path) -> tuple[Context, Listener]:
    listener = Listener()
    context = job.context(stage, place, "")
    stand_ins: dict[str, Any] = {
        "events": listener,
        "open_model": lambda head, **_: bare_model(job, head),
        "open_tokenizer": lambda stage_id=None: _tokenizer(job, stage_id),
    }
    return replace(context, **stand_ins), listener


def bare_model(job: RecipeRun, head: Head) -> PreTrainedModel:
    """The recipe's model with `head` and without weights: what lessons ask it is its shape."""
    import torch

    own = job.recipe.model
    with torch.device("meta"):
        if own.checkpoint is None:
            return opening.build(own.shape(), head, job.open_tokenizer(), 0)
        from transformers import AutoConfig

        kind = heads.auto_class(head)
        where = remote_code.opening(own.checkpoint, own.revision, own)
        config = AutoConfig.from_pretrained(own.checkpoint, **where)
        return kind.from_config(config, **{key: value for key, value in where.items() if key != "revision"})


def _tokenizer(job: RecipeRun, stage_id: str | None) -> PreTrainedTokenizerBase:
    """The run's tokenizer, with the chat template that the stages up to this one would have left in it."""
    tokenizer = job.open_tokenizer()
    if stage_id is not None:
        stage: Any = job.recipe.stage(stage_id)
        for each in reversed([stage, *job.recipe.lineage(stage)]):
            if getattr(each, "chat_template", None) is not None:
                chat_templates.adopt(tokenizer, each.chat_template)
    return tokenizer


def _shown(context: Context, listener: Listener, name: str, subject: Any, rows: int) -> JSONObject:
    """One task: what its lesson said about itself, and its first examples."""
    task: Any = subject.resolved(name.partition("/")[2] or name)
    task, tokenizer = AsText(task) if subject.as_text else task, context.open_tokenizer()
    plain = subject.model_copy(update={"auxiliary_lm": None})
    model = context.open_model(subject.learnt_as().training_head(plain, task))
    if getattr(plain, "input_format", None):
        input_formats.adopt(tokenizer)
    training = subject.training()
    lesson = training.prepare(plain, task, context, model, tokenizer, usable_positions(model.config))
    sample = next(iter(listener.taken("sample")), {})
    examples = [
        dict(lesson.examples[at]) | {"draw": at} if lesson.marked else dict(lesson.examples[at])
        for at in range(min(rows, len(lesson.examples)))
    ]
    return {
        "id": name,
        "task": task.name,
        "kind": task.kind,
        **{
            key: sample[key] for key in ("format", "template", "learnt_share", "truncated", "left_out") if key in sample
        },
        "examples": len(lesson.examples),
        "lengths": summary(lesson.examples.lengths),
        "rows": [training.show(tokenizer, task, lesson.collate([example])) for example in examples],
        "warnings": [each["message"] for each in listener.taken("warning")],
        "notes": [each["message"] for each in listener.taken("progress") if "message" in each],
    }


SIDES = ("chosen", "rejected")


def learns_pairs(stage: Stage) -> bool:
    """Whether a stage's examples are pairs of answers."""
    return hasattr(stage, "preference_rows")


def shown(context: Context, listener: Listener, stage: Any, rows: int) -> JSONObject:
    """The stage's pairs: what it says about them, and the first of them, each as two rows."""
    tokenizer = context.open_tokenizer()
    examples = _examples(context, stage, tokenizer)
    sample: dict[str, Any] = next(iter(listener.taken("sample")), {})
    pairs = [pair_pieces(tokenizer, examples[at]) for at in range(min(rows, len(examples)))]
    learnt, tokens = _learnt(examples)
    return {
        "id": stage.id,
        "task": stage.task if isinstance(stage.task, str) else stage.id,
        "kind": "preference",
        "learnt_share": learnt / max(1, tokens),
        **{key: sample[key] for key in ("format", "truncated", "left_out") if key in sample},
        "examples": len(examples),
        "lengths": summary(examples.lengths),
        "rows": [
            {
                "pieces": [list(piece) for piece in pair[side]],
                "answer": f"the {side} answer of pair {at}",
                "tokens": _tokens(examples[at - 1], side),
            }
            for at, pair in enumerate(pairs, start=1)
            for side in SIDES
        ],
        "warnings": [each["message"] for each in listener.taken("warning")],
        "notes": [each["message"] for each in listener.taken("progress") if "message" in each],
    }


def _examples(context: Context, stage: Any, tokenizer: PreTrainedTokenizerBase) -> Any:
    if stage.scores:
        model = context.open_model(HEAD)
        length = usable_positions(model.config)
        return PreferenceTraining().prepare(stage, None, context, model, tokenizer, length).examples
    model, _ = tuning.opened_policy(stage, context)
    return pairs_for(stage, context, model, tokenizer, usable_positions(model.config))[0]


def _tokens(example: Any, side: str) -> int:
    ids: Sequence[int] = example[side]["input_ids"] if isinstance(example[side], dict) else example[side]
    return len(ids) + len(example.get("source", ()))


def _learnt(examples: Any) -> tuple[int, int]:
    """(tokens that are learnt, all tokens) of both sides."""
    labels = [row for side in SIDES for row in getattr(examples, f"{side}_labels", ())]
    total = sum(_tokens(examples[at], side) for at in range(len(examples)) for side in SIDES)
    return sum(label != IGNORED for row in labels for label in row), total

"""Learning to write: pairs of a source and a target."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.core import architecture_fields
from pipelines.core.config import ConfigIssue
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head, HeadKind
from pipelines.core.registry import OBJECTIVES
from pipelines.tasks.training import KEYS_PAIR_KEYS, PreparedTask, TaskTraining, tell_truncated, training_rows

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe
    from pipelines.tasks.base import Task
    from pipelines.tasks.training import Subject


def objective_of(subject: Subject) -> Any:
    """What the model is asked to do with a pair: that of the recipe, else teacher forcing."""
    return OBJECTIVES.load("seq2seq")() if subject.objective is None else subject.objective


def lengths_of(subject: Subject) -> tuple[int, int]:
    """Tokens after which a source and a target are cut."""
    return subject.max_source_length or subject.max_length, subject.max_target_length or subject.max_length


class Pairs(TaskTraining):
    """Teacher forcing, or mask-predict, on pairs of texts."""

    head_kind: ClassVar[HeadKind] = "seq2seq_lm"

    def head(self, subject: Subject, task: Task) -> Head:
        found: Head = objective_of(subject).head
        return found

    def columns(self, task: Task) -> tuple[str, ...]:
        return (*task.columns, task.label)  # a tokenizer that learnt from others is another one

    def mistakes(self, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        if subject.auxiliary_lm is not None:
            yield (
                ("auxiliary_lm",),
                "is for tasks with one answer a text, but this task's answers are texts; leave it out",
            )
        objective = objective_of(subject)
        if not objective.pairs:
            fit = ", ".join(name for name in OBJECTIVES if OBJECTIVES.load(name).pairs)
            yield (
                ("objective",),
                f"is {objective.name}, which learns from text alone; a task of pairs takes one of {fit}",
            )
            return
        shape = recipe.model.architecture
        if shape is None:
            return
        if objective.head.kind not in (known := architecture_fields.heads(shape)):
            yield (
                ("task",),
                f"is a task of pairs, which needs a model that writes ({objective.head.kind}); this architecture has {', '.join(known)}",
            )
            return
        words = architecture_fields.resolve(shape)
        if (why := objective.misfit(words)) is not None:
            yield ("objective",), f"is {objective.name}, which {why}"
        positions = words.get("max_position_embeddings")
        for key in KEYS_PAIR_KEYS[1:]:
            given = getattr(subject, key)
            if isinstance(positions, int) and isinstance(given, int) and positions < given:
                yield (key,), f"is {given}, but the model has max_position_embeddings {positions}"

    def prepare(
        self, subject: Subject, task: Task, context: Context, model: Any, tokenizer: Any, longest: int | None
    ) -> PreparedTask:
        from pipelines.data.encoding import encode_pairs

        objective = objective_of(subject)
        why = objective.misfit({"model_type": model.config.model_type, **model.config.to_dict()})
        if why is not None:
            raise ModelError(f"the objective {objective.name} {why}")
        source, target = (length if longest is None else min(length, longest) for length in lengths_of(subject))
        examples = encode_pairs(tokenizer, training_rows(subject, task), source, target)
        what = f"pairs are cut to {source} tokens of the source and {target} of the target"
        tell_truncated(
            context, examples.truncated, len(examples), what, "max_source_length and max_target_length set the limits"
        )
        collate = objective.collate(tokenizer, context.seed, model.config)
        return PreparedTask(examples, collate, objective.loss, objective.label_names, marked=True)

"""Learning classes and numbers: a head on the whole text, or on a pair of texts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.blocks import Found
from pipelines.errors import DataError
from pipelines.fields import architectures
from pipelines.protocols import HeadKind
from pipelines.trainers import auxiliary_lm, class_keys, pair_keys
from pipelines.trainers.lesson import LABELS, Lesson, Teacher, tell_truncated, training_rows

if TYPE_CHECKING:
    from pipelines.data.tasks import Task
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe
    from pipelines.trainers.subject import Subject


class Classifying(Teacher):
    """Cross-entropy over classes, squared error for numbers, and GPT's auxiliary loss beside them on demand."""

    head_kind: ClassVar[HeadKind] = "sequence_classification"
    smoothed: ClassVar[tuple[str, ...]] = ("classification",)

    def mistakes(self, subject: Subject, name: str, recipe: Recipe) -> Iterable[Found]:
        shape = recipe.model.architecture
        if subject.auxiliary_lm is not None and shape and (sentence := auxiliary_lm.misfit(architectures.resolve(shape))):
            yield ("auxiliary_lm",), sentence
        yield from pair_keys.useless(subject, name)

    def prepare(self, subject: Subject, task: Task, context: Context, model: Any, tokenizer: Any, longest: int | None) -> Lesson:
        from pipelines.data.encoding import collate, encode
        from pipelines.trainers.losses import IGNORED, classification_loss, regression_loss

        rows = training_rows(subject, task)
        if not task.head.labels and any(label == IGNORED for label in rows.labels or ()):
            raise DataError(f"task '{task.name}' has a label of exactly {IGNORED}, which stands for 'no label'; shift the labels")
        limit = subject.max_length if longest is None else min(subject.max_length, longest)
        examples = encode(tokenizer, rows, limit)
        tell_truncated(context, examples.truncated, len(examples), f"rows are cut to {limit} tokens", "max_length sets the limit")
        together: Any = partial(collate, tokenizer)
        loss: Any = regression_loss
        if task.head.labels:
            weights = class_keys.class_weights(subject, task, rows.labels or ())
            loss = partial(classification_loss, smoothing=subject.label_smoothing_factor, weights=weights)
        if subject.auxiliary_lm is None:
            return Lesson(examples, together, loss, LABELS, score=context.score(task), metric=task.metrics[0])
        auxiliary_lm.attach(model, context.open_model)
        return Lesson(
            examples,
            auxiliary_lm.with_next_tokens(together),
            auxiliary_lm.with_language_loss(loss),
            {"labels": 1.0, "lm_labels": subject.auxiliary_lm},
            score=context.score(task),
            metric=task.metrics[0],
            finish=auxiliary_lm.detach,
        )

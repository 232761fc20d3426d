"""Learning classes and numbers: a head on the whole text, or on a pair of texts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.core import architecture_fields
from pipelines.core.config import ConfigIssue
from pipelines.core.errors import DataError
from pipelines.core.interfaces import HeadKind
from pipelines.tasks import auxiliary_lm, training
from pipelines.tasks.training import LABELS, PreparedTask, TaskTraining, tell_truncated, training_rows

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe
    from pipelines.tasks.base import Task
    from pipelines.tasks.training import Subject


class Classifying(TaskTraining):
    """Cross-entropy over classes, squared error for numbers, and GPT's auxiliary loss beside them on demand."""

    head_kind: ClassVar[HeadKind] = "sequence_classification"
    smoothed: ClassVar[tuple[str, ...]] = ("classification",)

    def mistakes(self, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        shape = recipe.model.architecture
        if (
            subject.auxiliary_lm is not None
            and shape
            and (sentence := auxiliary_lm.misfit(architecture_fields.resolve(shape)))
        ):
            yield ("auxiliary_lm",), sentence
        yield from training.useless_pair_keys(subject, name)

    def prepare(
        self, subject: Subject, task: Task, context: Context, model: Any, tokenizer: Any, longest: int | None
    ) -> PreparedTask:
        from pipelines.data.encoding import collate, encode
        from pipelines.models.log_probabilities import IGNORED
        from pipelines.objectives.losses import classification_loss, regression_loss
        from pipelines.tasks.scoring import score

        rows = training_rows(subject, task)
        if not task.head.labels and any(label == IGNORED for label in rows.labels or ()):
            raise DataError(
                f"task '{task.name}' has a label of exactly {IGNORED}, which stands for 'no label'; shift the labels"
            )
        limit = subject.max_length if longest is None else min(subject.max_length, longest)
        examples = encode(tokenizer, rows, limit)
        tell_truncated(
            context, examples.truncated, len(examples), f"rows are cut to {limit} tokens", "max_length sets the limit"
        )
        together: Any = partial(collate, tokenizer)
        loss: Any = regression_loss
        if task.head.labels:
            weights = training.class_weights(subject, task, rows.labels or ())
            loss = partial(classification_loss, smoothing=subject.label_smoothing_factor, weights=weights)
        if subject.auxiliary_lm is None:
            return PreparedTask(examples, together, loss, LABELS, score=score(task), metric=task.metrics[0])
        auxiliary_lm.attach(model, context.open_model)
        return PreparedTask(
            examples,
            auxiliary_lm.with_next_tokens(together),
            auxiliary_lm.with_language_loss(loss),
            {"labels": 1.0, "lm_labels": subject.auxiliary_lm},
            score=score(task),
            metric=task.metrics[0],
            finish=auxiliary_lm.detach,
        )

"""Learning to choose the best of several options: tasks of the kind `multiple_choice`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.blocks import Found
from pipelines.protocols import HeadKind
from pipelines.trainers import auxiliary_lm, pair_keys
from pipelines.trainers.lesson import LABELS, Lesson, Teacher, tell_truncated, training_rows
from pipelines.trainers.subject import texts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipelines.data.tasks import Task
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe
    from pipelines.trainers.subject import Subject


class Choosing(Teacher):
    """Cross-entropy over the options, each of which is scored beside the context. Devlin et al. 2019, "BERT", section 4.4."""

    head_kind: ClassVar[HeadKind] = "multiple_choice"
    smoothed: ClassVar[tuple[str, ...]] = ("multiple_choice",)

    def mistakes(self, subject: Subject, name: str, recipe: Recipe) -> Iterable[Found]:
        yield from auxiliary_lm.useless(subject, name)
        yield from pair_keys.useless(subject, name)

    def texts(self, rows: Any) -> Iterator[str]:
        yield from texts_of(rows)
        for options in rows.options:
            yield from options

    def prepare(self, subject: Subject, task: Task, context: Context, model: Any, tokenizer: Any, longest: int | None) -> Lesson:
        from pipelines.data.choices import collate_choices, encode_choices
        from pipelines.data.multiple_choice import ChoiceRows
        from pipelines.trainers.losses import classification_loss

        rows = training_rows(subject, task)
        assert isinstance(rows, ChoiceRows)
        limit = subject.max_length if longest is None else min(subject.max_length, longest)
        examples = encode_choices(tokenizer, rows, limit)
        sequences = len(examples) * rows.choices
        tell_truncated(context, examples.truncated, sequences, f"sequences are cut to {limit} tokens", "max_length sets the limit")
        loss: Any = partial(classification_loss, smoothing=subject.label_smoothing_factor)
        together: Any = partial(collate_choices, tokenizer)
        return Lesson(examples, together, loss, LABELS, score=context.score(task), metric=task.metrics[0])

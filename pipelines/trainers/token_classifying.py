"""Learning a class for each word: tasks of the kind `token_classification`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.blocks import Found
from pipelines.errors import DataError
from pipelines.fields.scores import score_names
from pipelines.protocols import HeadKind
from pipelines.trainers import auxiliary_lm, pair_keys
from pipelines.trainers.lesson import LABELS, Lesson, Teacher, training_rows

if TYPE_CHECKING:
    from pipelines.data.tasks import Task
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe
    from pipelines.trainers.subject import Subject


class TokenClassifying(Teacher):
    """Cross-entropy over the tokens that begin a word. Devlin et al. 2019, "BERT", section 5.3."""

    head_kind: ClassVar[HeadKind] = "token_classification"
    smoothed: ClassVar[tuple[str, ...]] = ("token_classification",)

    def mistakes(self, subject: Subject, name: str, recipe: Recipe) -> Iterable[Found]:
        yield from auxiliary_lm.useless(subject, name)
        yield from pair_keys.useless(subject, name)

    def prepare(self, subject: Subject, task: Task, context: Context, model: Any, tokenizer: Any, longest: int | None) -> Lesson:
        from pipelines.data.token_classification import WordRows
        from pipelines.data.word_labels import collate_words, encode_words
        from pipelines.trainers.losses import classification_loss

        rows = training_rows(subject, task)
        assert isinstance(rows, WordRows)
        limit = subject.max_length if longest is None else min(subject.max_length, longest)
        examples = encode_words(tokenizer, rows, limit)
        labelled = sum(int((words >= 0).sum()) for words in examples.words)
        words = sum(len(row) for row in rows.words)
        if labelled == 0:
            raise DataError(f"task '{task.name}': the tokenizer makes no token of any word, so there is nothing to learn")
        if context.world.is_main:
            if examples.truncated:
                what = f"{examples.truncated} of {len(rows)} texts are longer than {limit} tokens and are read in several parts"
                context.events.emit("progress", message=what)
            if labelled < words:
                level = "warning" if words - labelled > 0.05 * words else "progress"
                context.events.emit(level, message=f"{words - labelled} of {words} words have no token of their own and are not learnt from")
        loss: Any = partial(classification_loss, smoothing=subject.label_smoothing_factor)
        metric = score_names(task.metrics)[0]
        return Lesson(examples, partial(collate_words, tokenizer), loss, LABELS, score=context.score(task), metric=metric)

"""Learning where an answer starts and ends in a text: tasks of the kind `qa`.

Devlin et al. 2019, "BERT", section 4.2: the loss is the mean of the cross-entropies of the first and of the last token of
the answer. A window that does not hold it points twice to its blank, as questions without an answer do (section 4.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.blocks import Found
from pipelines.errors import DataError, ModelError
from pipelines.fields.directions import looks_back_only
from pipelines.protocols import HeadKind
from pipelines.trainers import auxiliary_lm, pair_keys, span_keys
from pipelines.trainers.lesson import LABELS, Lesson, Teacher, training_rows

if TYPE_CHECKING:
    from pipelines.data.tasks import Task
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe
    from pipelines.trainers.subject import Subject


class SpanFinding(Teacher):
    """Cross-entropy over the tokens of a window, for the first and the last token of the answer."""

    head_kind: ClassVar[HeadKind] = "question_answering"
    smoothed: ClassVar[tuple[str, ...]] = ()

    def mistakes(self, subject: Subject, name: str, recipe: Recipe) -> Iterable[Found]:
        yield from auxiliary_lm.useless(subject, name)
        yield from pair_keys.useless(subject, name)
        yield from span_keys.mistakes(subject)

    def prepare(self, subject: Subject, task: Task, context: Context, model: Any, tokenizer: Any, longest: int | None) -> Lesson:
        from pipelines.data.context_windows import collate_questions, encode_questions
        from pipelines.data.extractive_qa import QuestionRows
        from pipelines.data.window_sizes import SHORTEST, stride_of
        from pipelines.trainers.losses import span_loss

        rows = training_rows(subject, task)
        assert isinstance(rows, QuestionRows)
        limit = subject.max_length if longest is None else min(subject.max_length, longest)
        if limit < SHORTEST:
            raise ModelError(f"the model reads {limit} tokens at once, too few for a question and a part of its context ({SHORTEST})")
        back = looks_back_only({"model_type": model.config.model_type, **model.config.to_dict()})
        windows = encode_questions(tokenizer, rows, limit, stride_of(limit, subject.doc_stride), last_blank=back)
        if windows.unanswered == len(rows):
            raise DataError(
                f"task '{task.name}': no window of {limit} tokens holds a whole answer, so there is nothing to learn; raise max_length"
            )
        self._tell(context, windows, len(rows), limit)
        return Lesson(windows, partial(collate_questions, tokenizer), span_loss, LABELS)

    def _tell(self, context: Context, windows: Any, rows: int, limit: int) -> None:
        """Events about what long contexts and questions come to."""
        if not context.world.is_main:
            return
        if windows.truncated:
            what = f"{windows.truncated} of {rows} contexts are read in several windows of {limit} tokens, {len(windows)} in all"
            context.events.emit("progress", message=what)
        lost = {"questions lost their end": windows.cut, "answers stand whole in no window": windows.unanswered}
        for what, count in lost.items():
            if count:
                level = "warning" if count > 0.05 * rows else "progress"
                context.events.emit(level, message=f"{count} of {rows} {what} ({count / rows:.1%}); max_length and doc_stride set the limits")

"""Learning numbers: a head with one output on the whole text, or on a pair of texts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pipelines.core.errors import DataError
from pipelines.core.interfaces import IGNORED
from pipelines.data.encoding import EncodedRows, collate, encode, few_lengths
from pipelines.data.ragged import made_once
from pipelines.objectives.losses import regression_loss
from pipelines.tasks import auxiliary_lm
from pipelines.tasks.scoring import score
from pipelines.tasks.training import PreparedTask, TaskTraining, tell_truncated, training_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.interfaces import Context
    from pipelines.tasks.base import LabelledTask
    from pipelines.tasks.subject import Subject


class RegressionTraining(TaskTraining):
    """Squared error, and GPT's auxiliary loss beside it on demand."""

    def prepare(
        self,
        subject: Subject,
        task: LabelledTask,
        context: Context,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        longest: int | None,
    ) -> PreparedTask:
        limit = subject.max_length if longest is None else min(subject.max_length, longest)

        def read() -> EncodedRows:
            rows = training_rows(subject, task)
            if any(label == IGNORED for label in rows.labels or ()):
                raise DataError(
                    f"task '{task.name}' has a label of exactly {IGNORED}, which stands for 'no label'; shift the "
                    "labels"
                )
            return encode(tokenizer, rows, limit)

        examples = made_once(context, subject.id, read)
        tell_truncated(
            context, examples.truncated, len(examples), f"rows are cut to {limit} tokens", "max_length sets the limit"
        )
        return auxiliary_lm.prepared(
            subject,
            context,
            model,
            examples,
            partial(collate, tokenizer, **few_lengths(limit)),
            partial(regression_loss, head_alone=subject.auxiliary_lm is None),
            score(task),
            task.metrics[0],
        )

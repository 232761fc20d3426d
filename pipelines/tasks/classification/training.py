"""Learning classes: a head on the whole text, or on a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from pipelines.core.errors import DataError
from pipelines.data.encoding import EncodedRows, collate, encode, few_lengths
from pipelines.data.ragged import made_once
from pipelines.models.predict import device
from pipelines.objectives.losses import classification_loss
from pipelines.tasks import auxiliary_lm
from pipelines.tasks.scoring import score
from pipelines.tasks.subject import wrong_count
from pipelines.tasks.training import PreparedTask, TaskTraining, tell_truncated, training_rows

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.interfaces import Context
    from pipelines.tasks.base import LabelledTask
    from pipelines.tasks.subject import Subject


class ClassificationTraining(TaskTraining):
    """Cross-entropy over classes, and GPT's auxiliary loss beside it on demand."""

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

        def read() -> tuple[EncodedRows, Tensor | None]:
            rows = training_rows(subject, task)
            return encode(tokenizer, rows, limit), class_weights(subject, task, rows.labels or ())

        examples, weights = made_once(context, subject.id, read)
        tell_truncated(
            context, examples.truncated, len(examples), f"rows are cut to {limit} tokens", "max_length sets the limit"
        )
        smoothing, alone = subject.label_smoothing_factor, subject.auxiliary_lm is None
        weights = None if weights is None else weights.to(device())  # once: a copy in each step would wait for a GPU
        loss = partial(classification_loss, smoothing=smoothing, weights=weights, head_alone=alone)
        return auxiliary_lm.prepared(
            subject,
            context,
            model,
            examples,
            partial(collate, tokenizer, **few_lengths(limit)),
            loss,
            score(task),
            task.metrics[0],
        )


def class_weights(subject: Subject, task: LabelledTask, labels: Sequence[object]) -> Tensor | None:
    """Weights (classes,) by which the loss of each class is multiplied, as a tensor; None where all count the same.

    `balanced` is n / (classes · n_class), scikit-learn's formula. Any weights are scaled so that their mean over the
    training rows is 1: the loss of a whole epoch is then torch's weighted mean, and the learning rate keeps its
    meaning. A batch is divided by its number of examples, not by its own sum of weights, which would make what an
    example counts depend on the others in its batch. Raises DataError for weights that do not fit the classes.
    """
    if subject.class_weights is None:
        return None
    names = task.head.labels
    counts = torch.bincount(torch.tensor(list(labels)), minlength=len(names)).double()
    if subject.class_weights == "balanced":
        weights = torch.where(counts > 0, counts.sum() / ((counts > 0).sum() * counts.clamp(min=1)), 1.0)
    elif len(subject.class_weights) != len(names):
        raise DataError(f"task '{task.name}': class_weights {wrong_count(subject.class_weights, names)}")
    else:
        weights = torch.tensor(subject.class_weights, dtype=torch.double)
    mean = (weights * counts).sum() / counts.sum()
    if mean == 0:
        raise DataError(f"task '{task.name}': class_weights are 0 for every class that the training rows have")
    return (weights / mean).float()

"""How a task is learnt: what each kind of task hands to the training loop.

A kind's `training.py` holds its encoding, its collator and its loss, and a `TaskTraining` that prepares them once model
and tokenizer are open. A stage on one task trains on one `PreparedTask`; a stage on several tasks mixes theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import DataError
from pipelines.core.registry import TASK_KINDS

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.files import JSONObject
    from pipelines.core.interfaces import Context, Score
    from pipelines.objectives.losses import Meter
    from pipelines.tasks.base import LabelledTask
    from pipelines.tasks.subject import Subject

LABELS: Mapping[str, float] = {"labels": 1.0}
"""The usual loss has one part: its items are the labels."""


@dataclass(frozen=True)
class PreparedTask:
    """What the training loop needs of one task. `fit` of `pipelines.trainers.trainer` says what each part promises."""

    examples: Any
    """Encoded training rows: `len`, `[position]`, `.lengths` (examples,), `.select(positions)`."""
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]]
    """Turns examples into a batch."""
    loss: Callable[[Any, dict[str, Any]], tuple[Any, Any]]
    """`loss(model, inputs) -> (sums over the items of each part, outputs)`."""
    label_names: Mapping[str, float] = field(default_factory=lambda: LABELS)
    """Keys of a batch whose entries other than -100 are the items of one part of the loss, with the part's weight."""
    marked: bool = False
    """Whether every example is given its draw, for randomness by counter."""
    score: Score | None = None
    """How held-out logits are scored; None where models are selected by the loss."""
    metric: str = "loss"
    """The name that models are selected by."""
    meter: Meter | None = None
    """What `loss` adds further numbers to."""
    finish: Callable[[Any], None] = lambda model: None
    """Takes away from the trained model what only the learning needed."""


class TaskTraining:
    """Base of every kind's training."""

    def prepare(
        self,
        subject: Subject,
        task: LabelledTask,
        context: Context,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        longest: int | None,
    ) -> PreparedTask:
        """What the loop needs, for a model that no tuner has touched yet; no example is longer than `longest` tokens.

        Raises DataError for rows that cannot be learnt from, ModelError for a model that cannot learn them.
        """
        raise NotImplementedError

    def show(self, tokenizer: PreTrainedTokenizerBase, task: LabelledTask, batch: Mapping[str, Tensor]) -> JSONObject:
        """A batch of one example as people read it: pieces of text, each learnt or not, the answer beside them, and
        how many tokens there are."""
        from pipelines.tasks.first_batch import token_pieces

        ids, label, classes = read_tokens(batch), batch["labels"][0], task.head.labels
        answer = classes[int(label)] if classes else f"{float(label):g}"
        return {"pieces": token_pieces(tokenizer, ids, False), "answer": answer, "tokens": len(ids)}


def read_tokens(batch: Mapping[str, Tensor]) -> Tensor:
    """The tokens of the only row of a batch (length,), padding left out."""
    mask = batch.get("attention_mask")
    ids = batch["input_ids"][0]
    return ids if mask is None or mask.ndim != 2 else ids[mask[0].bool()]


def training_of(kind: str) -> TaskTraining:
    """How tasks of a kind of the TASK_KINDS table are learnt."""
    training: TaskTraining = TASK_KINDS.part(kind, "training")()
    return training


def training_rows(subject: Subject, task: LabelledTask) -> Any:
    """The rows to learn from. Raises DataError when there are none."""
    rows = task.rows("train", subject.max_train_samples)
    if len(rows) == 0:
        raise DataError(f"task '{task.name}' has no training rows")
    return rows


def tell_truncated(context: Context, truncated: int, of: int, what: str, limits: str) -> None:
    """An event when examples lost their end; a warning when they are more than one in twenty."""
    if context.world.is_main and truncated:
        share = truncated / of
        context.events.emit(
            "warning" if share > 0.05 else "progress", message=f"{truncated} of {of} {what} ({share:.1%}); {limits}"
        )

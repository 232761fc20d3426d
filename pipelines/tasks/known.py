"""What is known of a task without reading its rows: how many there are, how long their texts are, and the head that it
is learnt with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.core.costs import BYTES_PER_TOKEN
from pipelines.core.errors import DataError
from pipelines.core.interfaces import Head
from pipelines.core.registry import TASK_KINDS
from pipelines.data.row_counts import mean_text_bytes, source_rows
from pipelines.data.sources import DataSource, find
from pipelines.tasks.base import HELD_OUT, held_out_rows

if TYPE_CHECKING:
    from pipelines.tasks.base import LabelledTask, TaskKind
    from pipelines.tasks.preference.task import PreferenceReference


def task_rows(task: LabelledTask, split: str) -> int | None:
    """Rows of a split of a task, what is held out left out."""
    stored = split if split in task.places else "train"
    total = _stored_rows(task, stored)
    if total is None or HELD_OUT in task.places or HELD_OUT not in task.evaluation_splits.values():
        return total
    share = getattr(task, "share", None)
    held_out = len(held_out_rows(total)) if share is None else round(total * share)
    return held_out if split == HELD_OUT else total - held_out


def mean_tokens(task: LabelledTask, split: str) -> tuple[int, int] | None:
    """(tokens of the text or the pair in a row, tokens of its target) on average, taking a token for four bytes.

    Of several sequences in a row it is one of them. Where the answer is no text, the target is the text again, which
    the decoder of an encoder-decoder reads. None where a sequence is not made of texts in columns, or the files do not
    say how long they are.
    """
    kind: type[TaskKind] = TASK_KINDS.load(task.kind)
    columns = kind.columns_of_a_sequence(task)
    if not columns:
        return None
    if (found := stored(task, split if split in task.places else "train")) is None:
        return None
    texts = mean_text_bytes(*found, columns)
    target = mean_text_bytes(*found, (task.label,)) if kind.writes() else texts
    if texts is None or target is None:
        return None
    return max(1, round(texts / BYTES_PER_TOKEN)), max(1, round(target / BYTES_PER_TOKEN))


def whole_rows(task: LabelledTask) -> int | None:
    """Rows that a task's training rows are part of, what is held out among them."""
    return _stored_rows(task, "train")


def _stored_rows(task: LabelledTask, split: str) -> int | None:
    try:
        found = stored(task, split)
        return None if found is None else source_rows(*found)
    except DataError:
        return None


def stored(task: LabelledTask, split: str) -> tuple[DataSource, str] | None:
    """(the source that holds a split, the split's name there); None where it is not found."""
    try:
        return task.places[split].open(split)
    except (DataError, KeyError):
        return None


def reference_rows(reference: PreferenceReference) -> int | None:
    """Rows of a reference to preferences; None for what a stage has yet to write."""
    if reference.path is None:
        return None
    try:
        return source_rows(find(reference.path, reference.name), reference.split)
    except DataError:
        return None


def head_without_rows(task: LabelledTask, notes: list[str]) -> Head:
    """The head without reading data: two classes where their names are still in it. Notes say what is not counted."""
    kind: type[TaskKind] = TASK_KINDS.load(task.kind)
    if kind.uncounted is not None and kind.sequences(task) is None:
        notes.append(kind.uncounted)
    if task.labels or not kind.finds_labels:
        return task.head
    notes.append("how many classes there are will be known when the run starts; two are counted")
    return Head(kind.head_kind, ("0", "1"))

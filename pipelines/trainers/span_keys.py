"""Keys of a subject that only tasks of finding answers in texts have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipelines.blocks import Found
from pipelines.data.window_sizes import SHORTEST, widest_stride

if TYPE_CHECKING:
    from pipelines.trainers.subject import Subject

KIND = "qa"
"""The kind of tasks whose answers are spans of a text."""


def useless(subject: Subject, name: str) -> Iterable[Found]:
    """Those that were given although the task is of another kind."""
    kind = subject.resolved(name).kind
    if subject.doc_stride is not None and kind != KIND:
        yield ("doc_stride",), f"is for tasks of the kind {KIND}, but this task's kind is {kind}; leave it out"


def mistakes(subject: Subject) -> Iterable[Found]:
    """What is wrong with the sizes of windows."""
    if subject.max_length < SHORTEST:
        yield ("max_length",), f"is {subject.max_length}, must be at least {SHORTEST} for a question and a part of its context"
    elif subject.doc_stride is not None and subject.doc_stride > widest_stride(subject.max_length):
        yield ("doc_stride",), (
            f"is {subject.doc_stride}, must be at most {widest_stride(subject.max_length)} with max_length {subject.max_length}, "
            "so that every window moves on beside the longest question"
        )

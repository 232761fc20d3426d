"""Keys of a subject that only tasks with texts for answers have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipelines.blocks import Found

if TYPE_CHECKING:
    from pipelines.trainers.subject import Subject

KIND = "seq2seq"
"""The kind of tasks whose answers are texts of their own."""
KEYS = ("objective", "max_source_length", "max_target_length")
"""Keys that only such tasks have."""


def useless(subject: Subject, name: str) -> Iterable[Found]:
    """Those that were given although the task is of another kind."""
    for key in KEYS:
        if getattr(subject, key) is not None:
            kind = subject.resolved(name).kind
            yield (key,), f"is for tasks of the kind seq2seq, but this task's kind is {kind}; leave it out"

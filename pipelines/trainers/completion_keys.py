"""Keys of a subject that only tasks of the kind `causal` have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipelines.blocks import Found

if TYPE_CHECKING:
    from pipelines.trainers.subject import Subject

KIND = "causal"
"""The kind of tasks whose answers are learnt as the continuation of what is asked."""
KEYS = ("chat_template", "train_on", "packing")
"""Keys that only such tasks have."""


def useless(subject: Subject, name: str) -> Iterable[Found]:
    """Those that were given although the task is of another kind."""
    kind = subject.resolved(name).kind
    for key in KEYS if kind != KIND else ():
        if getattr(subject, key) is not None:
            yield (key,), f"is for tasks of the kind {KIND}, but this task's kind is {kind}; leave it out"

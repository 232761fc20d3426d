"""Asking a model about one split, whether its answers are public or not: what a prediction or a submission needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipelines.evaluation.asking import Asked

if TYPE_CHECKING:
    from pipelines.protocols import Rows


@dataclass(frozen=True)
class AskedOfASplit(Asked):
    """One split of a task, without its labels."""

    split: str = "test"

    def splits(self) -> Iterator[tuple[str, str, Rows]]:
        """The split alone."""
        yield "", self.split, without_labels(self.task.rows(self.split, self.stage.max_eval_samples))


def without_labels(rows: Any) -> Any:
    """The rows, whose labels are not looked at."""
    hidden: dict[str, Any] = {"labels": None, "starts": None} if hasattr(rows, "starts") else {"labels": None}
    return replace(rows, **hidden)

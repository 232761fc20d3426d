"""What a decoder said about a split: how likely it finds the right answers, and the answers that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import DataError
from pipelines.evaluation.doubts import constant_text
from pipelines.evaluation.intervals import corpus_intervals
from pipelines.evaluation.predictions import Said
from pipelines.evaluation.scoring import score_texts
from pipelines.evaluation.tallies import Tally, likelihood
from pipelines.protocols import Score, Task


@dataclass(frozen=True)
class Continued:
    """What is scored of a split."""

    texts: NDArray[Any] | None
    """What the model wrote (examples,); None where nothing was asked."""
    tally: Tally
    """Bits, tokens and bytes of the right answers, by row."""


@dataclass(frozen=True)
class Completed(Said):
    """Answers in words, and the likelihood of the right ones."""

    texts: NDArray[Any] | None
    tally: Tally

    @property
    def said(self) -> Continued:
        """Texts and likelihood."""
        return Continued(self.texts, self.tally)

    @property
    def labels(self) -> NDArray[Any]:
        """The right answers (examples,)."""
        return np.asarray(self.rows.labels, dtype=object)

    def around(self, task: Task, score: Score, seed: int) -> dict[str, tuple[float, float]]:
        found = self.tally.intervals(likelihood, seed)
        if self.texts is None:
            return found
        return found | corpus_intervals(task.metrics, graded(task, self.texts), graded(task, self.labels), seed)

    def doubt(self, task: Task) -> str | None:
        return None if self.texts is None else constant_text(self.benchmark, self.split, self.texts)

    def table(self) -> Any:
        """As for other written texts, with bits and tokens of the right answer; no rows where nothing was written."""
        import pyarrow as pa

        bits, tokens = (np.full(len(self.rows), np.nan) for _ in range(2))
        bits[self.tally.documents], tokens[self.tally.documents] = self.tally.columns["bits"], self.tally.columns["tokens"]
        texts = [] if self.texts is None else list(self.texts)
        table = pa.table(
            {
                **self.columns(),
                "source": pa.array(list(self.rows.texts), pa.string()),
                "reference": pa.array(list(self.labels), pa.string()),
                "hypothesis": pa.array(texts or [None] * len(self.rows), pa.string()),
                "completion_bits": pa.array(bits, pa.float64()),
                "completion_tokens": pa.array(tokens, pa.float64()),
            }
        )
        return table if texts else table.slice(0, 0)


def score_completions(task: Task) -> Score:
    """The task's metrics of written texts, and perplexity and bits per byte where likelihoods are given."""
    return partial(_score, task)


def _score(task: Task, said: Any, references: Any) -> dict[str, float]:
    texts = said.texts if isinstance(said, Continued) else said
    scores: dict[str, float] = {}
    if texts is not None and task.metrics:
        scores |= score_texts(task)(graded(task, texts), graded(task, references))
    return scores | (said.tally.figures(likelihood) if isinstance(said, Continued) else {})


def graded(task: Task, texts: Sequence[str] | NDArray[Any]) -> NDArray[Any]:
    """What of each text the task compares (examples,). Raises DataError where nothing is found in any reference."""
    choose: Any = getattr(task, "graded", list)
    found = choose([str(each) for each in texts])
    if len(found) != len(texts):
        raise DataError(f"'{task.name}' has {len(found)} answers for {len(texts)} texts; they must be as many")
    return np.asarray(found, dtype=object)

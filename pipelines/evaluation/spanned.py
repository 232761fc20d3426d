"""What a model said about questions whose answers are spans: texts, where they stand, and how sure it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.atomic import write_json
from pipelines.evaluation.doubts import constant_answer
from pipelines.evaluation.intervals import corpus_intervals
from pipelines.evaluation.predictions import Said
from pipelines.evaluation.spans import Found
from pipelines.evaluation.squad_v2 import at_threshold, best_threshold, by_answerability
from pipelines.protocols import Score, Task


@dataclass(frozen=True)
class Spanned(Said):
    """Answers to questions. `rows` are QuestionRows."""

    found: Sequence[Found]
    """What the windows of each question offer."""
    asked: Sequence[str]
    """The questions as the model read them: without the end of those that are too long."""
    may_be_none: bool
    """Whether questions may have no answer."""
    threshold: float
    """How much better "no answer" must score than the best span to be said."""

    @property
    def labels(self) -> NDArray[Any] | None:
        """The right answers of each question as an array of tuples, None where they are not public."""
        if self.rows.labels is None:
            return None
        answers = np.empty(len(self.rows), dtype=object)
        answers[:] = [tuple(texts) for texts in self.rows.labels]  # type: ignore[arg-type]
        return answers

    @property
    def differences(self) -> NDArray[np.float64]:
        """How much better "no answer" scores than the best span, of each question."""
        return np.array([each.difference for each in self.found])

    @property
    def best(self) -> NDArray[Any]:
        """The best text of each question, whatever "no answer" scores."""
        return np.array([each.answer for each in self.found], dtype=object)

    @property
    def said(self) -> NDArray[Any]:
        """The answers, empty for "no answer"."""
        return at_threshold(self.best, self.differences, self.threshold) if self.may_be_none else self.best

    def around(self, task: Task, score: Score, seed: int) -> dict[str, tuple[float, float]]:
        return corpus_intervals(task.metrics, self.said, self.labels, seed)

    def doubt(self, task: Task) -> str | None:
        return constant_answer(self.benchmark, self.split, self.said)

    def facts(self) -> dict[str, Any]:
        """What the official script prints beside the scores of questions that may have no answer."""
        if not self.may_be_none or self.labels is None:
            return {}
        return by_answerability(self.said, self.labels) | best_threshold(self.best, self.differences, self.labels)

    def table(self) -> Any:
        import pyarrow as pa

        tops = [each.best[0] if each.best else None for each in self.found]
        logits = [[] if top is None else [top.start_logit, top.end_logit] for top in tops]
        answers = None if self.labels is None else [list(texts) for texts in self.labels]
        columns = {
            **self.columns(),
            "id": pa.array(list(self.ids), pa.string()),
            "text": pa.array(list(self.asked), pa.string()),
            "text_pair": pa.array(list(self.rows.pairs or ()), pa.string()),
            "answers": pa.nulls(len(self.rows), pa.list_(pa.string())) if answers is None else pa.array(answers, pa.list_(pa.string())),
            "answer": pa.array(list(self.said), pa.string()),
            "answer_start": pa.array([None if top is None else top.answer_start for top in tops], pa.int64()),
            "window": pa.array([None if top is None else top.window for top in tops], pa.int64()),
            "start_token": pa.array([None if top is None else top.start_token for top in tops], pa.int64()),
            "end_token": pa.array([None if top is None else top.end_token for top in tops], pa.int64()),
            "logits": pa.array(logits, pa.list_(pa.float32())),
        }
        if self.may_be_none:
            columns["null_score_difference"] = pa.array(self.differences, pa.float64())
        return pa.table(columns)

    @property
    def ids(self) -> Sequence[str]:
        """What a file of predictions calls each question."""
        ids: Sequence[str] = self.rows.ids  # type: ignore[attr-defined]
        return ids

    def write_beside(self, folder: Path) -> None:
        """The official prediction file, and where questions may have no answer how sure of that the model was."""
        name = "-".join([self.benchmark.replace("/", "-"), *([self.split] if self.suffix else [])])
        write_json(folder / f"{name}.predictions.json", dict(zip(self.ids, self.said, strict=True)))
        if self.may_be_none:
            odds: Mapping[str, float] = dict(zip(self.ids, self.differences.tolist(), strict=True))
            write_json(folder / f"{name}.null_odds.json", odds)

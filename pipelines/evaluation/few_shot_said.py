"""What a language model answered zero- or few-shot: chosen answers and written ones, for every draw of examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.few_shot_questions import Question
from pipelines.evaluation.few_shot_scores import expected, score_numbers, score_options, score_texts
from pipelines.evaluation.predictions import Said
from pipelines.protocols import Score, Task


@dataclass(frozen=True)
class Answered(Said):
    """One split, asked with one number of examples."""

    questions: Sequence[Question]
    examples: Sequence[Sequence[Sequence[int]]]
    """By draw and question: the rows of the training file that stood before it."""

    @property
    def labels(self) -> NDArray[Any] | None:
        """The labels as an array, None where they are not public."""
        return None if self.rows.labels is None else np.asarray(self.rows.labels)

    @property
    def draws(self) -> int:
        """How often examples were drawn."""
        return len(self.examples)

    def score_of(self, task: Task) -> Score:
        """The scores as a function of `said` and `labels`, or of a choice of both."""
        raise NotImplementedError

    def by_draw(self, task: Task) -> list[dict[str, float]]:
        """The scores of each draw by itself."""
        score = self.score_of(task)
        return [score(self._one(draw), self.labels) for draw in range(self.draws)]

    def _one(self, draw: int) -> Any:
        return self.said[:, draw : draw + 1]

    def lines(self) -> dict[str, Any]:
        """The columns that every table has: one row a question and draw, draw after draw."""
        import pyarrow as pa

        columns = self.columns()
        return {name: pa.concat_arrays([values] * self.draws) for name, values in columns.items()} | {
            "draw": pa.array(np.repeat(np.arange(self.draws), len(self.rows))),
            "examples": pa.array([list(each) for draw in self.examples for each in draw], pa.list_(pa.int64())),
        }


@dataclass(frozen=True)
class Ranked(Answered):
    """Answers weighed by likelihood."""

    nats: NDArray[np.float64]
    """(questions, draws, options)"""
    ways: Mapping[str, NDArray[np.float64]]
    """The same weighed in each way, by the name of its accuracy; the first is the likelihood itself."""
    values: tuple[float, ...] | None = None
    """The numbers that the answers stand for, where the labels are numbers."""

    @property
    def said(self) -> NDArray[np.float64]:
        """(questions, draws, ways, options), or (questions, draws) of numbers."""
        if self.values is not None:
            return expected(self.nats, self.values)
        return np.stack(list(self.ways.values()), axis=2)

    def score_of(self, task: Task) -> Score:
        if self.values is not None:
            return score_numbers(task.metrics)
        return score_options(list(self.ways), task.metrics, len(task.head.labels) or None)

    def constant(self) -> bool:
        """Whether the likeliest answer is the same everywhere."""
        chosen = self.nats.argmax(axis=-1)
        return bool(chosen.size > 1 and (chosen == chosen.flat[0]).all())

    def table(self) -> Any:
        import pyarrow as pa

        by_line = np.concatenate([self.nats[:, draw] for draw in range(self.draws)])  # (lines, options)
        kind = pa.int64() if self.values is None else pa.float64()
        told = by_line.argmax(axis=1) if self.values is None else expected(by_line, self.values)
        labels = self.labels
        return pa.table(
            {
                **self.lines(),
                "text": pa.array([_shown(each) for each in self.questions] * self.draws, pa.string()),
                "options": pa.array([list(each.options) for each in self.questions] * self.draws, pa.list_(pa.string())),
                "label": pa.nulls(len(by_line), kind) if labels is None else pa.array(np.tile(labels, self.draws)).cast(kind),
                "prediction": pa.array(told).cast(kind),
                "logits": pa.array(list(by_line.astype(np.float32)), pa.list_(pa.float32())),
                "log_likelihoods": pa.array(list(by_line), pa.list_(pa.float64())),
            }
        )


@dataclass(frozen=True)
class Told(Answered):
    """Answers that were written. `right` says of those that stand for one of several answers whether they are the right one."""

    texts: NDArray[Any]
    """(questions, draws)"""
    references: Sequence[Any]
    """The right answer, or all right answers, of each question."""
    counted: Mapping[str, NDArray[Any]]
    """By metric: its counts (questions, draws, …); empty where an answer is right or wrong."""
    right: NDArray[np.bool_] | None = None
    """(questions, draws)"""

    @property
    def said(self) -> NDArray[Any]:
        """(questions,): their numbers; (questions, draws) of answers that are right or wrong."""
        return np.arange(len(self.rows)) if self.right is None else self.right

    @property
    def labels(self) -> NDArray[Any] | None:
        return None if self.rows.labels is None else np.arange(len(self.rows))

    def score_of(self, task: Task) -> Score:
        return _share if self.right is not None else score_texts(task.metrics, self.counted)

    def by_draw(self, task: Task) -> list[dict[str, float]]:
        if self.right is not None:
            return super().by_draw(task)
        parts = [{name: each[:, draw : draw + 1] for name, each in self.counted.items()} for draw in range(self.draws)]
        return [partial(score_texts(task.metrics, part))(self.said, self.labels) for part in parts]

    def table(self) -> Any:
        import pyarrow as pa

        right = [" | ".join(each) if isinstance(each, list | tuple) else each for each in self.references]
        return pa.table(
            {
                **self.lines(),
                "source": pa.array([_shown(each) for each in self.questions] * self.draws, pa.string()),
                "reference": pa.array(right * self.draws, pa.string()),
                "hypothesis": pa.array([text for draw in self.texts.T for text in draw], pa.string()),
            }
        )


def _share(right: Any, labels: Any) -> dict[str, float]:
    return {"acc": float(np.asarray(right).mean())}


def _shown(question: Question) -> str:
    """The texts of a question, for people who read the predictions."""
    return "\n".join(question.fields.values())

"""From log-likelihoods and written texts to chosen answers and scores, for every draw of examples.

`acc`: the likeliest answer. `acc_norm`, `acc_bytes`, `acc_tokens`: divided by the length of the answer (the harness'
acc_norm divides by characters). `acc_answer_context`: divided by the probability of the answer behind nothing but
"Answer:" (Brown et al. 2020, section 2.4). `acc_contextual`: probabilities over the answers, divided by those for
questions without content (Zhao et al. 2021, section 5: W = diag(p_cf)^-1, b = 0, arxiv.org/abs/2102.09690).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.interfaces import Score, Task
from pipelines.evaluation.few_shot.questions import FewShotQuestion
from pipelines.metrics.base import counted_metric, load_metric
from pipelines.tasks.predictions import SplitPredictions

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]


def per_length(nats: Floats, lengths: Floats) -> Floats:
    """Log-likelihoods (…, options) for each unit of length. An answer without length is worth what it is."""
    normed: Floats = nats / np.maximum(lengths, 1.0)
    return normed


def contextual(nats: Floats, without_content: Floats) -> Floats:
    """log p - log p_cf, of probabilities over the answers: nats (questions, options), without_content (questions,
    inputs, options).

    p_cf is the mean over the inputs without content.
    """
    mean = np.exp(log_softmax(without_content)).mean(axis=-2)
    weighed: Floats = log_softmax(nats) - np.log(np.maximum(mean, np.finfo(np.float64).tiny))
    return weighed


def log_softmax(nats: Floats) -> Floats:
    """Log-probabilities over the last axis."""
    shifted = nats - nats.max(axis=-1, keepdims=True)
    log_probabilities: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return log_probabilities


def score_options(names: Sequence[str], metrics: Sequence[str], classes: int | None) -> Score:
    """Scores of weighed answers (questions, draws, ways, options), in the order of `names`, as means over the draws.

    `metrics` beyond accuracy are computed of the first way's answers; they need the number of `classes`.
    """
    others = [load_metric(name) for name in metrics if name != "accuracy"] if classes else []

    def of(weighed: NDArray[np.generic], labels: NDArray[np.generic]) -> dict[str, float]:
        chosen = np.asarray(weighed).argmax(axis=-1)  # (questions, draws, ways)
        right = chosen == np.asarray(labels)[:, None, None]
        scores = {name: float(right[:, :, at].mean()) for at, name in enumerate(names)}
        for metric in others:
            draws = [metric.compute(chosen[:, draw, 0], labels, classes=classes) for draw in range(chosen.shape[1])]
            scores |= {name: float(np.mean([each[name] for each in draws])) for name in draws[0]}
        return scores

    return of


def score_numbers(metrics: Sequence[str]) -> Score:
    """Scores of numbers (questions, draws), as means over the draws."""
    loaded = [load_metric(name) for name in metrics]

    def of(numbers: NDArray[np.generic], labels: NDArray[np.generic]) -> dict[str, float]:
        scores: dict[str, float] = {}
        for metric in loaded:
            draws = [metric.compute(numbers[:, draw], labels) for draw in range(numbers.shape[1])]
            scores |= {name: float(np.mean([each[name] for each in draws])) for name in draws[0]}
        return scores

    return of


def expected(nats: Floats, values: Sequence[float]) -> Floats:
    """The mean of the numbers that answers stand for, by their probability: nats (…, options)."""
    means: Floats = np.exp(log_softmax(nats)) @ np.asarray(values, dtype=np.float64)
    return means


def score_texts(metrics: Sequence[str], counted: Mapping[str, NDArray[Any]]) -> Score:
    """Scores of written texts by their counts (questions, draws, …) of each metric, as means over the draws.

    What is scored are numbers of questions (n,), so that a resample is a choice of them.
    """

    def of(chosen: NDArray[np.generic], labels: NDArray[np.generic]) -> dict[str, float]:
        scores: dict[str, float] = {}
        for metric in metrics:
            sums = counted[metric][np.asarray(chosen)].sum(axis=0)  # (draws, …)
            draws = [counted_metric(metric).of_counts(each) for each in sums]
            scores |= {name: float(np.mean([each[name] for each in draws])) for name in draws[0]}
        return scores

    return of


def spread(by_draw: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """By score: the standard deviation over the draws, the least and the most."""
    spreads = {}
    for name in by_draw[0]:
        values = np.asarray([each[name] for each in by_draw])
        spreads[name] = {"sd": float(values.std(ddof=1)), "min": float(values.min()), "max": float(values.max())}
    return spreads


@dataclass(frozen=True)
class FewShotAnswers(SplitPredictions):
    """One split, asked with one number of examples."""

    questions: Sequence[FewShotQuestion]
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
        """The scores as a function of `answers` and `labels`, or of a choice of both."""
        raise NotImplementedError

    def by_draw(self, task: Task) -> list[dict[str, float]]:
        """The scores of each draw by itself."""
        score, labels = self.score_of(task), self.labels
        assert labels is not None
        return [score(self._one(draw), labels) for draw in range(self.draws)]

    def _one(self, draw: int) -> Any:
        return self.answers[:, draw : draw + 1]

    def lines(self) -> dict[str, Any]:
        """The columns that every table has: one row a question and draw, draw after draw."""
        import pyarrow as pa

        columns = self.key_columns()
        return {name: pa.concat_arrays([values] * self.draws) for name, values in columns.items()} | {
            "draw": pa.array(np.repeat(np.arange(self.draws), len(self.rows))),
            "examples": pa.array([list(each) for draw in self.examples for each in draw], pa.list_(pa.int64())),
        }


@dataclass(frozen=True)
class RankedAnswers(FewShotAnswers):
    """Answers weighed by likelihood."""

    nats: NDArray[np.float64]
    """(questions, draws, options)"""
    ways: Mapping[str, NDArray[np.float64]]
    """The same weighed in each way, by the name of its accuracy; the first is the likelihood itself."""
    values: tuple[float, ...] | None = None
    """The numbers that the answers stand for, where the labels are numbers."""

    @property
    def answers(self) -> NDArray[np.float64]:
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

    def table(self) -> pa.Table:
        import pyarrow as pa

        by_line = np.concatenate([self.nats[:, draw] for draw in range(self.draws)])  # (lines, options)
        kind = pa.int64() if self.values is None else pa.float64()
        predicted = by_line.argmax(axis=1) if self.values is None else expected(by_line, self.values)
        labels = self.labels
        return pa.table(
            {
                **self.lines(),
                "text": pa.array([_shown(each) for each in self.questions] * self.draws, pa.string()),
                "options": pa.array(
                    [list(each.options) for each in self.questions] * self.draws, pa.list_(pa.string())
                ),
                "label": pa.nulls(len(by_line), kind)
                if labels is None
                else pa.array(np.tile(labels, self.draws)).cast(kind),
                "prediction": pa.array(predicted).cast(kind),
                "logits": pa.array(list(by_line.astype(np.float32)), pa.list_(pa.float32())),
                "log_likelihoods": pa.array(list(by_line), pa.list_(pa.float64())),
            }
        )


@dataclass(frozen=True)
class WrittenAnswers(FewShotAnswers):
    """Answers that were written. `right` says of those that stand for one of several answers whether they are the
    right one."""

    texts: NDArray[Any]
    """(questions, draws)"""
    references: Sequence[Any]
    """The right answer, or all right answers, of each question."""
    counted: Mapping[str, NDArray[Any]]
    """By metric: its counts (questions, draws, …); empty where an answer is right or wrong."""
    right: NDArray[np.bool_] | None = None
    """(questions, draws)"""

    @property
    def answers(self) -> NDArray[Any]:
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
        labels = self.labels
        assert labels is not None
        parts = [{name: each[:, draw : draw + 1] for name, each in self.counted.items()} for draw in range(self.draws)]
        return [partial(score_texts(task.metrics, part))(self.answers, labels) for part in parts]

    def table(self) -> pa.Table:
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


def _share(right: NDArray[np.generic], labels: NDArray[np.generic]) -> dict[str, float]:
    return {"acc": float(np.asarray(right).mean())}


def _shown(question: FewShotQuestion) -> str:
    """The texts of a question, for people who read the predictions."""
    return "\n".join(question.fields.values())

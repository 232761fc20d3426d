"""`predictions.parquet`: what a model predicted for each example, one row an example.

Rows stand in the order of the files. Columns: benchmark, split, index (row in the split), text, text_pair (null for
single texts), label (null where it is not public), prediction, logits (float32, one an output, in the task's order of
classes). Labels and predictions are int64, or float64 once one of the benchmarks in the file is a regression.
Benchmarks whose answers are texts have source, reference (null where it is not public) and hypothesis instead of the
columns from text to logits; in a file with both kinds the others are null. Tasks on words have tokens, tags,
predicted_tags and logits (words by classes, one after the other); questions about a context have id, text (the
question), text_pair, answers, answer, answer_start, window, start_token, end_token and logits (start, end) of the best
span, and null_score_difference; questions with options have text, options, label, prediction and logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.files import whole_file
from pipelines.core.interfaces import Rows, Score, Task
from pipelines.core.presentation import Marked, Number, Part, Piece, Writing, Writings, bars
from pipelines.metrics.calibration import softmax
from pipelines.metrics.statistics import RESAMPLES, corpus_intervals, intervals
from pipelines.tasks.scored_examples import Columns, ScoredExamples, decision_columns, scored_decisions, scored_texts
from pipelines.tasks.scoring import checked_logits, decide, graded
from pipelines.tasks.text_to_text import AsText

if TYPE_CHECKING:
    import pyarrow as pa

Intervals = dict[str, tuple[float, float]]
"""Lower and upper end, by score."""
Members = NDArray[np.int64] | slice
"""Positions of a part of a split's examples."""
ALL = slice(None)


FEWEST = 6
"""Rows from which one answer to all of them is a fault: of two classes as frequent, a fair coin says one thing of six
rows in 3 % of cases."""


def constant_prediction(benchmark: str, split: str, logits: NDArray[Any], classes: tuple[str, ...]) -> str | None:
    """A sentence where the model says the same about every example."""
    predictions = decide(logits)
    if len(predictions) < 2 or predictions.min() != predictions.max():
        return None
    what = f"the class '{classes[int(predictions[0])]}'" if classes else f"{float(predictions[0]):g}"
    return (
        f"{benchmark}: the model predicts {what} for every one of the {len(predictions)} examples of '{split}'; "
        "it has not learnt to tell them apart (try more steps, another learning rate, or a pretrained model)"
    )


def constant_text(benchmark: str, split: str, texts: NDArray[Any]) -> str | None:
    """A sentence where the model writes the same for every example."""
    if len(texts) < 2 or any(text != texts[0] for text in texts):
        return None
    return (
        f"{benchmark}: the model writes {str(texts[0])[:60]!r} for every one of the {len(texts)} examples of "
        f"'{split}'; "
        "it has not learnt to read its sources (try more steps, another learning rate, or a pretrained model)"
    )


def constant_answer(benchmark: str, split: str, answers: NDArray[Any]) -> str | None:
    """A sentence where the model gives one answer to every question."""
    if len(answers) < 2 or any(answer != answers[0] for answer in answers):
        return None
    what = f"answers {str(answers[0])[:60]!r} to" if answers[0] else "finds no answer to"
    return (
        f"{benchmark}: the model {what} every one of the {len(answers)} questions of '{split}'; "
        "it has not learnt to read its texts (try more steps, another learning rate, or a pretrained model)"
    )


def constant_tag(benchmark: str, split: str, tags: NDArray[Any], names: tuple[str, ...]) -> str | None:
    """A sentence where the model gives every word of every text the same tag."""
    different = {int(tag) for row in tags for tag in row if tag >= 0}
    if len(different) != 1 or sum(len(row) for row in tags) < 2:
        return None
    return (
        f"{benchmark}: the model gives every word of '{split}' the tag '{names[different.pop()]}'; "
        "it has not learnt to tell them apart (try more steps, another learning rate, or a pretrained model)"
    )


@dataclass(frozen=True)
class SplitPredictions:
    """One evaluation split of one benchmark, with the model's answers. Each kind of answer is a class, which says how
    its answers are scored in part, explained and shown; what it does not say, the defaults here do."""

    benchmark: str
    split: str
    suffix: str
    """What the names of this split's metrics end with: nothing, or `_mm`."""
    rows: Rows

    @property
    def labels(self) -> Any:
        """The labels as an array (examples, …), None where they are not public."""
        raise NotImplementedError

    @property
    def answers(self) -> Any:
        """What is scored against them (examples, …)."""
        raise NotImplementedError

    def part(self, members: Members) -> tuple[Any, Any] | None:
        """Answers and labels of these examples alone, as the task's score takes them; None where a part has no score.
        Only asked where there are labels."""
        return self.answers[members], self.labels[members]

    def intervals(
        self, task: Task, score: Score, seed: int, members: Members | None = None, resamples: int = RESAMPLES
    ) -> Intervals:
        """Bootstrap intervals of the scores, of these members alone where they are given. Only asked where there are
        labels."""
        part = self.part(ALL if members is None else members)
        return {} if part is None else intervals(score, *part, seed, resamples)

    def scored_examples(self, task: Task) -> ScoredExamples | None:
        """Each example as it was scored; None where a kind does not tell. Only asked where there are labels."""
        return None

    def columns(self, task: Task) -> Columns:
        """What people read in a table: `index`, what was read, `prediction`, and what else is known of each example.
        Raises ModelError."""
        table = self.table().drop_columns(list(self.key_columns())).to_pydict()
        return self.inputs() | {"prediction": [str(each) for each in self.answers], **table}

    def shown(self, task: Task, place: int = 0) -> tuple[Part, ...]:
        """The answer to one example, as people are shown it."""
        return (Marked(title="Answer", pieces=(Piece(text=str(self.answers[place])),)),)

    def inputs(self) -> Columns:
        """The first of these columns: `index`, and what was read."""
        columns: Columns = {"index": [int(each) for each in self.rows.index], "text": list(self.rows.texts)}
        return columns if self.rows.pairs is None else columns | {"text_pair": list(self.rows.pairs)}

    def answered(self, answers: NDArray[Any]) -> dict[str, Any]:
        """The columns of `read_predictions` that other answers to the same examples are scored by; empty where a kind
        has no such answers. Only asked where there are labels."""
        return {}

    def outputs(self, task: Task) -> int:
        """How many classes there are to guess among; 1 where answers are no classes."""
        return len(task.head.labels) or 1

    def write_beside(self, folder: Path) -> None:
        """Write what else the stage leaves: files in the formats of official scorers."""

    @property
    def labels_differ(self) -> bool:
        """Whether there are rows enough, with different labels, for one answer to all of them to be a fault."""
        labels = self.labels
        return labels is not None and len(labels) >= FEWEST and any(label != labels[0] for label in labels)

    def doubt(self, task: Task) -> str | None:
        """What a reader should be told before believing the scores."""
        return None

    def table(self) -> pa.Table:
        """The split's part of `predictions.parquet`, one row an example."""
        raise NotImplementedError

    def key_columns(self) -> dict[str, Any]:
        """The columns that every part of `predictions.parquet` begins with."""
        import pyarrow as pa

        return {
            "benchmark": pa.array([self.benchmark] * len(self.rows), pa.string()),
            "split": pa.array([self.split] * len(self.rows), pa.string()),
            "index": pa.array(np.asarray(self.rows.index, dtype=np.int64)),
        }


@dataclass(frozen=True)
class LogitPredictions(SplitPredictions):
    """What is told by logits."""

    logits: NDArray[Any]
    """(examples, outputs), in the order of `rows`."""

    @property
    def labels(self) -> NDArray[Any] | None:
        """The labels as an array, None where they are not public."""
        return None if self.rows.labels is None else np.asarray(self.rows.labels)

    @property
    def answers(self) -> NDArray[Any]:
        """What is scored: the logits."""
        return self.logits

    def answered(self, answers: NDArray[Any]) -> dict[str, Any]:
        return {"index": self.rows.index, "label": self.labels, "logits": answers}


@dataclass(frozen=True)
class ClassPredictions(LogitPredictions):
    """Classes, or numbers."""

    def scored_examples(self, task: Task) -> ScoredExamples:
        labels, names = np.asarray(self.labels), task.head.labels
        chosen = decide(self.logits)
        if self.logits.shape[1] == 1:
            error = np.abs(chosen - labels).astype(np.float64)
            return ScoredExamples(
                [f"{value:g}" for value in labels],
                [f"{value:.3g}" for value in chosen],
                np.ones(len(labels), dtype=bool),
                error,
                "distance from the right number",
            )
        gold, answers = [names[label] for label in labels], [names[at] for at in chosen]
        return scored_decisions(self.logits, labels, gold, answers, names)

    def columns(self, task: Task) -> Columns:
        names = task.head.labels
        logits = checked_logits(self.logits, len(names) or 1, task.name)
        if not names:
            return self.inputs() | {"prediction": [float(value) for value in logits[:, 0]]}
        return self.inputs() | decision_columns(logits, list(names))

    def shown(self, task: Task, place: int = 0) -> tuple[Part, ...]:
        names = task.head.labels
        logits = checked_logits(self.logits, len(names) or 1, task.name)[place]
        if not names:
            return (Number(title="Value", value=float(logits[0])),)
        return (bars(names, softmax(logits).tolist(), "Probability of each class"),)

    def doubt(self, task: Task) -> str | None:
        if not self.labels_differ:
            return None
        return constant_prediction(self.benchmark, self.split, self.logits, task.head.labels)

    def table(self) -> pa.Table:
        return _decisions_table([self])


@dataclass(frozen=True)
class TextPredictions(SplitPredictions):
    """Texts."""

    texts: NDArray[Any]
    """What the model wrote (examples,), in the order of `rows`."""

    @property
    def answers(self) -> NDArray[Any]:
        """What is scored: the written texts."""
        return self.texts

    @property
    def labels(self) -> NDArray[Any] | None:
        """The references as an array of texts, None where they are not public."""
        return None if self.rows.labels is None else np.asarray(self.rows.labels, dtype=object)

    def answered(self, answers: NDArray[Any]) -> dict[str, Any]:
        return {"index": self.rows.index, "reference": list(self.rows.labels or ()), "hypothesis": list(answers)}

    def intervals(
        self, task: Task, score: Score, seed: int, members: Members | None = None, resamples: int = RESAMPLES
    ) -> Intervals:
        """Of parts none."""
        if members is not None:
            return {}
        assert self.labels is not None
        if isinstance(task, AsText):
            return intervals(score, np.asarray(self.texts, dtype=object), self.labels, seed, resamples)
        texts, references = graded(task, self.texts), graded(task, self.labels)
        return corpus_intervals(task.metrics, texts, references, seed, resamples)

    def scored_examples(self, task: Task) -> ScoredExamples:
        references = [str(each) for each in np.asarray(self.labels)]
        texts = [str(each) for each in self.texts]
        if not isinstance(task, AsText):
            return scored_texts(texts, references, graded(task, texts), graded(task, references), task.metrics)
        answers, labels, _ = task.read(texts, references)
        if not task.task.head.labels:
            error = np.abs(np.array(answers, dtype=np.float64) - np.array(labels, dtype=np.float64))
            return ScoredExamples(references, texts, error > 0, error, "distance from the right number")
        wrong = np.array(answers) != np.array(labels)
        return ScoredExamples(references, texts, wrong, wrong.astype(np.float64), "order of the file")

    def columns(self, task: Task) -> Columns:
        return self.inputs() | {"prediction": [str(text) for text in self.texts]}

    def shown(self, task: Task, place: int = 0) -> tuple[Part, ...]:
        return (Writings(writings=(Writing(title="Written", text=str(self.texts[place])),)),)

    def doubt(self, task: Task) -> str | None:
        if isinstance(task, AsText) and self.labels is not None:
            unread = task.read(list(self.texts), list(self.labels))[2]
            if unread:
                return (
                    f"{self.benchmark}: {unread} of {len(self.rows)} written texts are no answer of the task and "
                    "count as wrong"
                )
        return constant_text(self.benchmark, self.split, self.texts) if self.labels_differ else None

    def table(self) -> pa.Table:
        import pyarrow as pa

        references = self.labels
        return pa.table(
            {
                **self.key_columns(),
                "source": pa.array(list(self.rows.texts), pa.string()),
                "reference": pa.nulls(len(self.rows), pa.string())
                if references is None
                else pa.array(list(references), pa.string()),
                "hypothesis": pa.array(list(self.texts), pa.string()),
            }
        )


def write_predictions(path: Path, predicted: Sequence[SplitPredictions]) -> None:
    """Write every split into one file, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    decided = [each for each in predicted if isinstance(each, ClassPredictions) and _has_shared_table(each)]
    tables = [each.table() for each in predicted if not _has_shared_table(each)]
    if decided or not tables:
        tables.insert(0, _decisions_table(decided))  # together: one regression makes numbers of all labels
    with whole_file(path) as temporary:
        pq.write_table(pa.concat_tables(tables, promote_options="permissive"), temporary, compression="zstd")


def _has_shared_table(predicted: SplitPredictions) -> bool:
    return type(predicted).table is ClassPredictions.table


def _decisions_table(predicted: Sequence[ClassPredictions]) -> pa.Table:
    import pyarrow as pa

    numbers = any(each.logits.shape[1] == 1 for each in predicted)
    value = pa.float64() if numbers else pa.int64()
    schema = pa.schema(
        [
            ("benchmark", pa.string()),
            ("split", pa.string()),
            ("index", pa.int64()),
            ("text", pa.string()),
            ("text_pair", pa.string()),
            ("label", value),
            ("prediction", value),
            ("logits", pa.list_(pa.float32())),
        ]
    )
    tables = [_table(each, schema) for each in predicted]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _table(predicted: ClassPredictions, schema: Any) -> Any:
    import pyarrow as pa

    examples = len(predicted.rows)
    kind = np.float64 if schema.field("label").type == pa.float64() else np.int64
    labels = predicted.labels
    logits = predicted.logits.astype(np.float32)
    ends = np.arange(examples + 1, dtype=np.int32) * logits.shape[1]
    columns = [
        pa.array([predicted.benchmark] * examples, pa.string()),
        pa.array([predicted.split] * examples, pa.string()),
        pa.array(np.asarray(predicted.rows.index, dtype=np.int64)),
        pa.array(list(predicted.rows.texts), pa.string()),
        pa.nulls(examples, pa.string()) if predicted.rows.pairs is None else pa.array(list(predicted.rows.pairs)),
        pa.nulls(examples, schema.field("label").type) if labels is None else pa.array(labels.astype(kind)),
        pa.array(decide(predicted.logits).astype(kind)),
        pa.ListArray.from_arrays(pa.array(ends), pa.array(logits.ravel())),
    ]
    return pa.table(columns, schema=schema)


OTHER_KINDS = {
    "tokens": ("tokens", "tags", "predicted_tags"),
    "answer": ("id", "text", "text_pair", "answers", "answer"),
}
"""By a column that only they have: what is read of predictions that are no classes of a whole text."""


def _holds(table: Any, column: str) -> bool:
    return column in table.column_names and table[column].null_count < len(table)


def read_predictions(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """By (benchmark, split): `index`, `label` (None where not public), `prediction`, `logits` (examples, outputs).

    Of benchmarks whose answers are texts: `index`, and `source`, `reference`, `hypothesis` as lists; of those on
    words and spans the columns of OTHER_KINDS as lists.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    names = list(zip(table["benchmark"].to_pylist(), table["split"].to_pylist(), strict=True))
    read: dict[tuple[str, str], dict[str, Any]] = {}
    for benchmark, split in dict.fromkeys(names):
        part = table.filter(np.array([name == (benchmark, split) for name in names]))
        if "hypothesis" in part.column_names and part["hypothesis"].null_count < len(part):
            texts = {name: part[name].to_pylist() for name in ("source", "reference", "hypothesis")}
            read[benchmark, split] = {"index": part["index"].to_numpy(), **texts}
            continue
        kind = next((names for name, names in OTHER_KINDS.items() if _holds(part, name)), None)
        if kind is not None:
            read[benchmark, split] = {
                "index": part["index"].to_numpy(),
                **{name: part[name].to_pylist() for name in kind},
            }
            continue
        hidden = part["label"].null_count == len(part)
        read[benchmark, split] = {
            "index": part["index"].to_numpy(),
            "label": None if hidden else part["label"].to_numpy(),
            "prediction": part["prediction"].to_numpy(),
            "logits": np.array(part["logits"].to_pylist(), dtype=np.float32),
        }
    return read

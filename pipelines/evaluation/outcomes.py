"""What a model got right, example by example, without the examples: enough to score it again beside another model.

A publication carries it as `outcomes.parquet`. Whoever has two publications that were scored on the same examples can
test their difference, long after the runs and the data are gone. A row is an example: its number in the file, its
label where answers are classes or numbers, whether the answer is right, and `values`: the logits, or what the example
adds to the sums of each metric (`metrics.base.CountedMetric`), or the scores of a prompt's completions. No text of the
data is in it.

The file's metadata says how rows are grouped: one part for each benchmark and split, with the task's kind, metrics
and classes, and a digest of row numbers and labels, by which two publications know that their examples are the same,
whether classes were chosen by a head or written as texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import DataError
from pipelines.core.files import JSONObject, whole_file
from pipelines.core.interfaces import Head
from pipelines.core.results import BenchmarkScores
from pipelines.evaluation.policy_completions import of_each_prompt
from pipelines.evaluation.resampling import (
    Floats,
    Rescored,
    ScoredCounts,
    ScoredLogits,
    SplitColumns,
    resamples,
    rescored,
    score_answers,
)
from pipelines.tasks.evaluation import BenchmarkChoice, evaluation_of
from pipelines.tasks.predictions import read_predictions
from pipelines.tasks.text_to_text import AsText

OUTCOMES = "outcomes.parquet"
BASELINES = "baselines"
"""Folder of an evaluate stage with a file of this kind for each baseline."""
SEED = 42
"""Of the resampled examples: the same everywhere, so that all models are paired."""
FORMAT = "finery outcomes 1"
KEY = b"finery"
"""Of the file's metadata."""
LARGEST_ABOUT = 1 << 22
"""Bytes of the metadata that are read."""


def identity_of(columns: SplitColumns, classes: Sequence[str] = ()) -> str:
    """A digest of row numbers and labels: what makes the examples of two models the same.

    Labels that are written as the names of `classes` count as the numbers that a classification head has for them.
    """
    labels = columns.get("label", columns.get("reference"))
    if classes and isinstance(labels, list) and set(labels) <= {*classes, None}:
        labels = None if None in labels else np.array([classes.index(label) for label in labels])
    digest = hashlib.sha256(np.asarray(columns["index"], dtype=np.int64).tobytes())
    if isinstance(labels, np.ndarray):  # numbers of classes stand as floats where a regression is in the same file
        digest.update(labels.astype(np.float64).tobytes())
    elif labels is not None:
        digest.update(json.dumps(list(labels)).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class SplitOutcomes:
    """One split of a benchmark, ready to be scored again."""

    suffix: str
    """Of its metrics' names."""
    split: str
    scored: Rescored
    form: str = "counts"
    """How its scores are computed: `answers` are classes and numbers that were written as texts, `counts` are sums,
    anything else is the kind of a task whose answers are logits."""
    metrics: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcomes:
    """What one model got right on one benchmark."""

    benchmark: str
    metrics: Mapping[str, float]
    """Its scores, the first the one to compare by."""
    identity: Mapping[str, str]
    """By suffix of the metrics: which examples these are, whether or not they can be scored again."""
    splits: tuple[SplitOutcomes, ...] = ()
    prompts: Mapping[str, Floats] = field(default_factory=dict)
    """By score: what the completions of each prompt scored (prompts,), where a score is their mean."""

    @property
    def parts(self) -> dict[str, Rescored]:
        """By suffix: the split, ready to be scored again."""
        return {each.suffix: each.scored for each in self.splits}

    @cached_property
    def draws(self) -> dict[str, Floats]:
        """By metric: the score on resampled examples (resamples,)."""
        if self.prompts:
            return {name: column[resamples(len(column), SEED)].mean(axis=1) for name, column in self.prompts.items()}
        return {
            f"{name}{suffix}": scores
            for suffix, part in self.parts.items()
            for name, scores in part.resampled(resamples(len(part), SEED)).items()
            if f"{name}{suffix}" in self.metrics
        }


def outcomes_of(scores: BenchmarkScores, choice: BenchmarkChoice | None) -> Outcomes | None:
    """What an evaluate stage left about one benchmark; None where it left no predictions of each example.

    `choice` is what the stage was asked; the scores of completions of prompts have none.
    """
    prompted = "policy" in scores.details
    path = None if scores.folder is None else scores.folder / "predictions.parquet"
    if path is None or not path.is_file() or (choice is None and not prompted):
        return None
    predictions = read_predictions(path)
    found = {
        suffix: predictions[scores.benchmark, split]
        for suffix, split in scores.splits.items()
        if (scores.benchmark, split) in predictions
    }
    classes = _written_classes(choice)
    identity = {suffix: identity_of(columns, classes) for suffix, columns in found.items()}
    if prompted:
        prompts = of_each_prompt(path, list(scores.metrics))
        return Outcomes(scores.benchmark, scores.metrics, identity, prompts=prompts)
    assert choice is not None
    return _scored_again(scores, choice, found, identity)


def outcomes_of_answers(
    scores: BenchmarkScores, choice: BenchmarkChoice, answered: Mapping[str, SplitColumns]
) -> Outcomes:
    """The same of what a baseline gave: `answered` has its columns by suffix, and `scores` what they reach."""
    classes = _written_classes(choice)
    identity = {suffix: identity_of(columns, classes) for suffix, columns in answered.items()}
    return _scored_again(scores, choice, answered, identity)


def _scored_again(
    scores: BenchmarkScores, choice: BenchmarkChoice, found: Mapping[str, SplitColumns], identity: Mapping[str, str]
) -> Outcomes:
    splits = (_split(scores, choice, suffix, columns) for suffix, columns in found.items())
    return Outcomes(scores.benchmark, scores.metrics, identity, tuple(each for each in splits if each is not None))


def _written_classes(choice: BenchmarkChoice | None) -> tuple[str, ...]:
    """The classes of a task whose answers are written as text; none of any other."""
    try:
        task: Any = None if choice is None else choice.open_task()
    except Exception:  # there are no scores to compute again then either: `_split`
        return ()
    return task.task.head.labels if isinstance(task, AsText) else ()


def _split(
    scores: BenchmarkScores, choice: BenchmarkChoice, suffix: str, columns: SplitColumns
) -> SplitOutcomes | None:
    own = {name.removesuffix(suffix): value for name, value in scores.metrics.items() if name.endswith(suffix)}
    try:
        task: Any = choice.open_task()
        scored = rescored(task, columns, own)
    except Exception:  # a kind of prediction that is not one answer an example: there is no interval then
        return None
    if scored is None:
        return None
    split = scores.splits[suffix]
    if isinstance(scored, ScoredCounts):
        return SplitOutcomes(suffix, split, scored)
    as_text = isinstance(task, AsText)
    inner = task.task if as_text else task
    kind = "answers" if as_text else inner.kind
    return SplitOutcomes(suffix, split, scored, kind, tuple(inner.metrics), tuple(inner.head.labels))


@dataclass(frozen=True)
class _ScoredTask:
    """As much of a task as its scores need."""

    name: str
    kind: str
    metrics: tuple[str, ...]
    head: Head


def write_outcomes(path: Path, outcomes: Sequence[Outcomes]) -> None:
    """Write them into one file, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts: list[JSONObject] = []
    tables = []
    for each in outcomes:
        for split in each.splits:
            about, values, labels, right = _written(split)
            parts.append({"benchmark": each.benchmark, **about})
            tables.append(_table(len(parts) - 1, values, labels, right))
        if each.prompts:
            names = list(each.prompts)
            parts.append({"benchmark": each.benchmark, "suffix": "", "form": "prompts", "metrics": names})
            tables.append(_table(len(parts) - 1, np.stack([each.prompts[name] for name in names], axis=1), None, None))
    about = {
        "format": FORMAT,
        "benchmarks": {
            each.benchmark: {"metrics": dict(each.metrics), "identity": dict(each.identity)} for each in outcomes
        },
        "parts": parts,
    }
    table = pa.concat_tables(tables) if tables else _schema().empty_table()
    with whole_file(path) as temporary:
        pq.write_table(table.replace_schema_metadata({KEY: json.dumps(about).encode()}), temporary, compression="zstd")


def _written(split: SplitOutcomes) -> tuple[dict[str, Any], NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
    about: dict[str, Any] = {"suffix": split.suffix, "split": split.split, "form": split.form}
    if isinstance(split.scored, ScoredCounts):
        tables = split.scored.tables
        about["widths"] = {name: int(table.shape[1]) for name, table in tables.items()}
        return about, np.concatenate(list(tables.values()), axis=1), None, split.scored.right
    about |= {"metrics": list(split.metrics), "classes": list(split.classes)}
    return about, np.asarray(split.scored.logits), np.asarray(split.scored.labels), split.scored.right


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("part", pa.int32()),
            ("label", pa.float64()),
            ("right", pa.bool_()),
            ("values", pa.list_(pa.float64())),
        ]
    )


def _table(part: int, values: NDArray[Any], labels: NDArray[Any] | None, right: NDArray[Any] | None) -> Any:
    import pyarrow as pa

    examples, width = values.shape
    ends = np.arange(examples + 1, dtype=np.int32) * width
    columns = [
        pa.array(np.full(examples, part, dtype=np.int32)),
        pa.nulls(examples, pa.float64()) if labels is None else pa.array(labels.astype(np.float64)),
        pa.nulls(examples, pa.bool_()) if right is None else pa.array(np.asarray(right, dtype=bool)),
        pa.ListArray.from_arrays(pa.array(ends), pa.array(values.astype(np.float64).ravel())),
    ]
    return pa.table(columns, schema=_schema())


def read_outcomes(path: Path) -> list[Outcomes]:
    """What `write_outcomes` wrote. Raises DataError for anything else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        text = (table.schema.metadata or {}).get(KEY, b"")
        about = json.loads(text) if len(text) <= LARGEST_ABOUT else {}
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise ValueError(f"its metadata does not begin with '{FORMAT}'")
        numbers = table["part"].to_numpy()
        read = {name: Outcomes(name, each["metrics"], each["identity"]) for name, each in about["benchmarks"].items()}
        for number, part in enumerate(about["parts"]):
            rows = table.filter(pa.array(numbers == number))
            read[part["benchmark"]] = _with(read[part["benchmark"]], part, rows)
    except (
        OSError, pa.ArrowException, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError,
    ) as error:  # fmt: skip
        raise DataError(f"'{path}' is no readable {OUTCOMES}: {error}") from None
    return list(read.values())


def _with(before: Outcomes, part: JSONObject, rows: Any) -> Outcomes:
    """The outcomes with one more part of the file."""
    values = np.array(rows["values"].to_pylist(), dtype=np.float64)
    if part["form"] == "prompts":
        return replace(before, prompts={name: values[:, at] for at, name in enumerate(part["metrics"])})
    right = None if rows["right"].null_count else rows["right"].to_numpy(zero_copy_only=False)
    metrics, classes = tuple(part.get("metrics", ())), tuple(part.get("classes", ()))
    scored: Rescored
    if part["form"] == "counts":
        scored = _counts(part["widths"], values, right)
    else:
        labels = rows["label"].to_numpy()
        scored = _logits(before.benchmark, part["form"], metrics, classes, values, labels, right)
    split = SplitOutcomes(part["suffix"], part["split"], scored, part["form"], metrics, classes)
    return replace(before, splits=(*before.splits, split))


def _counts(widths: Mapping[str, int], values: Floats, right: NDArray[np.bool_] | None) -> ScoredCounts:
    ends = np.cumsum([0, *widths.values()])
    return ScoredCounts({name: values[:, ends[at] : ends[at + 1]] for at, name in enumerate(widths)}, right)


def _logits(
    benchmark: str,
    form: str,
    metrics: tuple[str, ...],
    classes: tuple[str, ...],
    logits: Floats,
    labels: NDArray[Any],
    right: NDArray[np.bool_] | None,
) -> ScoredLogits:
    numbers = form == "regression" or (form == "answers" and not classes)
    labels = labels if numbers else labels.astype(np.int64)
    if form == "answers":
        return ScoredLogits(score_answers(metrics, len(classes)), logits, labels, right)
    task: Any = _ScoredTask(benchmark, form, metrics, Head("sequence_classification", classes))
    return ScoredLogits(evaluation_of(form).score(task), logits, labels, right)

"""Each evaluated example as people read it, and the worst mistakes of a split: `mistakes.jsonl`.

`mistakes.jsonl` holds one JSON object a line, the worst first within each split. Keys: benchmark, split, index (row in
the split), text, text_pair (null for single texts), gold, said, confidence (null where the model tells none), badness
and what it is. Of numbers every row is there by its distance; of texts those that differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.files import whole_file
from pipelines.core.interfaces import Task
from pipelines.evaluation.calibration import softmax
from pipelines.metrics.base import Column, counted_metric
from pipelines.tasks.causal.evaluation import CompletionPredictions, graded
from pipelines.tasks.extractive_qa.evaluation import SpanAnswer, SpanPredictions
from pipelines.tasks.multiple_choice.evaluation import OptionPredictions
from pipelines.tasks.multiple_choice.task import LETTERS
from pipelines.tasks.predictions import ClassPredictions, SplitPredictions, TextPredictions
from pipelines.tasks.preference.evaluation import PairPredictions
from pipelines.tasks.scoring import decide
from pipelines.tasks.text_to_text import AsText
from pipelines.tasks.token_classification.evaluation import TagPredictions

NO_ANSWER = "(no answer)"
MOST_CLASSES = 30
"""Beyond these a confusion matrix is not kept."""


@dataclass(frozen=True)
class ScoredExamples:
    """The examples of a split that has public labels."""

    gold: Sequence[str]
    said: Sequence[str]
    wrong: NDArray[np.bool_]
    """Which examples are mistakes (examples,)."""
    badness: NDArray[np.float64]
    """What mistakes are ordered by, the worst largest (examples,)."""
    order: str
    """What that is, in words."""
    confidence: NDArray[np.float64] | None = None
    """Probability of what was said (examples,); None where the model tells none."""
    logits: NDArray[Any] | None = None
    """(decisions, classes): what calibration is measured on; a text with tags is many decisions."""
    labels: NDArray[Any] | None = None
    """(decisions,)"""
    classes: Sequence[str] = field(default=())
    """Names of the classes, for a confusion matrix; empty where the classes mean something else in each example."""


def scored_examples(predictions: SplitPredictions, task: Task) -> ScoredExamples | None:
    """What became of each example; None where labels are not public, or the kind of answer is not known here."""
    if predictions.labels is None:
        return None
    kinds: dict[type, Callable[[Any, Any], ScoredExamples | None]] = {
        ClassPredictions: _predicted,
        OptionPredictions: _chosen,
        SpanPredictions: _spanned,
        TagPredictions: _tagged,
        TextPredictions: _written,
        CompletionPredictions: _completed,
        PairPredictions: _preferred,
    }
    read = next((kinds[kind] for kind in type(predictions).__mro__ if kind in kinds), None)
    return None if read is None else read(predictions, task)


def _predicted(predictions: ClassPredictions, task: Task) -> ScoredExamples:
    labels, names = np.asarray(predictions.labels), task.head.labels
    if predictions.logits.shape[1] == 1:
        answers = decide(predictions.logits)
        error = np.abs(answers - labels).astype(np.float64)
        return ScoredExamples(
            [f"{value:g}" for value in labels],
            [f"{value:.3g}" for value in answers],
            np.ones(len(labels), dtype=bool),
            error,
            "distance from the right number",
        )
    return _decided(
        predictions.logits,
        labels,
        [names[label] for label in labels],
        [names[at] for at in decide(predictions.logits)],
        names,
    )


def _chosen(predictions: OptionPredictions, task: Task) -> ScoredExamples:
    labels, options = np.asarray(predictions.labels), predictions.rows.options  # type: ignore[attr-defined]

    def named(numbers: NDArray[np.integer]) -> list[str]:
        return [f"{LETTERS[number]}: {row[number]}" for number, row in zip(numbers, options, strict=True)]

    return _decided(predictions.logits, labels, named(labels), named(predictions.logits.argmax(axis=1)), ())


def _preferred(predictions: PairPredictions, task: Task) -> ScoredExamples:
    sides = predictions.rows.chosen, predictions.rows.rejected  # type: ignore[attr-defined]
    preferred = [sides[side][at].completion for at, side in enumerate(predictions.logits.argmax(axis=1))]
    return _decided(
        predictions.logits, np.asarray(predictions.labels), [each.completion for each in sides[0]], preferred, ()
    )


def _decided(
    logits: NDArray[np.floating],
    labels: NDArray[np.integer],
    gold: Sequence[str],
    said: Sequence[str],
    names: Sequence[str],
) -> ScoredExamples:
    chances = softmax(logits)
    confidence = chances.max(axis=1)
    return ScoredExamples(
        gold,
        said,
        logits.argmax(axis=1) != labels,
        confidence,
        "confidence in the wrong answer",
        confidence,
        logits,
        labels,
        names,
    )


def _spanned(predictions: SpanPredictions, task: Task) -> ScoredExamples:
    answers, texts = predictions.labels, predictions.said
    assert answers is not None
    counted = _each(task.metrics[0], texts, answers)
    confidence = np.array(
        [_sure(each, text, predictions.may_be_none) for each, text in zip(predictions.found, texts, strict=True)]
    )
    gold = [" / ".join(dict.fromkeys(each)) or NO_ANSWER for each in answers]
    wrong = counted[:, 0] == 0
    # an answer that shares no word is worse than one that is a word too long
    return ScoredExamples(
        gold,
        [text or NO_ANSWER for text in texts],
        wrong,
        (1 - counted[:, 1]) + confidence / 100,
        "words that answer and truth do not share, then confidence",
        confidence,
    )


def _sure(answer: SpanAnswer, text: str, may_be_none: bool) -> float:
    """The probability of what was said among the best spans, as the official n-best files have it, and "no answer"."""
    scores = [span.score for span in answer.best] + ([answer.null_score] if may_be_none or not answer.best else [])
    names = [span.text for span in answer.best] + ([""] if may_be_none or not answer.best else [])
    if text not in names:
        return 0.0
    return float(softmax(np.array([scores]))[0, names.index(text)])


def _tagged(predictions: TagPredictions, task: Task) -> ScoredExamples:
    labels, answers, names = predictions.labels, predictions.said, predictions.names
    assert labels is not None
    gold, predicted, wrong = [], [], []
    for words, true, tags in zip(predictions.rows.words, labels, answers, strict=True):  # type: ignore[attr-defined]
        bad = [place for place, (one, other) in enumerate(zip(true, tags, strict=True)) if one != other]
        gold.append(", ".join(f"{words[place]}: {names[true[place]]}" for place in bad))
        predicted.append(
            ", ".join(f"{words[place]}: {names[tags[place]] if tags[place] >= 0 else '?'}" for place in bad)
        )
        wrong.append(len(bad))
    logits = np.concatenate([np.asarray(each) for each in predictions.logits])
    flat = np.concatenate([np.asarray(each) for each in labels])
    read = ~np.isnan(logits).any(axis=1)
    count = np.array(wrong, dtype=np.float64)
    return ScoredExamples(
        gold, predicted, count > 0, count, "words with a wrong tag", None, logits[read], flat[read], names
    )


def _written(predictions: TextPredictions, task: Task) -> ScoredExamples:
    references = [str(each) for each in np.asarray(predictions.labels)]
    texts = [str(each) for each in predictions.texts]
    if isinstance(task, AsText):
        answers, labels, _ = task.read(texts, references)
        if task.task.kind == "regression":
            error = np.abs(np.array(answers, dtype=np.float64) - np.array(labels, dtype=np.float64))
            return ScoredExamples(references, texts, error > 0, error, "distance from the right number")
        wrong = np.array(answers) != np.array(labels)
        return ScoredExamples(references, texts, wrong, wrong.astype(np.float64), "order of the file")
    return _compared(texts, references, texts, references, task.metrics)


def _completed(predictions: CompletionPredictions, task: Task) -> ScoredExamples | None:
    if predictions.texts is None or not task.metrics:
        return None
    texts, references = [str(each) for each in predictions.texts], [str(each) for each in predictions.labels]
    return _compared(texts, references, graded(task, texts), graded(task, references), task.metrics)


def _compared(
    texts: list[str], references: list[str], compared_texts: Column, compared_references: Column, metrics: Sequence[str]
) -> ScoredExamples:
    """Texts in words: the worst is the one that scores least by itself, by the last metric, as BLEU is none of
    single sentences."""
    metric = counted_metric(metrics[-1])
    scores = np.array(
        [next(iter(metric.of_counts(row).values())) for row in metric.counts(compared_texts, compared_references)]
    )
    same = np.array(
        [str(one).strip() == str(other).strip() for one, other in zip(compared_texts, compared_references, strict=True)]
    )
    return ScoredExamples(references, texts, ~same, -scores, f"{metrics[-1]} of the single text")


def _each(metric: str, predictions: Column, references: Column) -> NDArray[np.float64]:
    return np.asarray(counted_metric(metric).counts(predictions, references), dtype=np.float64)


MOST = 200
"""Of each split."""


def mistakes(predictions: SplitPredictions, examples: ScoredExamples) -> list[dict[str, object]]:
    """The worst of a split, the worst first; of equal ones the earlier."""
    order = [int(at) for at in np.argsort(-examples.badness, kind="stable") if examples.wrong[at]][:MOST]
    pairs = predictions.rows.pairs
    return [
        {
            "benchmark": predictions.benchmark,
            "split": predictions.split,
            "index": int(predictions.rows.index[at]),
            "text": predictions.rows.texts[at],
            "text_pair": None if pairs is None else pairs[at],
            "gold": examples.gold[at],
            "said": examples.said[at],
            "confidence": None if examples.confidence is None else round(float(examples.confidence[at]), 6),
            "badness": round(float(examples.badness[at]), 6),
            "by": examples.order,
        }
        for at in order
    ]


def write_mistakes(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Write them atomically."""
    with whole_file(path) as temporary:
        temporary.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")

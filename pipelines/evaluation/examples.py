"""Each evaluated example as people read it, and the worst mistakes of a split: `mistakes.jsonl`.

Each evaluated example as people read it: what was asked, what is right, what was said, how sure the model was, how
bad it is.

The worst mistakes, to be read: `mistakes.jsonl`, one JSON object a line, the worst first within each split.

Keys: benchmark, split, index (row in the split), text, text_pair (null for single texts), gold, said, confidence
(null where the model tells none), badness and what it is. Of numbers every row is there by its distance; of texts
those that differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.files import whole_file
from pipelines.core.interfaces import Task
from pipelines.core.registry import METRICS
from pipelines.evaluation.calibration import softmax
from pipelines.tasks.causal.evaluation import CompletionPredictions, graded
from pipelines.tasks.extractive_qa.evaluation import SpanPredictions
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
class Outcomes:
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


def outcomes_of(said: SplitPredictions, task: Task) -> Outcomes | None:
    """What became of each example; None where labels are not public, or the kind of answer is not known here."""
    if said.labels is None:
        return None
    kinds: dict[type, Callable[[Any, Any], Outcomes | None]] = {
        ClassPredictions: _predicted,
        OptionPredictions: _chosen,
        SpanPredictions: _spanned,
        TagPredictions: _tagged,
        TextPredictions: _written,
        CompletionPredictions: _completed,
        PairPredictions: _preferred,
    }
    read = next((kinds[kind] for kind in type(said).__mro__ if kind in kinds), None)
    return None if read is None else read(said, task)


def _predicted(said: ClassPredictions, task: Task) -> Outcomes:
    labels, names = np.asarray(said.labels), task.head.labels
    if said.logits.shape[1] == 1:
        answers = decide(said.logits)
        error = np.abs(answers - labels).astype(np.float64)
        return Outcomes(
            [f"{value:g}" for value in labels],
            [f"{value:.3g}" for value in answers],
            np.ones(len(labels), dtype=bool),
            error,
            "distance from the right number",
        )
    return _decided(
        said.logits, labels, [names[label] for label in labels], [names[at] for at in decide(said.logits)], names
    )


def _chosen(said: OptionPredictions, task: Task) -> Outcomes:
    labels, options = np.asarray(said.labels), said.rows.options  # type: ignore[attr-defined]

    def named(numbers: Any) -> list[str]:
        return [f"{LETTERS[number]}: {row[number]}" for number, row in zip(numbers, options, strict=True)]

    return _decided(said.logits, labels, named(labels), named(said.logits.argmax(axis=1)), ())


def _preferred(said: PairPredictions, task: Task) -> Outcomes:
    sides = said.rows.chosen, said.rows.rejected  # type: ignore[attr-defined]
    preferred = [sides[side][at].completion for at, side in enumerate(said.logits.argmax(axis=1))]
    return _decided(said.logits, np.asarray(said.labels), [each.completion for each in sides[0]], preferred, ())


def _decided(
    logits: NDArray[Any], labels: NDArray[Any], gold: Sequence[str], said: Sequence[str], names: Sequence[str]
) -> Outcomes:
    chances = softmax(logits)
    confidence = chances.max(axis=1)
    return Outcomes(
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


def _spanned(said: SpanPredictions, task: Task) -> Outcomes:
    answers, texts = said.labels, said.said
    assert answers is not None
    counted = _each(task.metrics[0], texts, answers)
    confidence = np.array([_sure(each, text, said.may_be_none) for each, text in zip(said.found, texts, strict=True)])
    gold = [" / ".join(dict.fromkeys(each)) or NO_ANSWER for each in answers]
    wrong = counted[:, 0] == 0
    # an answer that shares no word is worse than one that is a word too long
    return Outcomes(
        gold,
        [text or NO_ANSWER for text in texts],
        wrong,
        (1 - counted[:, 1]) + confidence / 100,
        "words that answer and truth do not share, then confidence",
        confidence,
    )


def _sure(found: Any, text: str, may_be_none: bool) -> float:
    """The probability of what was said among the best spans, as the official n-best files have it, and "no answer"."""
    scores = [span.score for span in found.best] + ([found.null_score] if may_be_none or not found.best else [])
    names = [span.text for span in found.best] + ([""] if may_be_none or not found.best else [])
    if text not in names:
        return 0.0
    return float(softmax(np.array([scores]))[0, names.index(text)])


def _tagged(said: TagPredictions, task: Task) -> Outcomes:
    labels, answers, names = said.labels, said.said, said.names
    assert labels is not None
    gold, spoken, wrong = [], [], []
    for words, true, given in zip(said.rows.words, labels, answers, strict=True):  # type: ignore[attr-defined]
        bad = [place for place, (one, other) in enumerate(zip(true, given, strict=True)) if one != other]
        gold.append(", ".join(f"{words[place]}: {names[true[place]]}" for place in bad))
        spoken.append(
            ", ".join(f"{words[place]}: {names[given[place]] if given[place] >= 0 else '?'}" for place in bad)
        )
        wrong.append(len(bad))
    logits = np.concatenate([np.asarray(each) for each in said.logits])
    flat = np.concatenate([np.asarray(each) for each in labels])
    read = ~np.isnan(logits).any(axis=1)
    count = np.array(wrong, dtype=np.float64)
    return Outcomes(gold, spoken, count > 0, count, "words with a wrong tag", None, logits[read], flat[read], names)


def _written(said: TextPredictions, task: Task) -> Outcomes:
    references = [str(each) for each in np.asarray(said.labels)]
    texts = [str(each) for each in said.texts]
    if isinstance(task, AsText):
        predictions, labels, _ = task.read(texts, references)
        if task.task.kind == "regression":
            error = np.abs(np.array(predictions, dtype=np.float64) - np.array(labels, dtype=np.float64))
            return Outcomes(references, texts, error > 0, error, "distance from the right number")
        wrong = np.array(predictions) != np.array(labels)
        return Outcomes(references, texts, wrong, wrong.astype(np.float64), "order of the file")
    return _compared(texts, references, texts, references, task.metrics)


def _completed(said: CompletionPredictions, task: Task) -> Outcomes | None:
    if said.texts is None or not task.metrics:
        return None
    texts, references = [str(each) for each in said.texts], [str(each) for each in said.labels]
    return _compared(texts, references, graded(task, texts), graded(task, references), task.metrics)


def _compared(texts: list[str], references: list[str], judged: Any, right: Any, metrics: Sequence[str]) -> Outcomes:
    """Texts in words: the worst is the one that scores least by itself, by the last metric, as BLEU is none of
    single sentences."""
    module = import_module(METRICS.module(metrics[-1]))
    scores = np.array([next(iter(module.of_counts(row).values())) for row in module.counts(judged, right)])
    same = np.array([str(one).strip() == str(other).strip() for one, other in zip(judged, right, strict=True)])
    return Outcomes(references, texts, ~same, -scores, f"{metrics[-1]} of the single text")


def _each(metric: str, said: Any, right: Any) -> NDArray[np.float64]:
    return np.asarray(import_module(METRICS.module(metric)).counts(said, right), dtype=np.float64)


MOST = 200
"""Of each split."""


def mistakes(said: SplitPredictions, found: Outcomes) -> list[dict[str, Any]]:
    """The worst of a split, the worst first; of equal ones the earlier."""
    order = [int(at) for at in np.argsort(-found.badness, kind="stable") if found.wrong[at]][:MOST]
    pairs = said.rows.pairs
    return [
        {
            "benchmark": said.benchmark,
            "split": said.split,
            "index": int(said.rows.index[at]),
            "text": said.rows.texts[at],
            "text_pair": None if pairs is None else pairs[at],
            "gold": found.gold[at],
            "said": found.said[at],
            "confidence": None if found.confidence is None else round(float(found.confidence[at]), 6),
            "badness": round(float(found.badness[at]), 6),
            "by": found.order,
        }
        for at in order
    ]


def write_mistakes(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write them atomically."""
    with whole_file(path) as temporary:
        temporary.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")

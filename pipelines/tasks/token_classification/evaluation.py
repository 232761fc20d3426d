"""Evaluating token classification: a row of logits for each word, scored as entities or tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import DataError
from pipelines.core.interfaces import IGNORED, Score, Task
from pipelines.core.presentation import MOST_WORDS, FormField, Marked, Part, Piece, Sentence, field_of
from pipelines.core.scores import score_names
from pipelines.metrics.calibration import softmax
from pipelines.metrics.seqeval import OUTSIDE, Seqeval
from pipelines.metrics.statistics import RESAMPLES, corpus_intervals
from pipelines.tasks.evaluation import EvaluationRequest, Predictions, TaskEvaluation, columns
from pipelines.tasks.predictions import FEWEST, Intervals, Members, SplitPredictions, constant_tag
from pipelines.tasks.scored_examples import Columns, ScoredExamples

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers.utils import ModelOutput

    from pipelines.tasks.base import LabelledTask


@dataclass(frozen=True)
class TagPredictions(SplitPredictions):
    """A class for each word. `rows` are WordRows."""

    logits: Sequence[NDArray[np.float32]]
    """Of each text (words, classes); NaN for a word without a token of its own."""
    names: tuple[str, ...]
    """The classes, in the order of their ids."""

    @property
    def labels(self) -> NDArray[Any] | None:
        """The ids of each text's tags, as an array of arrays, None where they are not public."""
        return (
            None
            if self.rows.labels is None
            else _ragged([np.asarray(tags, dtype=np.int64) for tags in self.rows.labels])
        )

    @property
    def answers(self) -> NDArray[Any]:
        """The predicted ids of each text's tags, as an array of arrays; a word without a token is outside of
        entities, or -1."""
        unread = self.names.index(OUTSIDE) if OUTSIDE in self.names else -1
        return _ragged(
            [np.where(np.isnan(each[:, 0]), unread, np.nan_to_num(each).argmax(axis=1)) for each in self.logits]
        )

    def intervals(
        self, task: Task, score: Score, seed: int, members: Members | None = None, resamples: int = RESAMPLES
    ) -> Intervals:
        """Of parts none."""
        if members is not None:
            return {}
        assert self.labels is not None
        predicted, true = in_words(self.answers, self.names), in_words(self.labels, self.names)
        ends = corpus_intervals(["seqeval"], predicted, true, seed, resamples)
        return {name: ends[name] for name in score_names(task.metrics)}

    def answered(self, answers: NDArray[Any]) -> dict[str, Any]:
        rows: Any = self.rows
        labels = self.labels
        assert labels is not None
        tags = {"tags": in_words(labels, self.names), "predicted_tags": in_words(answers, self.names)}
        return {"index": self.rows.index, "tokens": list(rows.words), **tags}

    def scored_examples(self, task: Task) -> ScoredExamples:
        rows: Any = self.rows
        labels, answers, names = self.labels, self.answers, self.names
        assert labels is not None
        gold, predicted, wrong = [], [], []
        for words, true, tags in zip(rows.words, labels, answers, strict=True):
            bad = [place for place, (one, other) in enumerate(zip(true, tags, strict=True)) if one != other]
            gold.append(", ".join(f"{words[place]}: {names[true[place]]}" for place in bad))
            predicted.append(
                ", ".join(f"{words[place]}: {names[tags[place]] if tags[place] >= 0 else '?'}" for place in bad)
            )
            wrong.append(len(bad))
        logits = np.concatenate([np.asarray(each) for each in self.logits])
        flat = np.concatenate([np.asarray(each) for each in labels])
        read = ~np.isnan(logits).any(axis=1)
        count = np.array(wrong, dtype=np.float64)
        return ScoredExamples(
            gold, predicted, count > 0, count, "words with a wrong tag", None, logits[read], flat[read], names
        )

    def columns(self, task: Task) -> Columns:
        tags: list[list[str | None]] = []
        probabilities: list[list[float | None]] = []
        for row, names in zip(self.logits, in_words(self.answers, self.names), strict=True):
            read = ~np.isnan(row[:, 0])  # a word without a token has neither
            chances = softmax(np.nan_to_num(row)).max(axis=-1)
            tags.append([name if known else None for name, known in zip(names, read, strict=True)])
            probabilities.append([float(each) if known else None for each, known in zip(chances, read, strict=True)])
        return self.inputs() | {"prediction": tags, "probabilities": probabilities}

    def shown(self, task: Task, place: int = 0) -> tuple[Part, ...]:
        rows: Any = self.rows
        words, tags = list(rows.words[place]), in_words([self.answers[place]], self.names)[0]
        shares = softmax(np.nan_to_num(self.logits[place])).max(axis=-1).tolist()
        unread = np.isnan(self.logits[place][:, 0])
        marked = Marked(title="Tags", pieces=tuple(_pieces(words, tags, shares, unread.tolist()))[:MOST_WORDS])
        if not unread.any():
            return (marked,)
        sentence = f"{int(unread.sum())} of {len(words)} words have no tag: the tokenizer makes no token of them."
        return (marked, Sentence(text=sentence))

    def inputs(self) -> Columns:
        rows: Any = self.rows
        return {"index": [int(each) for each in rows.index], "tokens": [list(words) for words in rows.words]}

    def outputs(self, task: Task) -> int:
        return 1  # the guessers that know classes know them of whole texts

    @property
    def labels_differ(self) -> bool:
        tags = [] if self.labels is None else [tag for row in self.labels for tag in row]
        return len(tags) >= FEWEST and len(set(tags)) > 1

    def doubt(self, task: Task) -> str | None:
        if not self.labels_differ:
            return None
        return constant_tag(self.benchmark, self.split, self.answers, self.names)

    def table(self) -> pa.Table:
        import pyarrow as pa

        texts = pa.list_(pa.string())
        tags = None if self.labels is None else in_words(self.labels, self.names)
        return pa.table(
            {
                **self.key_columns(),
                "tokens": pa.array([list(words) for words in self.rows.words], texts),  # type: ignore[attr-defined]
                "tags": pa.nulls(len(self.rows), texts) if tags is None else pa.array(tags, texts),
                "predicted_tags": pa.array(in_words(self.answers, self.names), texts),
                "logits": pa.array([each.ravel() for each in self.logits], pa.list_(pa.float32())),
            }
        )


def _pieces(
    words: Sequence[str], tags: Sequence[str], shares: Sequence[float], unread: Sequence[bool]
) -> Iterator[Piece]:
    """The words with their tags, those of one entity (B-X I-X …) as one piece with the least of their probabilities."""
    groups: list[tuple[list[str], str, float]] = []
    for word, tag, chance, out in zip(words, tags, shares, unread, strict=True):
        beginning, _, entity = tag.partition("-")
        name = "" if tag == OUTSIDE or out else entity if entity and beginning in ("B", "I") else tag
        if groups and name == groups[-1][1] and (not name or (entity and beginning == "I")):
            group, _, least = groups.pop()
            groups.append(([*group, word], name, min(least, chance)))
        else:
            groups.append(([word], name, chance))
    for place, (group, name, least) in enumerate(groups):
        if place:
            yield Piece(text=" ")
        yield Piece(text=" ".join(group), mark=name, share=least if name else None)


def _ragged(rows: Sequence[object]) -> NDArray[Any]:
    ragged = np.empty(len(rows), dtype=object)
    ragged[:] = rows
    return ragged


def in_words(ids: Any, names: tuple[str, ...]) -> list[list[str]]:
    """Tags by name; an id below 0 is a tag of its own, which no text has."""
    return [[names[tag] if tag >= 0 else "?" for tag in row] for row in ids]


def score_tags(task: Task) -> Score:
    """The task's scores as one function of predicted ids and true ids, each (texts,) of arrays.

    While training, of logits (texts, length, classes) and labels (texts, length), where -100 marks what is no
    beginning of a word.
    """
    names = score_names(task.metrics)
    classes, benchmark = task.head.labels, task.name

    def of(answers: Any, labels: Any) -> dict[str, float]:
        if isinstance(answers, np.ndarray) and answers.ndim == 3:
            answers, labels = _from_tokens(answers, np.asarray(labels))
        if len(answers) != len(labels):
            raise DataError(
                f"'{benchmark}' has {len(answers)} predictions but {len(labels)} labels; they must be as many"
            )
        if not sum(len(row) for row in labels):
            raise DataError(f"'{benchmark}' has no word to score; choose a split with rows, or raise max_eval_samples")
        scores = Seqeval().compute(in_words(answers, classes), in_words(labels, classes))
        return {name: scores[name] for name in names}

    return of


def _from_tokens(logits: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    marked = labels != IGNORED
    tags = logits.argmax(axis=-1)
    return _ragged([row[mask] for row, mask in zip(tags, marked, strict=True)]), _ragged(
        [row[mask] for row, mask in zip(labels, marked, strict=True)]
    )


class TokenClassificationEvaluation(TaskEvaluation):
    """The logits of each word's first token, in the task's order of classes."""

    majority_guess: ClassVar[str] = "giving each word its most frequent tag"

    def ask(self, request: EvaluationRequest) -> Predictions:
        from pipelines.models.predict import forward
        from pipelines.tasks.token_classification.training import collate_words, encode_words

        names, name, length = request.task.head.labels, request.choice.name, request.length()
        order = columns(names, request.model.config, name, request.choice.model)
        predicted = []
        for suffix, split, split_rows in request.splits():
            rows: Any = split_rows
            parts = encode_words(request.tokenizer, rows, length)
            logits = forward(
                request.model, parts, partial(collate_words, request.tokenizer), _of_tokens, **request.running(split)
            )
            words = _of_words(parts, logits, rows, len(names))
            ordered = [each if order is None else each[:, order] for each in words]
            predicted.append(TagPredictions(name, split, suffix, rows, ordered, names))
        return Predictions(predicted, length, order)

    def score(self, task: Task) -> Score:

        return score_tags(task)

    def form(self, task: LabelledTask) -> tuple[FormField, ...]:
        (words,) = task.columns
        return (field_of(words, "Words and signs with a space between them: each gets a tag.", control="words"),)

    def examples(self, task: LabelledTask) -> Sequence[Sequence[list[str]]]:
        return [
            (text.split(),)
            for text in ("Ada Lovelace wrote to Charles Babbage in London .", "Return the sum of all items .")
        ]

    def unread(self, tokenizer: Any, rows: Any, length: int) -> str | None:
        return None  # long texts are read in several parts, and words without a tag are told with the tags


def _of_tokens(outputs: ModelOutput, inputs: Any) -> list[Any]:
    """For each part (tokens, classes) without padding. Raises ModelError for a model without them, or whose
    training diverged."""
    import numpy as np

    from pipelines.core.errors import ModelError

    logits = outputs.logits.float().cpu().numpy()
    real = inputs["attention_mask"].numpy().astype(bool)
    if logits.ndim != 3 or logits.shape[:2] != real.shape:
        raise ModelError(
            f"the model gives outputs of shape {logits.shape} for {real.shape[0]} texts of {real.shape[1]} "
            "tokens, where one row a token "
            "is needed; evaluate a model with a token classification head"
        )
    if not np.isfinite(logits[real]).all():
        raise ModelError(
            "the model gives NaN or infinity for a token: its training diverged, so lower its learning rate"
        )
    return [row[mask] for row, mask in zip(logits, real, strict=True)]


def _of_words(parts: Any, logits: list[Any], rows: Any, classes: int) -> list[Any]:
    """Of each text (words, classes): the logits of its words' first tokens, NaN where a word has none."""
    import numpy as np

    by_text = [np.full((len(words), classes), np.nan, dtype=np.float32) for words in rows.words]
    for place, (row, each) in enumerate(zip(parts.rows, logits, strict=True)):
        words = parts.words.array(place)
        first = np.flatnonzero(words >= 0)
        by_text[row][words[first]] = each[first]
    return by_text

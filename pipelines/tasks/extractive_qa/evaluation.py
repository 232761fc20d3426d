"""Evaluating extractive question answering: from the logits of windows to the best spans, and their scores.

The algorithm is that of BERT's `run_squad.py` (Devlin et al. 2019, section 4.2 and 4.3, arxiv.org/abs/1810.04805):
the best first and last tokens of each window are combined; a span lies in the context, is no longer than
`max_answer_length` tokens, and begins in the window where its first token has the most context around it; spans of
all windows compete by the sum of their two logits, and of spans with the same text the best counts. "No answer" has
the least sum at the blanks of all windows. Answers are cut out of the context by their characters, so nothing is put
together from tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.decoding import SpanSettings
from pipelines.core.files import write_json
from pipelines.core.interfaces import Rows, Score, Task
from pipelines.core.presentation import FormField, Marked, Part, Piece, bars, field_of
from pipelines.metrics.base import counted_metric
from pipelines.metrics.calibration import softmax
from pipelines.metrics.squad import at_threshold, best_threshold, by_answerability
from pipelines.metrics.statistics import RESAMPLES, corpus_intervals
from pipelines.tasks.evaluation import EvaluationRequest, Predictions, TaskEvaluation, cut_sentence
from pipelines.tasks.extractive_qa.task import SHORTEST, QuestionTask, Retrieval, question_room
from pipelines.tasks.predictions import ALL, Intervals, Members, SplitPredictions, constant_answer
from pipelines.tasks.scored_examples import Columns, ScoredExamples

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers.utils import ModelOutput

    from pipelines.tasks.base import LabelledTask

NO_ANSWER = "(no answer)"
"""What is read for an answer that is none."""
SHOWN = 6
"""Answers that people are shown."""


@dataclass(frozen=True)
class Span:
    """A part of a context that may be the answer."""

    text: str
    start_logit: float
    end_logit: float
    window: int
    """Which window of its row, from 0."""
    start_token: int
    end_token: int
    """Places of the first and last token in the window."""
    answer_start: int
    """Characters of the context before it."""

    @property
    def score(self) -> float:
        """What spans compete by."""
        return self.start_logit + self.end_logit


@dataclass(frozen=True)
class Window:
    """What the model said about one window of a context."""

    logits: NDArray[np.float32]
    """(2, tokens): of being the first and the last token of the answer."""
    context: NDArray[np.int32]
    """(tokens of the context, 3): place in the window, first character, character behind the last."""
    blank: int
    """The place that stands for "no answer here"."""


@dataclass(frozen=True)
class SpanAnswer:
    """What a row's windows come to."""

    best: Sequence[Span]
    """The best spans, each with a text of its own, the best first; empty where no window offers one."""
    null_score: float
    """The score of "no answer"."""

    @property
    def answer(self) -> str:
        """The best text; empty where there is none."""
        return self.best[0].text if self.best else ""

    @property
    def difference(self) -> float:
        """How much better "no answer" scores than the best span: the official `score_diff`."""
        return self.null_score - (self.best[0].score if self.best else 0.0)


def best_spans(windows: Sequence[Window], text: str, settings: SpanSettings) -> SpanAnswer:
    """The best answers that the windows of one context offer."""
    widest = _widest_context(windows)
    offered = [
        _offered(window, settings, owner == number)
        for number, (window, owner) in enumerate(zip(windows, widest, strict=True))
    ]
    number = np.concatenate([np.full(len(scores), at) for at, (_, _, scores) in enumerate(offered)])
    starts, ends, scores = (np.concatenate([each[part] for each in offered]) for part in range(3))
    best: list[Span] = []
    seen: set[str] = set()
    for place in np.argsort(-scores, kind="stable"):
        span = _span(int(number[place]), int(starts[place]), int(ends[place]), windows, text)
        if span.text and span.text not in seen:
            seen.add(span.text)
            best.append(span)
            if len(best) == settings.n_best_size:
                break
    null = min(float(window.logits[0, window.blank]) + float(window.logits[1, window.blank]) for window in windows)
    return SpanAnswer(best, null)


def _offered(
    window: Window, settings: SpanSettings, own: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """(first tokens, last tokens, scores) of the spans that a window offers, as numbers of the context's tokens.

    `own` are the context's tokens that have the most context in this window.
    """
    rank = np.full(window.logits.shape[1], -1)
    rank[window.context[:, 0]] = np.arange(len(window.context))
    first, last = (rank[np.argsort(-logits, kind="stable")[: settings.n_best_size]] for logits in window.logits)
    first, last = first[first >= 0], last[last >= 0]
    first = first[own[first]]
    start, end = (grid.ravel() for grid in np.meshgrid(first, last, indexing="ij"))
    # a context's tokens stand side by side, so numbers are as far apart as places
    fits = (end >= start) & (end - start < settings.max_answer_length)
    start, end = start[fits], end[fits]
    places, logits = window.context[:, 0], window.logits.astype(np.float64)
    return start, end, logits[0, places[start]] + logits[1, places[end]]


def _widest_context(windows: Sequence[Window]) -> list[NDArray[np.int64]]:
    """For each window the number of the window in which each of its context's tokens has the most context around it.

    That is min(tokens before it, tokens behind it) + length / 100, as `_check_is_max_context` of `run_squad.py` has
    it. A token is known by its characters; of tokens with the same characters the first counts.
    """
    keys = [window.context[:, 1].astype(np.int64) << 32 | window.context[:, 2] for window in windows]
    if len(windows) == 1:
        return [np.zeros(len(keys[0]), dtype=np.int64)]
    token = np.unique(np.concatenate(keys), return_inverse=True)[1]
    owner = np.zeros(token.max(initial=0) + 1, dtype=np.int64)
    best = np.full(len(owner), -np.inf)
    parts = np.split(token, np.cumsum([len(key) for key in keys])[:-1])
    for number, part in enumerate(parts):
        before = np.arange(len(part))
        scores = np.minimum(before, before[::-1]) + 0.01 * len(part)
        better = scores > best[part]
        owner[part[better]] = number
        best[part[better]] = scores[better]
    return [owner[part] for part in parts]


def _span(number: int, first: int, last: int, windows: Sequence[Window], text: str) -> Span:
    window = windows[number]
    start_token, begin, _ = (int(value) for value in window.context[first])
    end_token, _, end = (int(value) for value in window.context[last])
    cut = text[begin:end]
    begin += len(cut) - len(cut.lstrip())  # some tokens take the space before their word
    return Span(
        cut.strip(),
        float(window.logits[0, start_token]),
        float(window.logits[1, end_token]),
        number,
        start_token,
        end_token,
        begin,
    )


def grouped(rows: NDArray[np.int64], windows: Sequence[object]) -> list[list[Any]]:
    """The windows of each row, in order. `rows` (windows,) is the row of each."""
    of_rows: list[list[Any]] = [[] for _ in range(int(rows.max(initial=-1)) + 1)]
    for row, window in zip(rows, windows, strict=True):
        of_rows[row].append(window)
    return of_rows


@dataclass(frozen=True)
class SpanPredictions(SplitPredictions):
    """Answers to questions. `rows` are QuestionRows."""

    spans: Sequence[SpanAnswer]
    """What the windows of each question offer."""
    questions: Sequence[str]
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
        return np.array([each.difference for each in self.spans])

    @property
    def best(self) -> NDArray[Any]:
        """The best text of each question, whatever "no answer" scores."""
        return np.array([each.answer for each in self.spans], dtype=object)

    @property
    def answers(self) -> NDArray[Any]:
        """The texts, empty for "no answer"."""
        return at_threshold(self.best, self.differences, self.threshold) if self.may_be_none else self.best

    def intervals(
        self, task: Task, score: Score, seed: int, members: Members | None = None, resamples: int = RESAMPLES
    ) -> Intervals:
        assert self.labels is not None
        members = ALL if members is None else members
        return corpus_intervals(task.metrics, self.answers[members], self.labels[members], seed, resamples)

    def scored_examples(self, task: Task) -> ScoredExamples:
        labels, texts = self.labels, self.answers
        assert labels is not None
        counts = np.asarray(counted_metric(task.metrics[0]).counts(texts, labels), dtype=np.float64)
        confidence = np.array([self._probability(spans, text) for spans, text in zip(self.spans, texts, strict=True)])
        # an answer that shares no word is worse than one that is a word too long
        return ScoredExamples(
            [" / ".join(dict.fromkeys(each)) or NO_ANSWER for each in labels],
            [text or NO_ANSWER for text in texts],
            counts[:, 0] == 0,
            (1 - counts[:, 1]) + confidence / 100,
            "words that answer and truth do not share, then confidence",
            confidence,
        )

    def _probability(self, spans: SpanAnswer, text: str) -> float:
        """Of the text among the best spans, as the official n-best files have it, and "no answer"."""
        with_none = self.may_be_none or not spans.best
        scores = [span.score for span in spans.best] + ([spans.null_score] if with_none else [])
        names = [span.text for span in spans.best] + ([""] if with_none else [])
        if text not in names:
            return 0.0
        return float(softmax(np.array([scores]))[0, names.index(text)])

    def columns(self, task: Task) -> Columns:
        texts = [str(text) for text in self.answers]
        probabilities: list[float | None] = []
        starts: list[int | None] = []
        for text, spans in zip(texts, self.spans, strict=True):
            scores = [span.score for span in spans.best] + ([spans.null_score] if self.may_be_none else [])
            place = 0 if text else len(scores) - 1
            probabilities.append(
                float(softmax(np.array(scores))[place]) if scores and (text or self.may_be_none) else None
            )
            starts.append(spans.best[0].answer_start if text and spans.best else None)
        return self.inputs() | {
            "id": list(self.ids),
            "prediction": texts,
            "probability": probabilities,
            "answer_start": starts,
        }

    def shown(self, task: Task, place: int = 0) -> tuple[Part, ...]:
        text, spans, context = str(self.answers[place]), self.spans[place], str((self.rows.pairs or ("",))[place])
        best = list(spans.best)
        scores = [span.score for span in best] + ([spans.null_score] if self.may_be_none or not best else [])
        shares = softmax(np.array(scores)).tolist()
        at = spans.best[0].answer_start if text else 0
        cut = (context[:at], context[at : at + len(text)], context[at + len(text) :])
        pieces = [
            Piece(text=part, mark="answer" if number == 1 else "", share=shares[0] if number == 1 else None)
            for number, part in enumerate(cut)
            if part
        ]
        names = [span.text for span in best] + ([NO_ANSWER] if len(scores) > len(best) else [])
        likely = sorted(range(len(names)), key=lambda each: -shares[each])[:SHOWN]
        chosen, none = 0 if text else len(names) - 1, len(names) - 1
        for needed in (chosen, none) if len(names) > len(best) else (chosen,):
            likely = likely if needed in likely else [*likely[:-1], needed]
        listed = bars(
            [names[each][:200] for each in likely],
            [shares[each] for each in likely],
            "The likeliest answers",
            chosen=likely.index(chosen),
        )
        return (Marked(title="Answer in the text" if text else "No answer in the text", pieces=tuple(pieces)), listed)

    def doubt(self, task: Task) -> str | None:
        return constant_answer(self.benchmark, self.split, self.answers) if self.labels_differ else None

    def facts(self) -> dict[str, Any]:
        """What the official script prints beside the scores of questions that may have no answer."""
        if not self.may_be_none or self.labels is None:
            return {}
        return by_answerability(self.answers, self.labels) | best_threshold(self.best, self.differences, self.labels)

    def table(self) -> pa.Table:
        import pyarrow as pa

        tops = [each.best[0] if each.best else None for each in self.spans]
        logits = [[] if top is None else [top.start_logit, top.end_logit] for top in tops]
        answers = None if self.labels is None else [list(texts) for texts in self.labels]
        columns = {
            **self.key_columns(),
            "id": pa.array(list(self.ids), pa.string()),
            "text": pa.array(list(self.questions), pa.string()),
            "text_pair": pa.array(list(self.rows.pairs or ()), pa.string()),
            "answers": pa.nulls(len(self.rows), pa.list_(pa.string()))
            if answers is None
            else pa.array(answers, pa.list_(pa.string())),
            "answer": pa.array(list(self.answers), pa.string()),
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
        write_json(folder / f"{name}.predictions.json", dict(zip(self.ids, self.answers, strict=True)))
        if self.may_be_none:
            odds: Mapping[str, float] = dict(zip(self.ids, self.differences.tolist(), strict=True))
            write_json(folder / f"{name}.null_odds.json", odds)


class ExtractiveQAEvaluation(TaskEvaluation):
    """The best span of all windows of each context, or "no answer" where a task allows for that."""

    def ask(self, request: EvaluationRequest) -> Predictions:
        from functools import partial

        from pipelines.core.errors import ModelError
        from pipelines.core.model_types import looks_back_only
        from pipelines.models.predict import forward
        from pipelines.tasks.extractive_qa.task import stride_of
        from pipelines.tasks.extractive_qa.training import collate_questions, encode_questions, questions_in

        settings, length, name = request.stage.spans, request.length(), request.choice.name
        if length < SHORTEST:
            raise ModelError(
                f"the model '{request.choice.model}' reads {length} tokens at once, too few for a question "
                "and its context"
            )
        stride = stride_of(
            length,
            request.choice.trained_stride(request.context.recipe)
            if settings.doc_stride is None
            else settings.doc_stride,
        )
        config = request.model.config
        back = looks_back_only({"model_type": config.model_type, **config.to_dict()})
        task: Any = request.task

        def find(rows: Any, split: str) -> list[Any]:
            """The best spans of each question."""
            windows = encode_questions(request.tokenizer, rows, length, stride, last_blank=back, keep_contexts=True)
            logits = forward(
                request.model,
                windows,
                partial(collate_questions, request.tokenizer),
                _both_ends,
                **request.running(split),
            )
            parts = zip(logits, windows.contexts or (), windows.blanks.tolist(), strict=True)
            by_row = grouped(windows.rows, [Window(*part) for part in parts])
            return [best_spans(each, text, settings) for each, text in zip(by_row, rows.pairs, strict=True)]

        threshold, chosen = settings.null_score_diff_threshold, {}
        if threshold is None:
            aside = set_aside(request) if task.version_2 else None
            threshold = 0.0 if aside is None else best_of(find(aside, "train, set aside"), aside)
            chosen = {} if aside is None else {"threshold_chosen_on": {"split": "train", "set_aside": len(aside)}}
        predicted = []
        scores: dict[str, tuple[float, tuple[float, float]]] = {}
        given: dict[str, float] = {}
        for suffix, split, split_rows in request.splits():
            rows: Any = split_rows
            spans = find(rows, split)
            questions = questions_in(request.tokenizer, rows.texts, length)
            answered = SpanPredictions(name, split, suffix, rows, spans, questions, task.version_2, threshold)
            if request.stage.retrieval is not None:
                if answered.labels is not None:
                    reached = self.score(task)(answered.answers, answered.labels)
                    given |= {f"{metric}{suffix}": value for metric, value in reached.items()}
                rows, spans, recalls = retrieved(request, request.stage.retrieval, rows, split, length, find)
                scores |= {f"{metric}{suffix}": value for metric, value in recalls.items()}
                answered = SpanPredictions(name, split, suffix, rows, spans, questions, task.version_2, threshold)
            predicted.append(answered)
        details = {
            "spans": settings.model_dump() | {"doc_stride": stride, "null_score_diff_threshold": threshold} | chosen
        } | _facts(predicted)
        if request.stage.retrieval is not None:
            details["retrieval"] = request.stage.retrieval.model_dump(mode="json", by_alias=True)
        return Predictions(
            predicted, length, scores=scores, baselines={"given passages": given} if given else {}, details=details
        )

    def score(self, task: Task) -> Score:
        from pipelines.tasks.scoring import score_texts

        return score_texts(task)

    def form(self, task: LabelledTask) -> tuple[FormField, ...]:
        question, context = task.columns
        return (field_of(question, control="line"), field_of(context, "The answer is a part of this text."))

    def examples(self, task: LabelledTask) -> Sequence[Sequence[str]]:
        letters = (
            "Ada Lovelace was born in London in 1815. Her notes on the Analytical Engine, published in 1843, hold what "
            "many call the first computer program. Charles Babbage had designed the engine, which was never finished."
        )
        return [("When were the notes published?", letters), ("Who designed the engine?", letters)]

    def without_gold(self, task: LabelledTask) -> LabelledTask:
        assert isinstance(task, QuestionTask)
        return replace(task, id_column=None)

    def unread(self, tokenizer: Any, rows: Rows, length: int) -> str | None:
        # windows reach to the end of every context, but begin with the question, cut to leave room for it
        texts = [question.strip() for question in rows.texts]
        counts = map(len, tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])
        return cut_sentence([*counts], question_room(length), "question")


def retrieved(
    request: EvaluationRequest,
    settings: Retrieval,
    rows: Any,
    split: str,
    length: int,
    find: Callable[[Any, str], list[SpanAnswer]],
) -> tuple[Any, list[SpanAnswer], dict[str, tuple[float, tuple[float, float]]]]:
    """The rows with the passage that each answer is from, the best spans of all passages that were read, and recall.

    `find(rows, split)` reads one passage a row. Raises DataError without passages.
    """
    from scipy.stats import binomtest

    from pipelines.core.errors import DataError
    from pipelines.tasks.extractive_qa import retrieval

    gold = settings.passages is None
    passages = retrieval.distinct(rows.pairs if settings.passages is None else settings.passages.rows())
    if not passages:
        raise DataError("retrieval.passages holds no text; name a file with a passage in each row")
    depth = min(max(settings.k, *settings.recall_at), len(passages))
    if settings.name == "bm25":
        ranked = retrieval.bm25(rows.texts, passages, settings, depth)
    else:
        model, tokenizer = request.model, request.tokenizer
        if settings.source is not None:
            model = request.context.open_model(request.task.head, stage_id=settings.source)
            tokenizer = request.context.open_tokenizer(settings.source)
        asked, offered = (
            retrieval.embeddings(model, tokenizer, texts, length, **request.running(split))
            for texts in (list(rows.texts), passages)
        )
        ranked = retrieval.cosine(asked, offered, depth)
    read = [(row, int(place)) for row, places in enumerate(ranked) for place in places[: settings.k]]
    many = replace(
        rows,
        texts=[rows.texts[row] for row, _ in read],
        pairs=[passages[place] for _, place in read],
        labels=None,
        index=[rows.index[row] for row, _ in read],
        starts=None,
        ids=[f"{rows.ids[row]}/{place}" for row, place in read],
    )
    offers: list[list[tuple[SpanAnswer, str]]] = [[] for _ in range(len(rows))]
    for (row, place), each in zip(read, find(many, split), strict=True):
        offers[row].append((each, passages[place]))
    best = [_best_of_passages(each, request.stage.spans.n_best_size) for each in offers]
    right = list(retrieval.found_at(ranked, passages, rows, gold))
    recalls = {}
    for metric, value in retrieval.recall(right, settings.recall_at).items():
        interval = binomtest(round(value * len(right)), len(right)).proportion_ci(method="wilson")
        recalls[metric] = (value, (float(interval.low), float(interval.high)))
    return replace(rows, pairs=[passage for _, passage in best]), [answer for answer, _ in best], recalls


def _best_of_passages(offers: Sequence[tuple[SpanAnswer, str]], most: int) -> tuple[SpanAnswer, str]:
    """The best spans of several passages, each text once, and the passage of the first."""
    spans = sorted(
        ((span, passage) for answer, passage in offers for span in answer.best), key=lambda each: -each[0].score
    )
    by_text: dict[str, Span] = {}
    for span, _ in spans:
        by_text.setdefault(span.text, span)
    null = min(answer.null_score for answer, _ in offers)
    return SpanAnswer(list(by_text.values())[:most], null), spans[0][1] if spans else offers[0][1]


def set_aside(request: EvaluationRequest) -> Any:
    """The training rows that the model was not trained on; None where there are none, or all of them have an answer."""
    from pipelines.tasks.base import drawn

    recipe, subject = request.context.recipe, request.choice.subject
    stage: Any = next((each for each in recipe.stages if each.id == request.choice.model), None)
    strategy = getattr(getattr(stage, "arguments", None), "eval_strategy", "no")
    if subject is None or strategy == "no" or subject.task != request.choice.task:
        return None
    if "train" not in getattr(request.task, "splits", ()):  # the rows of a user's own file
        return None
    rows: Any = request.task.rows("train", subject.max_train_samples)
    if len(rows) < 2 or all(rows.labels):
        return None
    places = drawn(len(rows), recipe.seed_of(stage))[1][: subject.max_eval_samples].tolist()
    part = {
        name: [getattr(rows, name)[at] for at in places]
        for name in ("texts", "pairs", "labels", "index", "starts", "ids")
    }
    return None if all(part["labels"]) else replace(rows, **part)


def best_of(spans: list[Any], rows: Any) -> float:
    """The threshold that gives the best F1 on these rows: nothing is answered above it."""
    differences = [each.difference for each in spans]
    best = best_threshold([each.answer for each in spans], differences, rows.labels)
    unanswered = sum(not each for each in rows.labels)
    if best["best_f1"] <= 100.0 * unanswered / len(rows):  # answering none is as good as anything
        return float(min(differences)) - 1.0
    return float(best["best_f1_thresh"])


def _facts(predicted: list[Any]) -> dict[str, Any]:
    """Official figures beside the scores, where there are some."""
    facts = {f"{key}{each.suffix}": value for each in predicted for key, value in each.facts().items()}
    return {"official": facts} if facts else {}


def _both_ends(outputs: ModelOutput, inputs: Any) -> list[Any]:
    """For each window (2, tokens) without padding. Raises ModelError for a model without both, or whose training
    diverged."""
    import torch

    from pipelines.core.errors import ModelError

    if outputs.get("start_logits") is None or outputs.get("end_logits") is None:
        raise ModelError(
            "the model gives no start and end of an answer; evaluate a model with a question answering head"
        )
    both = torch.stack([outputs.start_logits, outputs.end_logits], dim=1).float().cpu().numpy()
    real = inputs["attention_mask"].numpy().astype(bool)
    windows = [logits[:, mask] for logits, mask in zip(both, real, strict=True)]
    if not all(bool(torch.isfinite(torch.from_numpy(logits)).all()) for logits in windows):
        raise ModelError(
            "the model gives NaN or infinity for a window: its training diverged, so lower its learning rate"
        )
    return windows

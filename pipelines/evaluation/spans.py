"""From the logits of windows to an answer: the n best spans of all windows of a context.

The algorithm is that of BERT's `run_squad.py` (Devlin et al. 2019, section 4.2 and 4.3, arxiv.org/abs/1810.04805): the best
first and last tokens of each window are combined; a span lies in the context, is no longer than `max_answer_length` tokens,
and begins in the window where its first token has the most context around it; spans of all windows compete by the sum of
their two logits, and of spans with the same text the best counts. "No answer" has the least sum at the blanks of all windows.
Answers are cut out of the context by their characters, so nothing is put together from tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.span_settings import SpanSettings


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
class Found:
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


def best_spans(windows: Sequence[Window], text: str, settings: SpanSettings) -> Found:
    """The best answers that the windows of one context offer."""
    widest = _widest_context(windows)
    offered = [_offered(window, settings, owner == number) for number, (window, owner) in enumerate(zip(windows, widest, strict=True))]
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
    return Found(best, null)


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

    That is min(tokens before it, tokens behind it) + length / 100, as `_check_is_max_context` of `run_squad.py` has it. A
    token is known by its characters; of tokens with the same characters the first counts.
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
    said = text[begin:end]
    begin += len(said) - len(said.lstrip())  # some tokens take the space before their word
    return Span(
        said.strip(), float(window.logits[0, start_token]), float(window.logits[1, end_token]), number, start_token, end_token, begin
    )


def grouped(rows: NDArray[np.int64], windows: Sequence[Any]) -> list[list[Any]]:
    """The windows of each row, in order. `rows` (windows,) is the row of each."""
    found: list[list[Any]] = [[] for _ in range(int(rows.max(initial=-1)) + 1)]
    for row, window in zip(rows, windows, strict=True):
        found[row].append(window)
    return found

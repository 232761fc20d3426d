"""Answers are chosen from the logits of windows as BERT's `run_squad.py` chooses them."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.core.decoding import SpanSettings
from pipelines.core.presentation import Bars, Marked
from pipelines.tasks.extractive_qa.evaluation import (
    NO_ANSWER,
    Span,
    SpanAnswer,
    SpanPredictions,
    Window,
    best_spans,
    grouped,
)
from pipelines.tasks.extractive_qa.task import QuestionRows

TEXT = " ".join(f"w{number}" for number in range(30))
OFFSETS = [
    (at, at + len(word))
    for word in TEXT.split()
    for at in [TEXT.index(word + " ") if word + " " in TEXT else len(TEXT) - len(word)]
]


def windows(generator: np.random.Generator, size: int = 12, step: int = 7) -> list[Window]:
    """Windows of three tokens of a question and `size` of the context, each `step` further on; logits as they come."""
    found = []
    for start in range(0, 30, step):
        tokens = range(start, min(start + size, 30))
        context = np.array([[3 + place, *OFFSETS[token]] for place, token in enumerate(tokens)], dtype=np.int32)
        found.append(Window(generator.normal(size=(2, len(tokens) + 4)).round(1).astype(np.float32), context, 0))
        if start + size >= 30:
            break
    return found


def official(parts: list[Window], n_best_size: int, max_answer_length: int) -> tuple[list[tuple[str, float]], float]:
    """`write_predictions` of run_squad.py: loops over windows, best starts and best ends, then the n best with texts of their own."""
    spans = [{int(place): (int(begin), int(end)) for place, begin, end in part.context} for part in parts]

    def best(logits: np.ndarray) -> list[int]:
        return [at for at, _ in sorted(enumerate(logits.tolist()), key=lambda pair: pair[1], reverse=True)][
            :n_best_size
        ]

    def has_max_context(number: int, place: int) -> bool:
        scores = []
        for other in spans:
            places = list(other)
            if spans[number][place] in other.values():
                at = places.index(next(key for key, value in other.items() if value == spans[number][place]))
                scores.append(min(at, len(places) - 1 - at) + 0.01 * len(places))
            else:
                scores.append(-1.0)
        return scores.index(max(scores)) == number

    preliminary, null = [], float("inf")
    for number, part in enumerate(parts):
        null = min(null, float(part.logits[0][part.blank]) + float(part.logits[1][part.blank]))
        for start in best(part.logits[0]):
            for end in best(part.logits[1]):
                if start not in spans[number] or end not in spans[number] or not has_max_context(number, start):
                    continue
                if end < start or end - start + 1 > max_answer_length:
                    continue
                score = float(part.logits[0][start]) + float(part.logits[1][end])
                preliminary.append((score, TEXT[spans[number][start][0] : spans[number][end][1]]))
    preliminary.sort(key=lambda each: each[0], reverse=True)
    found: list[tuple[str, float]] = []
    for score, text in preliminary:
        if len(found) < n_best_size and text not in [known for known, _ in found]:
            found.append((text, score))
    return found, null


@pytest.mark.parametrize("seed", range(40))
def test_the_n_best_are_those_of_run_squad(seed):
    generator = np.random.default_rng(seed)
    parts = windows(generator, size=int(generator.integers(5, 31)), step=int(generator.integers(2, 6)))
    n_best, longest = int(generator.integers(1, 9)), int(generator.integers(1, 9))
    found = best_spans(parts, TEXT, SpanSettings(n_best_size=n_best, max_answer_length=longest))
    expected, null = official(parts, n_best, longest)
    assert [(span.text, pytest.approx(span.score, abs=1e-6)) for span in found.best] == expected
    assert found.null_score == pytest.approx(null, abs=1e-6)
    assert found.difference == pytest.approx(null - (expected[0][1] if expected else 0.0), abs=1e-6)


def test_a_span_begins_where_its_first_token_has_the_most_context():
    # the best start of all is the last token of the first window, which has no context behind it there
    logits = np.zeros((2, 2, 8), dtype=np.float32)
    logits[0, 0, 7], logits[0, 1, 7] = 9.0, 9.0
    context = [
        np.array([[3 + place, *OFFSETS[first + place]] for place in range(5)], dtype=np.int32) for first in (0, 2)
    ]
    found = best_spans([Window(logits[0], context[0], 0), Window(logits[1], context[1], 0)], TEXT, SpanSettings())
    assert max(span.score for span in found.best) == 9.0  # only as an end: w4 starts in the second window
    assert all(span.window == 1 for span in found.best if span.text.startswith("w4"))


def test_a_token_that_takes_the_space_before_it_gives_no_space_to_the_answer():
    context = np.array([[1, 0, 2], [2, 2, 5]], dtype=np.int32)  # "w0", " w1"
    logits = np.array([[0, 0, 5], [0, 0, 5]], dtype=np.float32)
    span = best_spans([Window(logits, context, 0)], TEXT, SpanSettings()).best[0]
    assert (span.text, span.answer_start) == ("w1", 3)


def test_a_window_without_a_fitting_span_offers_none():
    context = np.array([[3, 0, 2]], dtype=np.int32)
    logits = np.array([[5, 4, 0, 0], [5, 4, 0, 0]], dtype=np.float32)
    found = best_spans([Window(logits, context, 0)], TEXT, SpanSettings(n_best_size=2))
    assert (found.answer, list(found.best), found.difference) == ("", [], 10.0)


def test_windows_come_back_by_row():
    assert grouped(np.array([0, 0, 1, 2, 2]), list("abcde")) == [["a", "b"], ["c"], ["d", "e"]]


def test_an_answer_is_shown_in_its_text_and_beside_it_no_answer():
    text = "He left in May, and in June."
    found = [
        Span(part, 4.0 - place, 0.0, 0, 0, 0, text.index(part)) for place, part in enumerate(("May", "in May", "June"))
    ]
    rows = QuestionRows(["When?"], [text], None, [0], ids=["1"])
    many = [*found, *(Span(f"x{place}", 0.5, 0.0, 0, 0, 0, 0) for place in range(9))]

    def shown(null_score, may_be_none=True):
        spans = [SpanAnswer(many, null_score)]
        return SpanPredictions("x", "test", "", rows, spans, ["When?"], may_be_none, 0.0).shown(None)

    marked, listed = shown(-3.0)
    assert isinstance(marked, Marked)
    assert [(piece.text, piece.mark) for piece in marked.pieces] == [
        ("He left in ", ""), ("May", "answer"), (", and in June.", "")
    ]  # fmt: skip
    assert isinstance(listed, Bars)
    assert [bar.label for bar in listed.bars if bar.chosen] == ["May"]
    powers = np.exp([4.0, 3.0, 2.0, *[0.5] * 9, -3.0])
    assert {bar.label: bar.share for bar in listed.bars}[NO_ANSWER] == pytest.approx(powers[-1] / powers.sum())
    marked, listed = shown(9.0)
    assert [piece.mark for piece in marked.pieces] == [""]
    assert [bar.label for bar in listed.bars if bar.chosen] == [NO_ANSWER]
    assert NO_ANSWER not in [bar.label for bar in shown(9.0, may_be_none=False)[1].bars]

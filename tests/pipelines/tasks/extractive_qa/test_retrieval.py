"""Passages are ranked as the papers' formulas rank them, and the right ones are counted once a question."""

from __future__ import annotations

import math
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.errors import DataError
from pipelines.tasks.extractive_qa.evaluation import Span, SpanAnswer, _best_of_passages
from pipelines.tasks.extractive_qa.retrieval import bm25, cosine, found_at, holds_answer, recall
from pipelines.tasks.extractive_qa.task import Retrieval

PASSAGES = ["The Normans came to Normandy", "Computers compute numbers", "Normandy is in France, France!", "a a a a"]


def slowly(question: str, passages: list[str], k1: float, b: float) -> list[float]:
    """Robertson and Zaragoza 2009, word by word."""
    split = [re.findall(r"\w+", each.lower()) for each in passages]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for words in split:
        counts, score = Counter(words), 0.0
        for word in re.findall(r"\w+", question.lower()):
            having = sum(word in other for other in split)
            idf = math.log(1 + (len(split) - having + 0.5) / (having + 0.5))
            held_back = k1 * (1 - b + b * len(words) / mean)
            score += counts[word] and idf * counts[word] * (k1 + 1) / (counts[word] + held_back)
        scores.append(score)
    return scores


WORDS = st.lists(st.sampled_from(["France", "normans", "in", "computers", "a", "unseen"]), min_size=1, max_size=6)


@given(st.lists(WORDS, min_size=1, max_size=4), st.floats(0, 3), st.floats(0, 1))
def test_passages_are_ranked_by_the_formula(questions: list[list[str]], k1: float, b: float):
    asked = [" ".join(words) for words in questions]
    ranked = bm25(asked, PASSAGES, Retrieval(k1=k1, b=b), len(PASSAGES))
    for question, places in zip(asked, ranked.tolist(), strict=True):
        scores = slowly(question, PASSAGES, k1, b)
        assert sorted(places) == [0, 1, 2, 3]
        assert [scores[at] for at in places] == pytest.approx(sorted(scores, reverse=True), abs=1e-9)


def test_passages_without_a_word_are_refused():
    with pytest.raises(DataError, match="no word"):
        bm25(["what"], ["...", "!"], Retrieval(), 1)


def test_embeddings_are_ranked_by_their_angle():
    passages = np.array([[10, 0], [0, 0.1], [1, 1], [0, 0]], dtype=np.float32)
    assert cosine(np.array([[0, 5]], dtype=np.float32), passages, 3).tolist() == [[1, 2, 0]]


def test_the_right_passage_is_the_own_context_or_one_that_holds_an_answer():
    rows = SimpleNamespace(pairs=[PASSAGES[2], PASSAGES[1]], labels=[("France",), ()], __len__=lambda: 2)
    ranked = np.array([[0, 2], [0, 3]])
    assert list(found_at(ranked, PASSAGES, rows, gold=True)) == [1, None]
    assert list(found_at(ranked, PASSAGES, rows, gold=False)) == [1]  # a question without an answer has none to find
    assert recall([1, None, 0], (1, 2)) == {"recall@1": pytest.approx(1 / 3), "recall@2": pytest.approx(2 / 3)}
    assert holds_answer("In the Norman  era", ["the norman era"])
    assert not holds_answer("Normandy", ["Norman", ""])


def span(text: str, score: float) -> Span:
    return Span(text, score, 0.0, 0, 1, 1, 0)


def test_the_best_answer_of_all_passages_counts():
    one = SpanAnswer([span("Rome", 3.0), span("Paris", 1.0)], null_score=0.5)
    other = SpanAnswer([span("Paris", 4.0), span("Nice", 2.0)], null_score=-1.0)
    answer, passage = _best_of_passages([(one, "first"), (other, "second")], most=3)
    assert [each.text for each in answer.best] == ["Paris", "Rome", "Nice"]
    assert (answer.null_score, passage) == (-1.0, "second")
    nothing = SpanAnswer([], null_score=1.0)
    assert _best_of_passages([(nothing, "first")], most=3) == (SpanAnswer([], 1.0), "first")

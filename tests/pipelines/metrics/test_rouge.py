"""ROUGE-1, ROUGE-2 and ROUGE-L, by hand and on the examples of their paper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.text_similarity import longest_common, words
from pipelines.metrics.rouge import Rouge1, Rouge2, Rougel


def by_table(one, other):
    """The longest common subsequence as textbooks have it."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for row, first in enumerate(one, start=1):
        for column, second in enumerate(other, start=1):
            table[row][column] = (
                table[row - 1][column - 1] + 1
                if first == second
                else max(table[row - 1][column], table[row][column - 1])
            )
    return table[-1][-1]


@given(st.text("abcd", max_size=90), st.text("abcd", max_size=90))
def test_the_longest_common_subsequence_is_that_of_the_textbook(one, other):
    assert longest_common(list(one), list(other)) == by_table(one, other)


def test_words_are_those_of_rouge_score():
    assert words("The cat's 2nd café—OK_now!") == ["the", "cat", "s", "2nd", "caf", "ok", "now"]
    assert words("猫 …") == []


# Lin 2004, section 3.1: S1 is the reference, S2 and S3 are candidates.
REFERENCE, SECOND, THIRD = "police killed the gunman", "police kill the gunman", "the gunman kill police"


def test_rouge_l_prefers_the_candidate_of_lins_example():
    assert Rougel().compute([SECOND], [REFERENCE])["rougeL"] == pytest.approx(75.0)  # 3 of 4 words in order
    assert Rougel().compute([THIRD], [REFERENCE])["rougeL"] == pytest.approx(50.0)  # "the gunman"


def test_rouge_2_cannot_tell_them_apart():
    # one shared pair ("the gunman") of three each
    assert Rouge2().compute([SECOND], [REFERENCE])["rouge2"] == pytest.approx(100 / 3)
    assert Rouge2().compute([THIRD], [REFERENCE])["rouge2"] == pytest.approx(100 / 3)


def test_a_word_counts_as_often_as_both_texts_have_it():
    # "the the the" against "the cat": 1 of 3 and 1 of 2, F1 = 2·1 / 5
    assert Rouge1().compute(["the the the"], ["the cat"])["rouge1"] == pytest.approx(40.0)


def test_a_corpus_scores_the_mean_of_its_examples():
    # 100 and 0; and a text without words shares nothing
    assert Rouge1().compute(["a cat", "a cat"], ["a cat", "dogs bark"])["rouge1"] == pytest.approx(50.0)
    assert Rouge1().compute(["", "?!"], ["a cat", "…"])["rouge1"] == 0.0


def test_case_and_punctuation_make_no_difference():
    assert Rougel().compute(["POLICE, killed -- the gunman."], [REFERENCE])["rougeL"] == pytest.approx(100.0)


def test_the_score_says_how_it_was_computed():
    assert Rouge1().signature() == "rouge1|tokens:rouge_score|stemming:no|F1"


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (Rouge1(), 100.0),
        (Rouge2(), 60.0),
        (Rougel(), 250 / 3),
    ],  # all words; 3 of 5 pairs; "a cat on a mat" of six words
)
def test_a_moved_word_by_hand(metric, expected):
    scores = metric.compute(["a cat sat on a mat"], ["a cat on a mat sat"])
    assert scores == {metric.name: pytest.approx(expected)}

"""The similarities are those of the libraries that define them."""

import difflib
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.text_similarity import Similarity, longest_common, signs_and_words, similarity

SENTENCES = st.lists(
    st.sampled_from(["the", "a", "cat", "cats", "sat", "on", "mat", ".", ",", "big", "Small"]), max_size=14
).map(" ".join)


@settings(max_examples=40)
@given(SENTENCES, SENTENCES)
def test_rouge_is_that_of_rouge_score(text, reference):
    from rouge_score.rouge_scorer import RougeScorer

    names = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_3": "rouge3", "rouge_5": "rouge5", "rouge_l": "rougeL"}
    scorer = RougeScorer([*names.values()])
    expected = scorer.score(reference, text)
    for ours, theirs in names.items():
        assert similarity(ours, text, reference) == pytest.approx(expected[theirs].fmeasure)


@settings(max_examples=20)
@given(SENTENCES, SENTENCES)
def test_gleu_and_bleu_are_those_of_nltk_and_sacrebleu(text, reference):
    import sacrebleu
    from nltk.translate.gleu_score import sentence_gleu

    expected = sentence_gleu([signs_and_words(reference)], signs_and_words(text)) if text and reference else 0.0
    assert similarity("gleu", text, reference) == pytest.approx(expected)
    assert similarity("bleu", text, reference) == pytest.approx(sacrebleu.sentence_bleu(text, [reference]).score / 100)


def test_meteor_is_the_arithmetic_of_its_paper():
    """All four words match, in two chunks; the penalty is 0.5 (chunks / matches)^3. Banerjee and Lavie 2005, section
    2.2."""
    assert similarity("meteor", "on mat cat sat", "cat sat on mat") == pytest.approx(1 - 0.5 * (2 / 4) ** 3)
    assert similarity("meteor", "the cats", "the cat") == pytest.approx(1 - 0.5 * (1 / 2) ** 3), "stems match"
    assert similarity("meteor", "dog", "cat") == 0


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_the_longest_common_subsequence_is_that_of_the_plain_recursion(one, other):
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, x in enumerate(one):
        for j, y in enumerate(other):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    assert longest_common(one, other) == table[-1][-1]
    whole = len(one) + len(other)
    assert similarity("fuzzy_match", one, other) == pytest.approx(2 * table[-1][-1] / whole if whole else 1.0)
    assert similarity("fuzzy_match", one, other) >= difflib.SequenceMatcher(None, one, other).ratio() - 1e-9


@pytest.mark.parametrize("metric", get_args(Similarity))
def test_each_lies_between_nothing_in_common_and_the_same(metric):
    text = "the quick brown fox jumps over the lazy dog"
    assert similarity(metric, text, text) == pytest.approx(1.0, abs=0.001)
    assert similarity(metric, "", text) == 0
    assert 0 < similarity(metric, "the quick brown fox jumps over a cat", text) < 1

"""BLEU is sacrebleu's, and its counts add up."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu

from pipelines.metrics import bleu

WRITTEN = [
    "Ein Mann mit einem orangen Hut.",
    "Zwei Hunde laufen über das Gras",
    "Eine Frau",
    "Ein Junge spielt im Sand .",
]
TRUE = [
    "Ein Mann mit einem orangefarbenen Hut.",
    "Zwei Hunde rennen über grünes Gras.",
    "Eine Frau schläft.",
    "Ein Junge spielt im Sand.",
]


def test_it_is_sacrebleu_on_the_corpus():
    expected = sacrebleu.corpus_bleu(WRITTEN, [TRUE])
    assert bleu.compute(WRITTEN, TRUE) == {"bleu": pytest.approx(expected.score, abs=1e-12)}
    assert 10 < expected.score < 90


def test_an_example_by_hand():
    """Four of four words and 3 of 3 pairs, 2 of 2 triples, 1 of 1 run of four, brevity exp(1 - 5/4)."""
    assert bleu.compute(["a b c d"], ["a b c d e"])["bleu"] == pytest.approx(100 * np.exp(1 - 5 / 4))


def test_counts_of_a_corpus_are_sums():
    counts = bleu.counts(WRITTEN, TRUE)
    assert counts.shape == (4, 10)
    chosen = [0, 2, 2, 3]
    expected = sacrebleu.corpus_bleu([WRITTEN[at] for at in chosen], [[TRUE[at] for at in chosen]]).score
    assert bleu.of_counts(counts[chosen].sum(0))["bleu"] == pytest.approx(expected, abs=1e-12)


def test_the_signature_says_how_it_was_computed():
    assert bleu.signature() == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"

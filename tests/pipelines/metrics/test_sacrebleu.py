"""BLEU and chrF are sacrebleu's, their counts add up, and the scorer is made once."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu

from pipelines.metrics.sacrebleu import Bleu, Chrf

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


def test_counts_of_bleu_are_sums():
    counts = Bleu().counts(WRITTEN, TRUE)
    assert counts.shape == (4, 10)
    chosen = [0, 2, 2, 3]
    expected = sacrebleu.corpus_bleu([WRITTEN[at] for at in chosen], [[TRUE[at] for at in chosen]]).score
    assert Bleu().of_counts(counts[chosen].sum(0))["bleu"] == pytest.approx(expected, abs=1e-12)


def test_the_signature_says_how_it_was_computed():
    assert Bleu().signature() == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"


WRITTEN_CZECH = ["Muž v oranžovém klobouku zírá.", "Dva psi běží po trávě", "Žena", "Chlapec si hraje v písku ."]
TRUE_CZECH = [
    "Muž v oranžovém klobouku na něco zírá.",
    "Dva psi běhají po zelené trávě.",
    "Žena spí.",
    "Chlapec si hraje v písku.",
]


def test_counts_of_chrf_are_sums():
    counts = Chrf().counts(WRITTEN_CZECH, TRUE_CZECH)
    chosen = [1, 1, 3]
    expected = sacrebleu.corpus_chrf([WRITTEN_CZECH[at] for at in chosen], [[TRUE_CZECH[at] for at in chosen]]).score
    assert Chrf().of_counts(counts[chosen].sum(0))["chrf"] == pytest.approx(expected, abs=1e-12)


def test_the_signature_of_chrf_says_how_it_was_computed():
    assert Chrf().signature() == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"


def test_the_scorer_is_made_once_and_not_before_it_is_needed():
    made = []

    class Counting(Bleu):
        def make(self):
            made.append(1)
            return super().make()

    metric = Counting()
    assert not made
    metric.compute(WRITTEN, TRUE)
    metric.signature()
    assert made == [1]


def test_an_example_by_hand():
    """Four of four words and 3 of 3 pairs, 2 of 2 triples, 1 of 1 run of four, brevity exp(1 - 5/4)."""
    assert Bleu().compute(["a b c d"], ["a b c d e"])["bleu"] == pytest.approx(100 * np.exp(1 - 5 / 4))


def test_bleu_is_sacrebleu_on_the_corpus():
    expected = sacrebleu.corpus_bleu(WRITTEN, [TRUE])
    assert Bleu().compute(WRITTEN, TRUE) == {"bleu": pytest.approx(expected.score, abs=1e-12)}
    assert 10 < expected.score < 90

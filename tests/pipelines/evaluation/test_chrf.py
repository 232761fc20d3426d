"""chrF is sacrebleu's, and its counts add up."""

from __future__ import annotations

import pytest
import sacrebleu

from pipelines.metrics import chrf

WRITTEN = ["Muž v oranžovém klobouku zírá.", "Dva psi běží po trávě", "Žena", "Chlapec si hraje v písku ."]
TRUE = [
    "Muž v oranžovém klobouku na něco zírá.",
    "Dva psi běhají po zelené trávě.",
    "Žena spí.",
    "Chlapec si hraje v písku.",
]


def test_it_is_sacrebleu_on_the_corpus():
    expected = sacrebleu.corpus_chrf(WRITTEN, [TRUE])
    assert chrf.compute(WRITTEN, TRUE) == {"chrf": pytest.approx(expected.score, abs=1e-12)}
    assert 10 < expected.score < 90


def test_counts_of_a_corpus_are_sums():
    counts = chrf.counts(WRITTEN, TRUE)
    chosen = [1, 1, 3]
    expected = sacrebleu.corpus_chrf([WRITTEN[at] for at in chosen], [[TRUE[at] for at in chosen]]).score
    assert chrf.of_counts(counts[chosen].sum(0))["chrf"] == pytest.approx(expected, abs=1e-12)


def test_the_signature_says_how_it_was_computed():
    assert chrf.signature() == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"

"""Sequence to sequence: the settings of the objective."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pipelines.objectives.seq2seq import Seq2Seq


def test_it_learns_from_pairs_with_the_papers_smoothing():
    objective = Seq2Seq()
    assert objective.pairs
    assert objective.label_smoothing == 0.1
    assert objective.head.kind == "seq2seq_lm"
    assert objective.label_names == {"labels": 1.0}
    with pytest.raises(ValidationError):
        Seq2Seq(label_smoothing=1.0)


def test_a_decoder_that_looks_ahead_is_refused():
    assert "use mask_predict" in str(Seq2Seq().misfit({"bidirectional_decoder": True}))

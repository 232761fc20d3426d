"""Denoising's settings: what it refuses, and what it asks for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.objectives.denoising import Denoising


def test_the_defaults_are_the_papers():
    objective = Denoising()
    assert (objective.mask_ratio, objective.poisson_lambda, objective.permute_sentences) == (0.3, 3.0, True)
    assert (objective.delete_ratio, objective.rotate) == (0.0, 0.0)
    assert objective.head.kind == "seq2seq_lm"
    assert objective.raw_length(128) == 126


def test_a_text_that_nothing_damages_is_refused():
    with pytest.raises(ValidationError) as caught:
        Denoising(mask_ratio=0.0, permute_sentences=False)
    assert flatten(caught.value) == [
        (("mask_ratio",), "is 0 and nothing else is switched on, so the text would not be damaged at all; raise one")
    ]
    Denoising(mask_ratio=0.0, permute_sentences=False, rotate=0.5)


def test_a_decoder_that_looks_ahead_is_refused():
    assert "use mask_predict" in str(Denoising().misfit({"bidirectional_decoder": True}))
    assert Denoising().misfit({"family": "encoder-decoder", "bidirectional_decoder": False}) is None

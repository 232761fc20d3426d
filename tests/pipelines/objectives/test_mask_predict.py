"""Mask-predict: its parts, and which models it fits."""

from __future__ import annotations

from pipelines.objectives.mask_predict import MaskPredict

FIT = {"model_type": "finery", "family": "encoder-decoder", "bidirectional_decoder": True, "length_prediction": True}


def test_tokens_and_lengths_are_parts_of_the_loss():
    objective = MaskPredict(length_weight=0.5)
    assert objective.pairs
    assert objective.label_names == {"labels": 1.0, "length_labels": 0.5}
    assert objective.head.kind == "seq2seq_lm"


def test_what_is_missing_is_named():
    objective = MaskPredict()
    assert objective.misfit(FIT) is None
    assert "add bidirectional_decoder: true to model.architecture" in str(
        objective.misfit(FIT | {"bidirectional_decoder": False})
    )
    assert "add bidirectional_decoder: true and length_prediction: true" in str(
        objective.misfit({"model_type": "finery", "family": "encoder-decoder"})
    )
    assert "those of the finery family with family: encoder-decoder" in str(objective.misfit({"model_type": "t5"}))
    assert "those of the finery family with family: encoder-decoder" in str(
        objective.misfit(FIT | {"family": "decoder"})
    )

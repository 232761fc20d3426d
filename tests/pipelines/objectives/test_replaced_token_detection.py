"""Replaced-token detection's settings: its parts, and which models it fits."""

from __future__ import annotations

from pipelines.objectives.replaced_token_detection import ReplacedTokenDetection


def test_the_defaults_are_the_papers():
    objective = ReplacedTokenDetection()
    assert objective.label_names == {"labels": 1.0, "replaced": 50.0}
    assert (objective.probability, objective.generator_size) == (0.15, 0.25)
    assert objective.head.kind == "token_classification"
    assert objective.head.labels == ("original", "replaced")
    masking = objective.masking()
    assert (masking.replace_with_mask, masking.replace_with_random) == (1.0, 0.0)


def test_only_encoders_with_known_embeddings_fit():
    objective = ReplacedTokenDetection()
    for model_type in ("finery", "electra", "bert"):
        assert objective.misfit({"model_type": model_type}) is None
    assert "the model is 't5'" in str(objective.misfit({"model_type": "t5"}))
    assert "set family: encoder" in str(objective.misfit({"model_type": "finery", "family": "decoder"}))

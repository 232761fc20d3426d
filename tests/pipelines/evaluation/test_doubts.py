import numpy as np

from pipelines.evaluation.report import no_better_than_majority
from pipelines.tasks.predictions import constant_prediction, constant_text


def test_the_same_class_for_everything_is_doubted():
    logits = np.array([[0.0, 1.0], [2.0, 2.5]])
    doubt = constant_prediction("glue/mrpc", "validation", logits, ("no", "yes"))
    assert doubt is not None
    assert doubt.startswith(
        "glue/mrpc: the model predicts the class 'yes' for every one of the 2 examples of 'validation'"
    )


def test_the_same_number_for_everything_is_doubted():
    assert "predicts 2.5 for" in str(constant_prediction("glue/stsb", "validation", np.full((3, 1), 2.5), ()))


def test_different_answers_and_a_single_example_are_not():
    assert constant_prediction("t", "validation", np.array([[0.0, 1.0], [2.0, 1.0]]), ("no", "yes")) is None
    assert constant_prediction("t", "validation", np.array([[0.0, 1.0]]), ("no", "yes")) is None


def test_the_same_text_for_everything_is_doubted():
    doubt = constant_text("multi30k/en-de", "test", np.asarray(["Ein Mann"] * 3, dtype=object))
    assert str(doubt).startswith(
        "multi30k/en-de: the model writes 'Ein Mann' for every one of the 3 examples of 'test'"
    )
    assert constant_text("t", "test", np.asarray(["Ein Mann", "Eine Frau"], dtype=object)) is None
    assert constant_text("t", "test", np.asarray(["Ein Mann"], dtype=object)) is None


def test_a_score_whose_interval_reaches_the_majoritys_is_doubted():
    scores, around = {"accuracy": 0.7, "f1": 0.9}, {"accuracy": (0.66, 0.74), "f1": (0.87, 0.92)}
    doubt = no_better_than_majority("glue/mrpc", scores, around, {"accuracy": 0.684, "f1": 0.812})
    assert doubt is not None
    assert "accuracy 0.700 [0.660, 0.740] against 0.684" in doubt
    assert "f1" not in doubt


def test_a_score_below_the_majoritys_is_doubted_too():
    assert no_better_than_majority("t", {"f1": 0.5}, {"f1": (0.4, 0.6)}, {"f1": 0.8}) is not None


def test_a_clear_score_is_not_and_neither_is_one_without_a_guesser():
    assert no_better_than_majority("t", {"f1": 0.9}, {"f1": (0.85, 0.95)}, {"f1": 0.8}) is None
    assert no_better_than_majority("t", {"f1": 0.5}, {"f1": (0.4, 0.6)}, {}) is None

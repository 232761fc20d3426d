"""From outputs and labels to scores; the order of classes is compared first."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from transformers import BertConfig

from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import Head
from pipelines.tasks.evaluation import columns
from pipelines.tasks.scoring import decide, score


def task(*metrics: str, labels: tuple[str, ...] = ("no", "yes")):
    return SimpleNamespace(
        name="some/task", kind="classification", metrics=metrics, head=Head("sequence_classification", labels)
    )


def test_the_class_is_the_highest_logit():
    logits = np.array([[2.0, 1.0], [-3.0, -2.0], [0.0, 5.0]])
    assert score(task("accuracy", "f1"))(logits, [0, 1, 0]) == {"accuracy": 2 / 3, "f1": 2 / 3}


def test_regression_scores_its_single_output():
    numbers = task("pearson", "spearmanr", labels=())
    assert score(numbers)(np.array([[1.0], [2.0], [3.0]]), [1.0, 3.0, 2.0]) == pytest.approx(
        {"pearson": 0.5, "spearmanr": 0.5}
    )


def test_f1_is_binary_for_two_classes_and_macro_beyond():
    logits = np.eye(3)[[0, 1, 1]]
    # classes 0: 1, 1: 2·1/(2+2)... by hand: predicted 0 1 1, true 0 1 0
    assert score(task("f1", labels=("a", "b", "c")))(logits, [0, 1, 0])["f1"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert score(task("f1"))(logits[:, :2], [0, 0, 1])["f1"] == pytest.approx(2 * 1 / (2 + 1))


def test_glues_names_are_given():
    names = ("accuracy", "f1", "matthews_correlation")
    assert tuple(score(task(*names))(np.eye(2), [0, 1])) == names
    assert tuple(score(task("pearson", "spearmanr", labels=()))(np.array([[1.0], [2.0]]), [1, 2])) == (
        "pearson",
        "spearmanr",
    )


@pytest.mark.parametrize("strange", [-1, 2, 0.5, float("nan")])
def test_a_label_outside_the_classes_is_named_with_its_row(strange):
    with pytest.raises(
        DataError, match=r"'some/task' has the label .+ in row 1, but its classes are 0 … 1 \(no, yes\)"
    ):
        score(task("accuracy"))(np.eye(2), [0, strange])


def test_labels_that_are_texts_are_refused():
    with pytest.raises(DataError, match="the label 'no' in row 0"):
        score(task("accuracy"))(np.eye(2), ["no", "yes"])


def test_a_number_that_is_not_finite_is_no_label():
    with pytest.raises(DataError, match="row 0, which is no finite number"):
        score(task("pearson", labels=()))(np.ones((1, 1)), [float("nan")])


def test_labels_must_be_as_many_as_predictions():
    with pytest.raises(DataError, match="2 predictions but 3 labels"):
        score(task("accuracy"))(np.eye(2), [0, 1, 1])
    with pytest.raises(DataError, match="no example"):
        score(task("accuracy"))(np.empty((0, 2)), [])


def test_a_diverged_model_is_not_scored():
    logits = np.eye(2)
    logits[1, 0] = np.nan
    with pytest.raises(ModelError, match="NaN or infinity for 1 of 2 examples of 'some/task' \\(first in row 1\\)"):
        score(task("accuracy"))(logits, [0, 1])


def test_a_model_with_other_outputs_is_not_scored():
    with pytest.raises(ModelError, match=r"needs logits of shape \(examples, 2\), but the model gives \(3, 3\)"):
        score(task("accuracy"))(np.eye(3), [0, 1, 1])


def test_decide_gives_numbers_for_one_output():
    assert decide(np.array([[0.25], [4.0]])).tolist() == [0.25, 4.0]
    assert decide(np.array([[0.25, 0.0], [4.0, 5.0]])).tolist() == [0, 1]


def test_texts_are_scored_as_a_corpus():
    import sacrebleu

    written, true = ["ein Hund läuft schnell", "eine Katze"], ["ein Hund läuft sehr schnell", "eine Katze schläft"]
    translation = SimpleNamespace(name="t", kind="seq2seq", metrics=("bleu", "chrf"), head=Head("seq2seq_lm"))
    assert score(translation)(np.asarray(written, dtype=object), np.asarray(true, dtype=object)) == {
        "bleu": pytest.approx(sacrebleu.corpus_bleu(written, [true]).score),
        "chrf": pytest.approx(sacrebleu.corpus_chrf(written, [true]).score),
    }
    with pytest.raises(DataError, match="2 written texts but 1 references"):
        score(translation)(written, true[:1])
    with pytest.raises(DataError, match="no example to score"):
        score(translation)([], [])


MNLI = ("entailment", "neutral", "contradiction")


def config(*names: str) -> BertConfig:
    return BertConfig(id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)})


def test_the_same_order_needs_nothing():
    assert columns(MNLI, config(*MNLI), "glue/mnli", "mnli") is None


def test_another_order_is_put_right():
    order = columns(MNLI, config("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), "glue/mnli", "mnli")
    assert order == [2, 1, 0]


def test_a_rotation_is_not_mistaken_for_its_inverse():
    # output 0 is contradiction, 1 entailment, 2 neutral: entailment is found in column 1
    assert columns(MNLI, config("contradiction", "entailment", "neutral"), "t", "m") == [1, 2, 0]


@pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1"), ("0", "1")])
def test_unnamed_outputs_are_taken_in_order(names):
    assert columns(("negative", "positive"), config(*names), "glue/sst2", "sst2") is None


def test_spelling_makes_no_difference():
    assert columns(("not_equivalent", "equivalent"), config("Equivalent", "Not-Equivalent"), "glue/mrpc", "m") == [1, 0]


def test_other_classes_are_refused():
    with pytest.raises(
        ModelError, match="'other' tells negative, positive apart, but 'glue/rte' needs entailment, not_ent"
    ):
        columns(("entailment", "not_entailment"), config("negative", "positive"), "glue/rte", "other")


def test_another_number_of_outputs_is_refused():
    with pytest.raises(ModelError, match=r"'mnli' has 3 outputs, but 'glue/sst2' needs 2 \(negative, positive\)"):
        columns(("negative", "positive"), config(*MNLI), "glue/sst2", "mnli")
    with pytest.raises(ModelError, match=r"'sst2' has 2 outputs, but 'glue/stsb' needs 1 \(it is a regression\)"):
        columns((), config("negative", "positive"), "glue/stsb", "sst2")


def test_a_regression_has_one_output_of_any_name():
    assert columns((), BertConfig(num_labels=1), "glue/stsb", "stsb") is None

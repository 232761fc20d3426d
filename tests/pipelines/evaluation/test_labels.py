import pytest
from transformers import BertConfig

from pipelines.core.errors import ModelError
from pipelines.tasks.evaluation import columns

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

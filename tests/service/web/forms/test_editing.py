import pytest

from pipelines.core.load import read_text
from pipelines.core.recipe import stage_ids
from pipelines.core.yaml_positions import write_yaml
from service.web.forms import edited, field_of, form_of, names

DRAFT = {
    "name": "x",
    "stages": (
        {"stage": "pretrain"},
        {"stage": "supervised", "id": "mrpc", "tuner": {"name": "lora", "r": 0}},
        {"stage": "evaluate"},
    ),
}


def kinds(draft):
    return [stage["stage"] for stage in draft["stages"]]


@pytest.mark.parametrize(
    ("order", "after"),
    [
        ("add stages publish", ["pretrain", "supervised", "evaluate", "publish"]),
        ("remove stages.0", ["supervised", "evaluate"]),
        ("up stages.2", ["pretrain", "evaluate", "supervised"]),
        ("down stages.0", ["supervised", "pretrain", "evaluate"]),
        ("up stages.0", kinds(DRAFT)),
        ("down stages.2", kinds(DRAFT)),
        ("remove stages.9", kinds(DRAFT)),
        ("remove name.0", kinds(DRAFT)),
        ("burn everything", kinds(DRAFT)),
        ("", kinds(DRAFT)),
        ("add name", kinds(DRAFT)),
    ],
)
def test_an_order_changes_the_stages_or_nothing(order, after):
    assert kinds(edited(DRAFT, order)) == after
    assert kinds(DRAFT) == ["pretrain", "supervised", "evaluate"]


def test_the_first_row_of_a_list_that_is_not_there_makes_the_list():
    assert edited(DRAFT, "add stages.0.datasets")["stages"][0]["datasets"] == [{}]


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("stages.mrpc.tuner.r", "stages.1.tuner.r"),
        ("stages.evaluate", "stages.2"),
        ("stages.pretrain.datasets[0].path", "stages.0.datasets"),
        ("stages[1].task", "stages.1.task"),
        ("name", "name"),
        ("modle", ""),
        ("", ""),
    ],
)
def test_a_mistake_finds_the_nearest_field(key, field):
    ids = stage_ids(read_text(write_yaml(DRAFT)).data)
    assert field_of(key, ids, names(form_of(DRAFT)) - {""}) == field

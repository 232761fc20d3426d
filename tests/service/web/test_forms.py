import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.load import read_text
from pipelines.core.recipe import stage_ids
from pipelines.core.yaml_positions import read_yaml, write_yaml
from service.web.forms import CHOICE, draft_of, edited, field_of, followed, form_of, names, recipe_schema, union_of
from tests.covering import LONG, cover, examples
from tests.words import words_of


def posted(form, found=None):
    """What a browser would send of a form that nobody touched."""
    found = {} if found is None else found
    if form.kind == "union":
        found[f"{form.name}{CHOICE}"] = form.value
    elif form.kind not in ("group", "rows"):
        assert form.name not in found
        found[form.name] = form.value
    if form.kind == "rows":
        found |= {row.name: "" for row in form.fields if row.kind in ("group", "union")}
    for each in (*form.fields, *form.more):
        posted(each, found)
    return found


def plain(value):
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value


@pytest.mark.wider
def test_every_recipe_of_the_project_survives_its_form(configs):
    """Those that together have every section, stage and objective, the small ones first, and all of them with the long
    tests."""
    assert len(configs) > 40
    configs = sorted(configs, key=lambda path: path.stat().st_size)
    if not os.environ.get(LONG):
        heads = r"(?m)^(?:  )?(?:- )?\w+(?=:)|(?<=stage: )\w+|(?<=objective: )\w+"
        configs = [configs[at] for at in sorted(cover([set(re.findall(heads, each.read_text())) for each in configs]))]
    for path in configs:
        data = plain(read_yaml(path)[0])
        assert plain(draft_of(posted(form_of(data)))) == data, path.name


KEYS = st.sampled_from(
    [
        *words_of("name seed model stages tokenizer launch architecture preset task tuner arguments stage"),
        "odd key",
        "é",
        "a.b",
    ]
)
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([0.5, "", "lora", "x, y", " z", "supervised", "1e-3", "null", "glue/mrpc", "[", "a: b", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@examples(25, 60)
@given(st.dictionaries(KEYS, ANY, max_size=4))
def test_any_draft_has_a_form_and_any_form_a_draft(draft):
    form = form_of(draft)
    again = draft_of(posted(form))
    assert isinstance(names(form), set)
    write_yaml(again)


@examples(25, 60)
@given(
    st.dictionaries(
        st.lists(
            st.sampled_from(["stages", "0", "7", "model", "task", "tuner", "?", "!", "arguments", "name", "x"]),
            max_size=5,
        ).map(".".join),
        st.text(max_size=12),
        max_size=8,
    )
)
def test_whatever_is_posted_becomes_a_draft(fields):
    form_of(draft_of(fields))


def test_an_unknown_key_stays_in_sight():
    form = form_of({"name": "x", "modle": {"checkpoint": "y"}})
    assert "modle" in names(form)
    assert draft_of(posted(form))["modle"] == {"checkpoint": "y"}


@pytest.mark.parametrize(("typed", "value"), [("1e-3", 0.001), ("3", 3), ("many", "many"), (" 0.5 ", 0.5)])
def test_numbers_are_read_as_in_a_recipe_and_words_stay_for_the_check_to_refuse(typed, value):
    draft = draft_of({"stages.0": "", "stages.0?": "pretrain", "stages.0.arguments.learning_rate": typed})
    assert draft["stages"][0]["arguments"]["learning_rate"] == value


def test_a_name_that_looks_like_a_number_stays_a_name():
    assert draft_of({"name": "2026"})["name"] == "2026"


def test_choosing_a_kind_alone_writes_the_short_form():
    draft = draft_of({"stages.0?": "supervised", "stages.0.task?": "glue/mrpc", "stages.0.tuner?": "lora"})
    assert draft["stages"] == [{"stage": "supervised", "task": "glue/mrpc", "tuner": "lora"}]
    draft = draft_of({"stages.0?": "supervised", "stages.0.tuner?": "lora", "stages.0.tuner.r": "4"})
    assert draft["stages"][0]["tuner"] == {"name": "lora", "r": 4}


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


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({"preset": "bert-mini"}, "preset"),
        ({"family": "decoder", "position": "rotary"}, "preset"),
        ({"family": "rnn", "cell": "gru"}, "rnn"),
        ({"family": "cnn"}, "cnn"),
        ({"model_type": "gpt2", "n_embd": 8}, "model_type"),
    ],
)
def test_an_architecture_is_told_by_its_family_or_its_model_type(value, word):
    schema = followed(recipe_schema()["$defs"]["Model"]["properties"]["architecture"])
    assert union_of(schema).of(value).word == word

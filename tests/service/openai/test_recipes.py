"""From OpenAI's words to a recipe that the checks accept."""

import json

import pytest

from pipelines.core.registry import STAGES
from service.openai.recipes import (
    METHODS,
    TrainingMethod,
    available,
    base_of,
    dpo_recipe,
    refusal,
    reinforcement_recipe,
    resolve,
    scratch,
    short_name,
    supervised_recipe,
)
from service.safety.network_recipes import Known, check, needs

GRADER = {"type": "string_check", "name": "x", "input": "{{sample.output_text}}", "operation": "like"}


def test_what_can_be_trained_from_scratch_are_the_decoders():
    assert "scratch/gpt-tiny" in scratch()
    assert not any("bert" in name or "t5" in name for name in scratch())


@pytest.mark.parametrize(
    "name", ["scratch/bert-tiny", "scratch/nope", "gpt-4o-mini", "../x", "/etc", "a/b/c", "scratch/", "", "a b/c"]
)
def test_other_names_stand_for_nothing(name):
    assert base_of(name) is None


def test_names_do_not_grow_with_every_round():
    assert short_name("ft:gpt-tiny:acme:x:01") == "gpt-tiny"
    assert base_of("ft:gpt-tiny:acme:x:01", "ft:gpt-tiny:acme:x:01").short == "gpt-tiny"
    assert base_of("meta/Llama-3").short == "Llama-3"


@pytest.mark.parametrize(("rows", "batch"), [(3, 3), (10, 4), (199, 4), (500, 10), (100_000, 32)])
def test_an_automatic_batch_is_a_fiftieth_of_the_examples_within_bounds(rows, batch):
    assert resolve(scratch()["scratch/gpt-tiny"], rows, "auto", "auto", "auto").batch_size == batch


def test_the_multiplier_multiplies_the_rate_of_the_kind_of_model():
    tiny = scratch()["scratch/gpt-tiny"]
    assert resolve(tiny, 100, None, None, 2).learning_rate == pytest.approx(2e-3)
    assert resolve(base_of("x", "x"), 100, None, None, None).learning_rate == pytest.approx(2e-4)
    assert resolve(base_of("a/b"), 100, 5, 7, 0.5).arguments()["learning_rate"] == pytest.approx(1e-5)


@pytest.mark.parametrize("validation", [None, "file-b"])
@pytest.mark.parametrize("name", [*scratch(), "published", "owner/checkpoint"])
def test_every_base_gives_a_recipe_that_can_be_submitted(tmp_path, name, validation):
    paths = {}
    for each in ("file-a", "file-b"):
        paths[each] = tmp_path / f"{each}.jsonl"
        paths[each].write_text("{}\n")
    base = base_of(name, "published" if name == "published" else None)
    text = supervised_recipe(
        "ft-1", base, "file-a", validation, resolve(base, 100, None, None, None), 7, 1000, "ft:x:acme::1"
    )
    found = check(text, known=Known(paths, {"model:published": tmp_path}))
    assert [stage.stage for stage in found.recipe.stages] == [
        "supervised",
        *(["evaluate"] if validation else []),
        "publish",
    ]
    assert needs(text).publishes == ("ft:x:acme::1",)
    task = found.recipe.stages[0].task
    assert task.validation == str(paths[validation or "file-a"]), "without a validation file every row is learnt"


@pytest.mark.parametrize("validation", [None, "file-b"])
@pytest.mark.parametrize("name", ["published", "owner/checkpoint"])
def test_preferences_give_a_recipe_that_can_be_submitted(tmp_path, name, validation):
    row = {
        "input": {"messages": [{"role": "user", "content": "a"}]},
        "preferred_output": [{"role": "assistant", "content": "b"}],
        "non_preferred_output": [{"role": "assistant", "content": "c"}],
    }
    paths = {each: tmp_path / f"{each}.jsonl" for each in ("file-a", "file-b")}
    for path in paths.values():
        path.write_text(json.dumps(row) + "\n")
    base = base_of(name, "published" if name == "published" else None)
    numbers = resolve(base, 100, None, None, None, "auto", METHODS["dpo"])
    text = dpo_recipe("ft-1", base, "file-a", validation, numbers, 7, "ft:x:acme::1")
    stage = check(text, known=Known(paths, {"model:published": tmp_path})).recipe.stages[0]
    assert (stage.stage, stage.arguments.beta, stage.arguments.num_train_epochs) == ("dpo", 0.1, 2)
    rows = stage.read("dpo", {})
    assert [each.completion for each in (*rows.chosen, *rows.rejected)] == ["b", "c"]
    assert rows.chosen[0].templated


def test_a_grader_gives_a_recipe_that_can_be_submitted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "Say blue."}]}\n')
    base = base_of("owner/checkpoint")
    grader = {
        "type": "multi",
        "calculate_output": "a - 0.5 * b",
        "graders": {name: GRADER | {"reference": name} for name in "ab"},
    }
    text = reinforcement_recipe(
        "ft-1",
        base,
        "file-a",
        {"name": "grader", "grader": grader},
        resolve(base, 100, None, None, None, None, METHODS["reinforcement"]),
        7,
        "ft:x:acme::1",
    )
    stage = check(text, known=Known({"file-a": tmp_path / "a.jsonl"})).recipe.stages[0]
    assert (stage.stage, stage.reward.name) == ("ppo", "grader")
    assert stage.reward.grader.formula.value({"a": 1.0, "b": 1.0}) == 0.5
    assert stage.arguments.num_train_epochs == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_refused_exactly_as_long_as_its_trainer_is_missing(method, monkeypatch):
    assert (refusal(method) is None) == (METHODS[method].stage in STAGES)
    monkeypatch.setitem(METHODS, method, TrainingMethod("no_such_stage", METHODS[method].shape))
    assert "needs the trainer 'no_such_stage'" in refusal(method)
    assert method not in available()
    assert refusal("other").startswith("there is no method 'other'")

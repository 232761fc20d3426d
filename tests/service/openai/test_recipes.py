"""From OpenAI's words to a recipe that the checks accept."""

import pytest

from pipelines.registry import STAGES
from service.openai.bases import base_of, scratch, short_name
from service.openai.hyperparameters import resolve
from service.openai.methods import METHODS, available, refusal
from service.openai.recipes import supervised_recipe
from service.safety.materialise import needs
from service.safety.network_recipes import Known, check


def test_what_can_be_trained_from_scratch_are_the_decoders():
    assert "scratch/gpt-tiny" in scratch()
    assert not any("bert" in name or "t5" in name for name in scratch())


@pytest.mark.parametrize("name", ["scratch/bert-tiny", "scratch/nope", "gpt-4o-mini", "../x", "/etc", "a/b/c", "scratch/", "", "a b/c"])
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
    text = supervised_recipe("ft-1", base, "file-a", validation, resolve(base, 100, None, None, None), 7, 1000, "ft:x:acme::1")
    found = check(text, known=Known(paths, {"model:published": tmp_path}))
    assert [stage.stage for stage in found.recipe.stages] == ["supervised", *(["evaluate"] if validation else []), "publish"]
    assert needs(text).publishes == ("ft:x:acme::1",)
    task = found.recipe.stages[0].task
    assert task.validation == str(paths[validation or "file-a"]), "without a validation file every row is learnt"


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_refused_exactly_as_long_as_its_trainer_or_its_recipe_is_missing(method):
    refused = refusal(method)
    assert (refused is None) == (method in available())
    if METHODS[method].stage not in STAGES:
        assert f"needs the trainer '{METHODS[method].stage}'" in refused
    assert "supervised" in available()

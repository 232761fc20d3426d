"""A tuner that cannot serve a stage is refused with the reason, before anything loads where the recipe tells."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head, World
from pipelines.core.load import loads
from pipelines.core.registry import TUNERS
from pipelines.trainers import tuning
from pipelines.tuners.fusion import Fusion
from pipelines.tuners.tuner import TunerBlock

RECIPE = """
name: x
model: {architecture: {preset: bert-tiny, max_position_embeddings: 64}}
stages:
  - {stage: supervised, id: first, task: glue/mrpc, max_length: 60}
  - {stage: supervised, id: second, task: glue/mrpc, max_length: 60}
"""


class Greedy(TunerBlock):
    """Takes positions, stays beside its base, and serves one model type."""

    name: str = "greedy"
    adapts: ClassVar[bool] = True
    merges: ClassVar[bool] = False
    taken: int = 8
    serves: str = "finery"

    @property
    def positions(self) -> int:
        return self.taken

    def misfit(self, words: Any, head: str) -> str | None:
        return (
            None
            if words["model_type"] == self.serves
            else f"serves {self.serves} only, not {words['model_type']} with a {head} head"
        )


def tuned(tuner: Any) -> Any:
    """The recipe, its first stage tuned so."""
    recipe = loads(RECIPE)
    return recipe.model_copy(
        update={"stages": (recipe.stages[0].model_copy(update={"tuner": tuner}), recipe.stages[1])}
    )


def sentences(tuner: Any, position: int = 0) -> dict[Any, str]:
    recipe = tuned(tuner)
    return dict(tuning.issues(recipe.stages[position], recipe, "sequence_classification", 60))


def test_a_tuner_that_fits_is_no_mistake():
    assert sentences(Greedy(taken=4)) == {}


def test_a_tuner_that_does_not_serve_the_architecture_is_one():
    assert sentences(Greedy(taken=0, serves="bert")) == {
        ("tuner",): "is greedy, which serves bert only, not finery with a sequence_classification head"
    }


def test_virtual_tokens_and_text_share_the_positions():
    assert sentences(Greedy(taken=5)) == {
        (
            "tuner",
        ): "is greedy, whose 5 virtual tokens and texts of 60 tokens are more than the model's max_position_embeddings 64; lower one of the two"
    }


def test_nothing_is_trained_on_top_of_an_adapter_that_cannot_be_merged():
    found = sentences(Greedy(taken=0), position=1)
    assert found[("from",)].startswith("is 'first', whose greedy cannot be merged into its model")
    assert found[("from",)].endswith("from: model")


class Elsewhere(Greedy):
    """Says of itself what other tuners are known for by their names."""

    known_elsewhere: ClassVar[bool] = True
    fuses: ClassVar[bool] = True

    @property
    def changes_base(self) -> tuple[str, ...]:
        return ("taken",) if self.taken else ()


def test_a_tuner_says_itself_whether_other_loops_are_offered_with_it(monkeypatch: pytest.MonkeyPatch):
    def of_zero(tuner: Any) -> list[str]:
        recipe = tuned(tuner)
        return [said for place, said in tuning.profile_issues(recipe.stages[0], recipe, "zero2") if place == ("tuner",)]

    assert of_zero(Greedy()) == ["is greedy, but the profile zero2 is for full and lora; use fsdp2 or ddp"]
    assert of_zero(Elsewhere()) == []
    monkeypatch.setitem(TUNERS._table, "elsewhere", f"{__name__}:Elsewhere")
    assert of_zero(Greedy()) == [
        "is greedy, but the profile zero2 is for full and lora and elsewhere; use fsdp2 or ddp"
    ]


@pytest.mark.parametrize(
    ("tuner", "sentence"),
    [
        (Greedy(taken=0), "'first' is no earlier stage with the tuner adapter. Those are: none"),
        (Elsewhere(taken=1), "'first' has taken: it changed the model itself"),
        (Elsewhere(taken=0), ""),
    ],
)
def test_a_tuner_says_itself_whether_its_adapters_can_be_mixed(tuner: Any, sentence: str):
    recipe = tuned(tuner)
    mixing = recipe.stages[1].model_copy(update={"tuner": Fusion(adapters=("first", "first2")), "source": "model"})
    recipe = recipe.model_copy(update={"stages": (recipe.stages[0], mixing)})
    found = dict(tuning.issues(mixing, recipe, "sequence_classification", 60))
    assert found.get(("tuner", "adapters", 0), "").startswith(sentence)
    assert bool(sentence) is (("tuner", "adapters", 0) in found)


class Config(SimpleNamespace):
    """As much of a transformers config as is asked."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def opened(tuner: Any, **words: Any) -> tuple[Any, Any]:
    model = SimpleNamespace(modules=list, config=Config(model_type="finery", **words))
    asked: list[Any] = []
    from pathlib import Path

    context: Any = SimpleNamespace(
        folder=Path("/here"), world=World(), open_model=lambda head, keep_base: asked.append(keep_base) or model
    )
    return tuning.opened(SimpleNamespace(tuner=tuner), context, Head("masked_lm")), asked


def test_an_adapter_is_given_a_base_to_name_and_others_are_not():
    assert str(opened(Greedy())[1][0]) == "/here/base"
    plain = type("Plain", (Greedy,), {"adapts": False})
    assert opened(plain())[1] == [None]


def test_the_open_model_is_judged_again():
    with pytest.raises(ModelError, match="the tuner greedy serves bert only, not finery with a masked_lm head"):
        opened(Greedy(serves="bert"))


@pytest.mark.parametrize(("positions", "taken", "left"), [(64, 0, 64), (64, 8, 56), (-1, 8, None), (12, 8, 4)])
def test_what_is_left_for_text(positions: int, taken: int, left: int | None):
    model, _ = opened(Greedy(), max_position_embeddings=positions)
    assert tuning.room_for_text(SimpleNamespace(tuner=Greedy(taken=taken)), model) == left


def test_no_room_for_text_is_refused():
    model, _ = opened(Greedy(), max_position_embeddings=11)
    with pytest.raises(ModelError, match="takes 8 of the model's 11 positions"):
        tuning.room_for_text(SimpleNamespace(tuner=Greedy()), model)


TASK = "task: {kind: preference, train: builtin/python-docs, name: preferences}"


def loaded(architecture, stage=f"{{stage: dpo, {TASK}}}", before=""):
    return loads(f"name: x\nmodel: {{architecture: {architecture}}}\nstages:\n{before}  - {stage}\n")


@pytest.mark.parametrize(
    ("shape", "kind"),
    [("{preset: gpt-tiny, max_position_embeddings: 512}", "causal_lm"), ("{family: encoder-decoder}", "seq2seq_lm")],
)
def test_the_head_is_that_of_the_recipes_model(shape, kind):
    recipe = loaded(shape)
    assert tuning.head_kind(recipe.stages[-1], recipe) == kind


def test_a_checkpoint_of_the_hub_is_a_decoder_until_it_is_opened():
    recipe = loads(f"name: x\nmodel: {{checkpoint: some/model}}\nstages:\n  - {{stage: dpo, {TASK}}}\n")
    assert tuning.head_kind(recipe.stages[-1], recipe) == "causal_lm"


def asking(recipe, folders, asked):
    def open_model(head, **words):
        asked.append((head, words))
        return SimpleNamespace(modules=list, config=SimpleNamespace(model_type="finery", to_dict=dict))

    return SimpleNamespace(
        recipe=recipe,
        stage_id=recipe.stages[-1].id,
        stage_folders=folders,
        folder=None,
        world=World(),
        open_model=open_model,
    )


def test_a_model_from_scratch_has_no_trained_head_and_every_other_must_have_one(tmp_path):
    asked = []
    recipe = loaded("{preset: gpt-tiny, max_position_embeddings: 512}")
    tuning.opened_policy(recipe.stages[-1], asking(recipe, {}, asked))
    before = "  - {stage: pretrain, id: first, objective: causal_lm, datasets: [{path: builtin/python-docs}]}\n"
    recipe = loaded("{preset: gpt-tiny, max_position_embeddings: 512}", before=before)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "head.json").write_text(json.dumps({"kind": "causal_lm", "labels": []}))
    tuning.opened_policy(recipe.stages[-1], asking(recipe, {"first": tmp_path}, asked))
    assert asked == [
        (Head("causal_lm"), {"keep_base": None}),
        (Head("causal_lm"), {"keep_base": None, "trained_head": True}),
    ]


def test_a_stage_that_left_a_classifier_is_no_policy(tmp_path):
    before = "  - {stage: pretrain, id: first, objective: causal_lm, datasets: [{path: builtin/python-docs}]}\n"
    recipe = loaded("{preset: gpt-tiny, max_position_embeddings: 512}", before=before)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "head.json").write_text(json.dumps({"kind": "sequence_classification", "labels": ["a", "b"]}))
    with pytest.raises(ModelError, match="writes no texts"):
        tuning.opened_policy(recipe.stages[-1], asking(recipe, {"first": tmp_path}, []))

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.trainers import tuning

TASK = "task: {kind: preference, train: builtin/python-docs, name: preferences}"


def loaded(architecture, stage=f"{{stage: dpo, {TASK}}}", before=""):
    return loads(f"name: x\nmodel: {{architecture: {architecture}}}\nstages:\n{before}  - {stage}\n")


@pytest.mark.parametrize(
    ("shape", "kind"),
    [("{preset: gpt-tiny, max_position_embeddings: 512}", "causal_lm"), ("{family: encoder-decoder}", "seq2seq_lm")],
)
def test_the_head_is_that_of_the_recipes_model(shape, kind):
    assert tuning.head_kind(loaded(shape)) == kind


def test_a_checkpoint_is_a_decoder_until_it_is_opened():
    recipe = loads(f"name: x\nmodel: {{checkpoint: some/model}}\nstages:\n  - {{stage: dpo, {TASK}}}\n")
    assert tuning.head_kind(recipe) == "causal_lm"


def asking(recipe, folders, asked):
    def open_model(head, **words):
        asked.append((head, words))
        return SimpleNamespace(config=SimpleNamespace(model_type="finery", to_dict=dict))

    return SimpleNamespace(
        recipe=recipe,
        stage_id=recipe.stages[-1].id,
        stage_folders=folders,
        folder=None,
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

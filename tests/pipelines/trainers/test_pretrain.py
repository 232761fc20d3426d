"""Pretraining learns from packed text alone, and refuses settings that cannot work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines import models
from pipelines.errors import ModelError, RecipeError
from pipelines.protocols import Context
from pipelines.recipe import loads
from tests import tiny

RECIPE = """\
name: inline
model: {{architecture: {{preset: bert-tiny}}}}
stages:
  - stage: pretrain
    datasets: [{{path: novel.jsonl, text: text}}, {{path: poem.jsonl, text: text}}]
    {keys}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Any]:
    """`recipe(keys)`: one pretraining stage on two files of text."""

    def build(keys: str) -> Any:
        for name, texts in (("novel", tiny.TEXTS), ("poem", tiny.TEXTS[::-1])):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return loads(RECIPE.format(keys=keys), folder=tmp_path)

    return build


def open_model(head: Any, keep_base: Path | None = None, **_: Any) -> Any:
    model = tiny.build("finery", head, seed=7)
    if keep_base is not None:
        model.save_pretrained(keep_base)
        model.name_or_path = str(keep_base)
    return model


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_a_whole_stage_learns_and_leaves_its_result(tuner: str, recipe: Any, context: Callable[..., Context], events: Any) -> None:
    written = recipe(
        f"tuner: {tuner}\n    block_size: 24\n    arguments: {{num_train_epochs: 20, learning_rate: 1e-2, global_batch_size: 8, "
        "logging_steps: 10, save_strategy: 'no'}"
    )
    place = context(recipe=written, open_model=open_model)
    written.stages[0].run(place)
    metrics = json.loads((place.folder / "metrics.json").read_text())
    required = {"train_runtime", "train_samples_per_second", "trainable_parameters", "all_parameters", "peak_memory_bytes"}
    assert required <= metrics.keys()
    tokens = sum(len(tiny.tokenizer()(text, add_special_tokens=False)["input_ids"]) + 1 for text in (*tiny.TEXTS, *tiny.TEXTS[::-1]))
    blocks = tokens // 22  # each block has two special tokens of its own
    assert metrics["train_tokens"] == 20 * blocks * 24
    assert metrics["train_steps"] == 20 * -(-blocks // 8)
    losses = [event["metrics"]["loss"] for event in events(place) if event["event"] == "metric"]
    assert losses[-1] < (0.9 if tuner == "full" else 1) * losses[0]  # an adapter on a random body learns little
    assert models.saved_head(place.folder / "model") == tiny.MASKED
    assert models.open_folder(place.folder / "model", tiny.MASKED, seed=0).finery_new_modules == []
    assert models.open_folder(place.folder / "model", tiny.TWO, seed=0).finery_new_modules == ["classifier", "model.pooler.dense"]


def test_texts_come_in_the_order_of_the_recipe_each_set_cut_by_itself(recipe: Any) -> None:
    stage = recipe("max_train_samples: 2").stages[0]
    assert list(stage.texts()) == [*tiny.TEXTS[:2], *tiny.TEXTS[::-1][:2]]
    assert {key.partition(".")[0] for key in stage.content(None)} == {"datasets[0]", "datasets[1]"}


def test_a_block_longer_than_the_model_is_refused_when_the_model_is_open(recipe: Any, context: Callable[..., Context]) -> None:
    written = recipe("block_size: 64")
    with pytest.raises(ModelError, match=r"block_size is 64, but the model has .* 48.*; lower it"):
        written.stages[0].run(context(recipe=written, open_model=open_model))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("block_size: 1024", "block_size: is 1024, but the model has max_position_embeddings 512"),
        ("arguments: {eval_strategy: epoch}", "arguments.eval_strategy: is not offered here: pretraining holds no rows back"),
        ("arguments: {evaluation_strategy: epoch}", "arguments.eval.*strategy: is not offered here: pretraining holds no rows back"),
        ("objective: {name: masked_lm, probability: 2.0}", "objective.probability: is 2.0"),
        ("arguments: {deepspeed: x.json}", "arguments.deepspeed: "),
    ],
)
def test_what_cannot_work_is_refused_before_anything_loads(keys: str, sentence: str, recipe: Any) -> None:
    with pytest.raises(RecipeError, match=sentence):
        recipe(keys)


def test_a_model_without_the_objectives_head_is_refused() -> None:
    text = "name: x\nmodel: {architecture: {model_type: gpt2}}\nstages: [{stage: pretrain, datasets: [{path: builtin/python-docs}]}]\n"
    with pytest.raises(RecipeError, match="objective: is masked_lm, whose head this architecture does not have"):
        loads(text)

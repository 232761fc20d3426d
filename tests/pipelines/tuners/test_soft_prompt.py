"""What the three tuners of virtual tokens share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModel

from pipelines.core.errors import ModelError
from pipelines.core.model_types import positions_for_text
from pipelines.core.registry import TUNERS
from pipelines.models import opening
from pipelines.models.predict import usable_length
from pipelines.tuners.soft_prompt import NO_EMBEDDINGS
from pipelines.tuners.virtual_tokens import VirtualTokensModel
from tests import tiny

NAMES = ("prefix", "prompt", "p_tuning")


@pytest.mark.parametrize("name", NAMES)
def test_virtual_tokens_take_room_from_the_text(name: str) -> None:
    tuner = TUNERS.load(name)(name=name, num_virtual_tokens=7)
    assert (tuner.positions, tuner.adapts, tuner.merges) == (7, True, False)
    model = tuner.apply(tiny.build("bert", tiny.THREE))
    assert positions_for_text(model) == 48 - 7 == usable_length(model, tiny.tokenizer(), 100)
    longest = tiny.batch(length=41)
    assert tiny.logits(model, longest).shape == (4, 3)
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        tiny.logits(model, tiny.batch(length=42))


def test_a_prefix_inside_attention_takes_none() -> None:
    model = TUNERS.load("prefix")(num_virtual_tokens=7).apply(tiny.build("distilbert", tiny.THREE))
    assert positions_for_text(model) == 48
    assert tiny.logits(model, tiny.batch(length=48)).shape == (4, 3)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_holds_the_virtual_tokens_and_the_fresh_head_only(name: str, tmp_path: Path) -> None:
    tuner = TUNERS.load(name)(
        name=name, num_virtual_tokens=3, **({"prefix_projection": True} if name == "prefix" else {})
    )
    model = tiny.build("bert", tiny.THREE)
    assert model.finery_new_modules == ["bert.pooler.dense", "classifier"]
    model.save_pretrained(tmp_path / "base")
    tuned = tuner.apply(opening.open_folder(tmp_path / "base", tiny.THREE, seed=1))
    tuner.save(tuned, tmp_path / "tuned")
    with safe_open(tmp_path / "tuned" / "adapter_model.safetensors", "pt") as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    assert shapes.pop("prompt_embeddings") == (3, 2 * 2 * 32 if name == "prefix" else 32)
    assert not shapes  # the head came with the checkpoint here

    (tmp_path / "tuned" / "head.json").write_text(
        json.dumps({"kind": tiny.THREE.kind, "labels": list(tiny.THREE.labels)})
    )
    opened = opening.open_folder(tmp_path / "tuned", tiny.THREE, seed=5)
    assert isinstance(opened, VirtualTokensModel)
    assert torch.equal(tiny.logits(opened, tiny.batch()), tiny.logits(tuned, tiny.batch()))


def test_a_model_that_reads_no_embeddings_is_refused() -> None:
    assert TUNERS.load("prompt")().misfit({"model_type": "whisper"}, "causal_lm") == (
        "needs a model that reads embeddings in place of words, which whisper does not; use lora or adapter"
    )
    model = tiny.build("bert", tiny.MASKED)
    model.base_model.forward = lambda input_ids, attention_mask=None: None
    with pytest.raises(ModelError, match="reads embeddings in place of words, but BertModel does not"):
        TUNERS.load("p_tuning")().apply(model)


@pytest.mark.long
@pytest.mark.parametrize("model_type", sorted(NO_EMBEDDINGS))
def test_the_families_without_embeddings_have_none(model_type: str) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.for_model(model_type))
    with pytest.raises(ModelError):
        TUNERS.load("prompt")().check_place(model)

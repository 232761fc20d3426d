"""LoRA: which layers get an update, how many weights that is, and what the update computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import linear

from pipelines import models
from pipelines.errors import ModelError
from pipelines.tuners.lora import LoRA
from tests import tiny

LAYERS, DIM, INNER = 2, 32, 48
ATTENTION = 4 * (DIM + DIM)  # query, key, value, output: r * (in + out) each
FEED_FORWARD = (DIM + INNER) + (INNER + DIM)


def trained(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def updated(model: Any) -> set[str]:
    """Names of the layers with an update, without PEFT's prefix."""
    return {name.removeprefix("base_model.model.").removesuffix(".lora_A.default") for name, _ in model.named_modules() if name.endswith(".lora_A.default")}


@pytest.mark.parametrize(
    ("family", "whole"),
    [
        ("finery", (DIM * DIM + DIM) + (DIM * 3 + 3)),  # pooler and classifier
        ("bert", (DIM * DIM + DIM) + (DIM * 3 + 3)),
        ("roberta", (DIM * DIM + DIM) + (DIM * 3 + 3)),  # two layers of the head
        ("distilbert", (DIM * DIM + DIM) + (DIM * 3 + 3)),
        ("gpt2", DIM * 3),  # the score, without a bias
    ],
)
@pytest.mark.parametrize("r", [1, 8])
def test_the_count_is_r_times_in_plus_out_and_the_new_modules(family: str, whole: int, r: int) -> None:
    model = LoRA(r=r).apply(tiny.build(family, tiny.THREE))
    if family == "gpt2":  # one matrix for query, key and value; the feed-forward is four times as wide
        matrices = (DIM + 3 * DIM) + (DIM + DIM) + 2 * (DIM + 4 * DIM)
    else:
        matrices = ATTENTION + FEED_FORWARD
    assert trained(model) == LAYERS * r * matrices + whole


def test_named_targets_get_an_update_and_no_others() -> None:
    model = LoRA(target_modules=("query", "value"), r=4).apply(tiny.build("bert", tiny.THREE))
    assert updated(model) == {f"bert.encoder.layer.{n}.attention.self.{name}" for n in range(2) for name in ("query", "value")}
    one = LoRA(target_modules=("layer.1.attention.self.key",)).apply(tiny.build("bert", tiny.THREE))
    assert updated(one) == {"bert.encoder.layer.1.attention.self.key"}


@pytest.mark.parametrize("family", ["finery", "bert", "albert", "modernbert"])
def test_all_linear_leaves_heads_alone(family: str) -> None:
    for head in (tiny.MASKED, tiny.TWO):
        model = tiny.build(family, head)
        prefix = f"{model.base_model_prefix}."
        names = updated(LoRA().apply(model))
        assert names
        assert all(name.startswith(prefix) and "pooler" not in name for name in names)


def test_the_update_is_alpha_over_r_times_b_a() -> None:
    model = LoRA(r=4, lora_alpha=12, target_modules=("query",)).apply(tiny.build("bert", tiny.THREE))
    tiny.disturb(model)
    layer = model.base_model.model.bert.encoder.layer[0].attention.self.query
    a, b, base = layer.lora_A["default"].weight, layer.lora_B["default"].weight, layer.base_layer
    assert a.shape == (4, 32)
    assert b.shape == (32, 4)
    hidden = torch.randn(2, 5, 32)
    expected = linear(hidden, base.weight + 12 / 4 * b @ a, base.bias)
    torch.testing.assert_close(layer(hidden), expected, rtol=1e-5, atol=1e-5)


def test_rank_stabilised_updates_are_scaled_by_the_root() -> None:
    model = LoRA(r=4, lora_alpha=12, use_rslora=True, target_modules=("query",)).apply(tiny.build("bert", tiny.THREE))
    layer = model.base_model.model.bert.encoder.layer[0].attention.self.query
    assert layer.scaling["default"] == pytest.approx(12 / 4**0.5)


@pytest.mark.parametrize(
    "words",
    [{"use_dora": True}, {"bias": "all"}, {"bias": "lora_only"}, {"use_rslora": True}, {"lora_dropout": 0.3}, {"modules_to_save": ("embeddings",)}],
    ids=lambda words: next(iter(words)),
)
@pytest.mark.parametrize("family", ["finery", "bert"])
def test_every_variant_begins_at_the_base_and_comes_back_merged(family: str, words: dict[str, Any], tmp_path: Path) -> None:
    model = tiny.build(family, tiny.THREE)
    model.save_pretrained(tmp_path / "base")
    model = models.open_folder(tmp_path / "base", tiny.THREE, seed=0)
    before = tiny.logits(model, tiny.batch())
    tuned = LoRA(r=2, **words).apply(model)
    torch.testing.assert_close(tiny.logits(tuned, tiny.batch()), before, rtol=1e-5, atol=1e-6)  # DoRA divides by a norm
    tiny.disturb(tuned)
    wanted = tiny.logits(tuned, tiny.batch())
    assert (wanted - before).abs().max() > 1e-3
    tuned.save_pretrained(tmp_path / "tuned")
    kept = models.open_folder(tmp_path / "tuned", tiny.THREE, seed=0, merge=False)
    torch.testing.assert_close(tiny.logits(kept, tiny.batch()), wanted, rtol=1e-6, atol=1e-6)
    merged = models.open_folder(tmp_path / "tuned", tiny.THREE, seed=0)
    torch.testing.assert_close(tiny.logits(merged, tiny.batch()), wanted, rtol=1e-4, atol=1e-5)


def test_modules_to_save_are_trained_whole_beside_the_new_ones() -> None:
    plain = LoRA(r=2).apply(tiny.build("bert", tiny.THREE))
    more = LoRA(r=2, modules_to_save=("embeddings.LayerNorm",)).apply(tiny.build("bert", tiny.THREE))
    assert trained(more) == trained(plain) + 2 * DIM


@pytest.mark.parametrize(
    ("family", "known"), [("bert", "dense, key, query, value"), ("gpt2", "c_attn, c_fc, c_proj"), ("finery", "intermediate, key, output, query, value")]
)
def test_a_target_that_is_not_there_is_answered_with_what_is(family: str, known: str) -> None:
    for targets in (("nope",), ("nope", known.split(", ")[-1])):
        with pytest.raises(ModelError) as caught:
            LoRA(target_modules=targets).apply(tiny.build(family, tiny.THREE))
        assert str(caught.value) == (
            f"lora.target_modules nope: no linear layer of the model is named so; those that can have an update are {known}"
        )


def test_a_module_to_save_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match=r"lora.modules_to_save \['nope'\] match no module of the model; it has LayerNorm, "):
        LoRA(modules_to_save=("nope",)).apply(tiny.build("bert", tiny.THREE))


@pytest.mark.parametrize(
    ("words", "key"),
    [({"r": 0}, "r"), ({"lora_alpha": 0.0}, "lora_alpha"), ({"lora_dropout": 1.0}, "lora_dropout"), ({"target_modules": ()}, "target_modules"),
     ({"target_modules": "query"}, "target_modules"), ({"bias": "some"}, "bias"), ({"rank": 8}, "rank")],
)  # fmt: skip
def test_settings_out_of_bounds_are_refused(words: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        LoRA.model_validate({"name": "lora", **words})

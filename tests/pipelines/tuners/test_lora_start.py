"""PiSSA and OLoRA: what the updates take over, that nothing is lost, and that plain LoRA is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from pipelines.core.errors import IncompatibleError
from pipelines.models import opening
from pipelines.tuners.lora import LoRA
from tests import tiny

VARIANTS: list[dict[str, Any]] = [
    {},
    {"use_dora": True},
    {"use_rslora": True, "rank_pattern": {"query|c_attn": 2}, "alpha_pattern": {"key|c_fc": 3.0}},
]
STARTS = ("pissa", "pissa_niter_16", "olora")


def layer(model: Any, family: str) -> Any:
    body = model.base_model.model
    return body.transformer.h[0].mlp.c_fc if family == "gpt2" else body.bert.encoder.layer[0].attention.self.query


def base(family: str, folder: Path) -> Any:
    if not folder.exists():
        tiny.build(family, tiny.THREE).save_pretrained(folder)
    return opening.open_folder(folder, tiny.THREE, seed=0)


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_the_matrices_are_those_of_peft(start: str, tmp_path: Path) -> None:
    ours = LoRA(r=4, lora_alpha=6, init_lora_weights=start, target_modules=("query",)).apply(
        base("bert", tmp_path / "base")
    )
    config = LoraConfig(r=4, lora_alpha=6, init_lora_weights=start, target_modules=["query"])
    theirs = get_peft_model(base("bert", tmp_path / "base"), config)
    mine, other = layer(ours, "bert"), layer(theirs, "bert")
    product, expected = (each.lora_B["default"].weight @ each.lora_A["default"].weight for each in (mine, other))
    close = {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(product, expected, **close)  # the factors may differ in sign
    torch.testing.assert_close(mine.base_layer.weight, other.base_layer.weight, **close)


def test_pissa_leaves_the_small_singular_values_to_the_base(tmp_path: Path) -> None:
    whole = base("gpt2", tmp_path / "base").transformer.h[0].mlp.c_fc.weight.detach().clone()
    tuned = LoRA(r=4, init_lora_weights="pissa").apply(base("gpt2", tmp_path / "base"))
    values = torch.linalg.svdvals(whole)
    rest = torch.linalg.svdvals(layer(tuned, "gpt2").base_layer.weight)
    torch.testing.assert_close(rest[:28], values[4:], rtol=1e-4, atol=1e-6)
    assert rest[28:].max() < 1e-5


def test_the_fast_start_finds_what_the_exact_one_does_where_singular_values_fall(tmp_path: Path) -> None:
    found = []
    for start in ("pissa", "pissa_niter_4"):
        model = base("bert", tmp_path / "base")
        with torch.no_grad():
            weight = model.bert.encoder.layer[0].attention.self.query.weight
            left, _, right = torch.linalg.svd(weight)
            weight.copy_(left @ torch.diag(2.0 ** -torch.arange(32)) @ right)
        tuned = layer(LoRA(r=4, init_lora_weights=start).apply(model), "bert")
        found.append(tuned.lora_B["default"].weight @ tuned.lora_A["default"].weight)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_olora_begins_with_orthonormal_columns_on_a_transposed_matrix_too(tmp_path: Path) -> None:
    tuned = layer(LoRA(r=4, init_lora_weights="olora").apply(base("gpt2", tmp_path / "base")), "gpt2")
    b = tuned.lora_B["default"].weight
    assert b.shape == (128, 4)
    assert tuned.lora_A["default"].weight.shape == (4, 32)
    torch.testing.assert_close(b.T @ b, torch.eye(4), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("words", VARIANTS, ids=lambda words: "-".join(words) or "plain")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_what_is_saved_is_plain_lora_on_the_base_as_it_was(
    family: str, start: str, words: dict[str, Any], tmp_path: Path
) -> None:
    block = LoRA(r=4, init_lora_weights=start, **words)
    model = base(family, tmp_path / "base")
    before = tiny.logits(model, tiny.batch())
    tuned = block.apply(model)
    torch.testing.assert_close(tiny.logits(tuned, tiny.batch()), before, rtol=1e-5, atol=1e-6)
    tiny.disturb(tuned)
    wanted = tiny.logits(tuned, tiny.batch())
    assert (wanted - before).abs().max() > 1e-3
    block.save(tuned, tmp_path / "tuned")
    config = json.loads((tmp_path / "tuned" / "adapter_config.json").read_text())
    assert config["r"] == 8
    assert config["init_lora_weights"] is True
    alone = PeftModel.from_pretrained(base(family, tmp_path / "base"), str(tmp_path / "tuned"))
    torch.testing.assert_close(tiny.logits(alone, tiny.batch()), wanted, rtol=1e-4, atol=1e-6)
    with alone.disable_adapter():
        assert torch.equal(tiny.logits(alone, tiny.batch()), before)
    merged = opening.open_folder(tmp_path / "tuned", tiny.THREE, seed=0)
    torch.testing.assert_close(tiny.logits(merged, tiny.batch()), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("start", STARTS)
def test_the_same_base_is_found_again_for_a_checkpoint_of_the_middle(start: str, tmp_path: Path) -> None:
    block = LoRA(r=4, init_lora_weights=start)
    first = block.apply(base("bert", tmp_path / "base"))
    tiny.disturb(first)
    first.save_pretrained(tmp_path / "middle")  # as the Trainer does
    torch.manual_seed(12345)
    again = block.apply(base("bert", tmp_path / "base"))
    again.load_adapter(str(tmp_path / "middle"), "default", is_trainable=True)
    assert torch.equal(tiny.logits(again, tiny.batch()), tiny.logits(first, tiny.batch()))
    for folder, model in (("a", first), ("b", again)):
        block.save(model, tmp_path / folder)
    saved = [(tmp_path / folder / "adapter_model.safetensors").read_bytes() for folder in ("a", "b")]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("start", STARTS)
def test_a_start_leaves_the_random_numbers_of_training_alone(start: str, tmp_path: Path) -> None:
    drawn = []
    for begins in (True, start):
        model = base("bert", tmp_path / "base")
        torch.manual_seed(3)
        LoRA(r=4, init_lora_weights=begins).apply(model)
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def test_a_rank_beyond_a_matrix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        IncompatibleError,
        match=r"lora: the rank of 'bert.encoder.layer.0.attention.self.query' is 40, but its matrix of 32 x 32 has no more than 32",
    ):
        LoRA(r=40, init_lora_weights="pissa").apply(base("bert", tmp_path / "base"))

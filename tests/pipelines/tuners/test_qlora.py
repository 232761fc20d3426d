"""QLoRA: what is kept in 4 bits, what learns beside it, and what is said where that cannot be."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from pipelines.core.errors import IncompatibleError
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.models import opening, quantization
from pipelines.runs.run import run
from pipelines.runs.workspace import StageStore
from pipelines.tuners.qlora import QLoRA
from tests import tiny

RECIPE = """\
name: four-bits
model:
  architecture: {preset: bert-tiny, hidden_size: 64, intermediate_size: 128, max_position_embeddings: 64}
tokenizer: {train: bpe, vocab_size: 500}
stages:
  - stage: supervised
    task: builtin/python-docs
    tuner: {name: qlora, r: 4}
    max_length: 32
    max_train_samples: 16
    arguments: {max_steps: 2, global_batch_size: 8}
"""
needs_bitsandbytes = pytest.mark.skipif(
    QLoRA().unavailable_reason() is not None, reason=f"this machine {QLoRA().unavailable_reason()}"
)


def test_a_recipe_is_valid_anywhere_and_refused_before_anything_loads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe = loads(RECIPE)
    monkeypatch.setattr("pipelines.tuners.qlora.find_spec", lambda name: None)
    monkeypatch.setattr(opening, "build", lambda *words: pytest.fail("a model was built"))
    with pytest.raises(IncompatibleError) as caught:
        run(recipe, tmp_path / "run", StageStore(tmp_path / "home"))
    assert str(caught.value) == (
        "stage 'supervised': the tuner qlora keeps weights in 4 bits, for which bitsandbytes is not installed: "
        "pip install 'finery[qlora]', or take `tuner: lora` here, or run on a machine that has it"
    )
    assert not list((tmp_path / "run").glob("stages/*"))


def test_a_bitsandbytes_without_a_backend_for_the_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stub: Any = types.ModuleType("bitsandbytes")
    stub.__version__, stub.supported_torch_devices = "0.99.0", {"hpu"}
    monkeypatch.setitem(sys.modules, "bitsandbytes", stub)
    monkeypatch.setattr("pipelines.tuners.qlora.find_spec", lambda name: True)
    monkeypatch.setattr("transformers.utils.import_utils.is_bitsandbytes_available", lambda: True)
    device = torch.accelerator.current_accelerator()
    kind = "cpu" if device is None else device.type
    assert QLoRA().unavailable_reason() == (
        f"keeps weights in 4 bits, for which bitsandbytes 0.99.0 has no backend on '{kind}'; take `tuner: lora` here, or run on a machine that has it"
    )
    monkeypatch.setattr("transformers.utils.import_utils.is_bitsandbytes_available", lambda: False)
    assert "but 0.99.0 is installed; update it" in str(QLoRA().unavailable_reason())


def test_a_start_that_changes_the_base_is_refused() -> None:
    with pytest.raises(
        ValidationError, match="is pissa, which changes the base, but weights of 4 bits stay as they are"
    ):
        QLoRA.model_validate({"init_lora_weights": "pissa"})


def test_the_words_are_those_of_the_live_config() -> None:
    from transformers import BitsAndBytesConfig

    words = quantization.settled(QLoRA().quantization, "bf16")
    assert words is not None
    live = BitsAndBytesConfig(**words)
    assert (live.load_in_4bit, live.bnb_4bit_quant_type, live.bnb_4bit_use_double_quant) == (True, "nf4", True)
    assert live.bnb_4bit_compute_dtype == torch.bfloat16
    asked = quantization.settled(QLoRA(bnb_4bit_compute_dtype="float16").quantization, "bf16")
    assert asked is not None
    assert asked["bnb_4bit_compute_dtype"] == "float16"
    assert quantization.settled(None, "no") is None


@pytest.mark.parametrize(
    ("family", "head", "kept"),
    [
        ("bert", tiny.THREE, {"dropout", "classifier", "bert.pooler"}),
        ("gpt2", tiny.THREE, {"score"}),
        ("bert", tiny.MASKED, {"cls", "cls.predictions.decoder"}),
        ("t5", Head("seq2seq_lm"), {"lm_head"}),
        ("finery", tiny.THREE, {"dropout", "classifier", "model.pooler"}),
    ],
)
def test_heads_and_poolers_stay_whole(family: str, head: Head, kept: set[str]) -> None:
    assert set(quantization.kept_whole(tiny.build(family, head))) == kept


WIDER = {"bert": {"hidden_size": 64, "intermediate_size": 128}, "t5": {"d_model": 64, "d_kv": 32, "d_ff": 128}}
"""Blocks of 64 weights: on a CPU bitsandbytes wants whole ones in each row."""


@needs_bitsandbytes
@pytest.mark.parametrize("family", ["bert", "t5", "finery"])
def test_the_matrices_of_the_body_are_in_four_bits_and_nothing_else(family: str, tmp_path: Path) -> None:
    import bitsandbytes
    from bitsandbytes.functional import dequantize_4bit

    head = tiny.MASKED if family != "t5" else Head("seq2seq_lm")
    tiny.build(family, head, **WIDER.get(family, WIDER["bert"])).save_pretrained(tmp_path / "base")
    words = quantization.settled(QLoRA().quantization, "no")
    model = opening.open_folder(tmp_path / "base", tiny.THREE, seed=0, quantization=words)
    whole = opening.open_folder(tmp_path / "base", tiny.THREE, seed=0)
    assert model.finery_new_modules == whole.finery_new_modules
    packed = {name for name, module in model.named_modules() if isinstance(module, bitsandbytes.nn.Linear4bit)}
    prefix = f"{model.base_model_prefix}."
    assert packed == {
        name
        for name, module in whole.named_modules()
        if isinstance(module, torch.nn.Linear)
        and name.startswith(prefix)
        and "pooler" not in name
        and not name.endswith(".wo")  # transformers keeps T5's in float32: float16 overflows there
    }
    steps = [
        -1.0,
        -0.6961928,
        -0.52507305,
        -0.39491749,
        -0.28444138,
        -0.18477343,
        -0.09105004,
        0.0,
        0.0795803,
        0.1609302,
        0.2461123,
        0.33791524,
        0.44070983,
        0.562617,
        0.72295684,
        1.0,
    ]
    name = sorted(packed)[0]
    weight = model.get_submodule(name).weight
    unpacked = dequantize_4bit(weight.data, weight.quant_state)
    blocks = whole.get_submodule(name).weight.detach().reshape(-1, 64)
    largest = blocks.abs().max(1, keepdim=True).values
    nearest = torch.tensor(steps)[((blocks / largest)[..., None] - torch.tensor(steps)).abs().argmin(-1)] * largest
    torch.testing.assert_close(unpacked.reshape(-1, 64), nearest, rtol=0.02, atol=0.002)  # the scales are quantized too


@needs_bitsandbytes
def test_the_updates_learn_beside_frozen_four_bits_and_are_plain_lora(tmp_path: Path) -> None:
    tiny.build("bert", tiny.MASKED, **WIDER["bert"]).save_pretrained(tmp_path / "base")
    model = opening.open_folder(
        tmp_path / "base", tiny.THREE, seed=0, quantization=quantization.settled(QLoRA().quantization, "no")
    )
    tuned = QLoRA(r=2).apply(model)
    tuned(**tiny.batch()).logits.square().sum().backward()
    learning = {name for name, weight in tuned.named_parameters() if weight.requires_grad}
    assert all("lora_" in name or "modules_to_save" in name for name in learning)
    assert any(
        weight.grad is not None and weight.grad.any() for name, weight in tuned.named_parameters() if "lora_B" in name
    )
    tiny.disturb(tuned)
    wanted = tiny.logits(tuned, tiny.batch())
    QLoRA().save(tuned, tmp_path / "tuned")
    opened = opening.open_folder(tmp_path / "tuned", tiny.THREE, seed=0)
    found = tiny.logits(opened, tiny.batch())
    assert not torch.equal(found, wanted)  # the base is the checkpoint's own
    torch.testing.assert_close(found, wanted, rtol=0.1, atol=0.1)


@needs_bitsandbytes
def test_a_whole_run_learns_beside_four_bits(tmp_path: Path) -> None:
    run(loads(RECIPE), tmp_path / "run", StageStore(tmp_path / "home"))
    stage = next((tmp_path / "run" / "stages").iterdir())
    assert (stage / "model" / "adapter_model.safetensors").is_file()
    assert (stage / "base" / "model.safetensors").is_file()


def test_a_plan_counts_what_four_bits_save() -> None:
    from pipelines.runs.planning.plan import packed_bytes, plan

    double, single = (packed_bytes(QLoRA(bnb_4bit_use_double_quant=each).quantization) for each in (True, False))
    assert double * 8 == pytest.approx(
        4.127, abs=1e-3
    )  # section 3 of the paper: 0.127 bits a weight for the scales, down from 0.5
    assert single * 8 == 4.5
    packed, whole = (plan(loads(RECIPE.replace("qlora", name))).stages[0] for name in ("qlora", "lora"))
    assert packed.trainable_parameters == whole.trainable_parameters
    assert packed.memory is not None
    assert whole.memory is not None
    matrices = 2 * (4 * 64 * 64 + 2 * 64 * 128)
    assert math.isclose(whole.memory.weights - packed.memory.weights, matrices * (4 - double), abs_tol=1)

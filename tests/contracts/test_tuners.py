"""What every tuner must do, on every kind of encoder and head: what is in the table is tested, a new entry at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines import models
from pipelines.blocks import Block
from pipelines.protocols import Head
from pipelines.registry import TUNERS
from tests import tiny

FAMILIES = ("finery", "bert", "distilbert")
HEADS = {"masked_lm": tiny.MASKED, "three_classes": tiny.THREE, "number": tiny.NUMBER}
CASES = [(tuner, family, head) for tuner in TUNERS for family in FAMILIES for head in HEADS]
ADAPTERS = [name for name in TUNERS if TUNERS.load(name).adapts]
every_case = pytest.mark.parametrize(("tuner", "family", "head"), CASES, ids=["-".join(case) for case in CASES])


def block(name: str) -> Any:
    return TUNERS.load(name)(name=name)


@pytest.fixture
def base(tmp_path: Path) -> Any:
    """`base(family, head)`: a model pretrained on masked tokens, opened from its folder with that head."""

    def build(family: str, head: Head) -> Any:
        folder = tmp_path / "base"
        if not folder.exists():
            pretrained = tiny.build(family, tiny.MASKED, seed=5)
            tiny.disturb(pretrained, by=0.05)
            pretrained.save_pretrained(folder)
        model = models.open_folder(folder, head, seed=1)
        if model.finery_new_modules:  # the head too is to be found again
            model.save_pretrained(tmp_path / "with-head")
            fresh = model.finery_new_modules
            model = models.open_folder(tmp_path / "with-head", head, seed=2)
            assert model.finery_new_modules == []
            model.finery_new_modules = fresh
        return model

    return build


def saved(model: Any, head: Head, folder: Path) -> Path:
    model.save_pretrained(folder)
    (folder / "head.json").write_text(json.dumps({"kind": head.kind, "labels": list(head.labels)}))
    return folder


def three_steps(model: Any, head: Head) -> None:
    """Three updates by AdamW with a large learning rate."""
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        said = model.train()(**tiny.batch(seed=step)).logits
        optimizer.zero_grad()
        (said - torch.randn(said.shape, generator=generator)).square().mean().backward()
        optimizer.step()


@every_case
def test_it_begins_where_the_base_was(tuner: str, family: str, head: str, base: Any) -> None:
    model = base(family, HEADS[head])
    before = tiny.logits(model, tiny.batch())
    assert torch.equal(tiny.logits(block(tuner).apply(model), tiny.batch()), before)


@every_case
def test_only_what_it_claims_learns(tuner: str, family: str, head: str, base: Any) -> None:
    model = block(tuner).apply(base(family, HEADS[head]))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    three_steps(model, HEADS[head])
    after = dict(model.named_parameters())
    claimed = {name for name, weight in after.items() if weight.requires_grad}
    assert claimed
    moved = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    silent = {name for name in claimed - moved if after[name].grad is None or not after[name].grad.any()}  # unused
    assert moved <= claimed
    assert claimed - moved <= silent
    assert len(silent) <= 0.1 * len(claimed), silent


@every_case
def test_a_trained_model_is_saved_and_opened_unchanged(tuner: str, family: str, head: str, base: Any, tmp_path: Path) -> None:
    model = block(tuner).apply(base(family, HEADS[head]))
    three_steps(model, HEADS[head])
    wanted = tiny.logits(model, tiny.batch())
    folder = saved(model, HEADS[head], tmp_path / "tuned")
    assert not list(folder.glob("*.bin"))
    plain = models.open_folder(folder, HEADS[head], seed=9, merge=False)
    assert torch.equal(tiny.logits(plain, tiny.batch()), wanted)
    merged = models.open_folder(folder, HEADS[head], seed=9)
    assert merged.finery_new_modules == []
    assert not hasattr(merged, "peft_config") or not merged.peft_config
    torch.testing.assert_close(tiny.logits(merged, tiny.batch()), wanted, rtol=1e-5, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    again = models.open_folder(tmp_path / "merged", HEADS[head], seed=10, trained_head=True)
    torch.testing.assert_close(tiny.logits(again, tiny.batch()), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tuner", ADAPTERS)
def test_an_adapter_can_be_taken_off(tuner: str, family: str, head: str, base: Any) -> None:
    model = base(family, HEADS[head])
    before = tiny.logits(model, tiny.batch())
    tuned = block(tuner).apply(model)
    three_steps(tuned, HEADS[head])
    assert not torch.equal(tiny.logits(tuned, tiny.batch()), before)
    with tuned.disable_adapter():
        assert torch.equal(tiny.logits(tuned, tiny.batch()), before)


@pytest.mark.parametrize("tuner", ADAPTERS)
def test_an_adapter_is_read_by_peft_alone(tuner: str, base: Any, tmp_path: Path) -> None:
    model = block(tuner).apply(base("bert", tiny.THREE))
    three_steps(model, tiny.THREE)
    saved(model, tiny.THREE, tmp_path / "tuned")
    torch.save((tiny.batch(), tiny.logits(model, tiny.batch())), tmp_path / "expected.pt")
    code = (
        "import sys, torch\n"
        "from peft import PeftModel\nfrom transformers import AutoModelForSequenceClassification\n"
        f"base = AutoModelForSequenceClassification.from_pretrained({str(tmp_path / 'with-head')!r}, attn_implementation='eager')\n"
        f"model = PeftModel.from_pretrained(base, {str(tmp_path / 'tuned')!r}).eval()\n"
        f"batch, expected = torch.load({str(tmp_path / 'expected.pt')!r})\n"
        "with torch.no_grad():\n    assert torch.equal(model(**batch).logits, expected)\n"
        "assert not [name for name in sys.modules if name.startswith('pipelines')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tuner", TUNERS)
def test_pretraining_does_not_change_what_is_trained(tuner: str, family: str, base: Any) -> None:
    scratch = block(tuner).apply(tiny.build(family, tiny.TWO))
    pretrained = block(tuner).apply(base(family, tiny.TWO))

    def trained(model: Any) -> dict[str, torch.Size]:
        return {name: weight.shape for name, weight in model.named_parameters() if weight.requires_grad}

    assert trained(scratch) == trained(pretrained)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tuner", TUNERS)
def test_it_learns_under_autocast_and_activation_checkpointing(tuner: str, family: str, base: Any) -> None:
    model = block(tuner).apply(base(family, tiny.THREE))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        said = model(**tiny.batch()).logits
    said.float().square().sum().backward()
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    assert all(weight.dtype == torch.float32 for weight in learning)
    reached = [weight for weight in learning if weight.grad is not None and weight.grad.any()]
    assert len(reached) >= len(learning) // 3  # a zero on one side of a product stops the other's first gradient
    assert all(torch.isfinite(weight.grad).all() for weight in reached)


@pytest.mark.parametrize("name", TUNERS)
def test_it_is_a_block_that_answers_without_heavy_libraries(name: str) -> None:
    assert issubclass(TUNERS.load(name), Block)
    assert isinstance(block(name).adapts, bool)
    assert TUNERS.load(name).__doc__
    assert all(field.description for key, field in TUNERS.load(name).model_fields.items() if key != "name")
    heavy = ("torch", "transformers", "peft", "numpy")
    code = f"import sys, {TUNERS.module(name)}; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

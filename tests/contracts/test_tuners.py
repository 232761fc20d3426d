"""What every tuner must do, on every family and head it can serve: what is in the table is tested, a new entry at
once.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.core.config import Block
from pipelines.core.interfaces import Head
from pipelines.core.registry import TUNERS
from pipelines.models import opening
from pipelines.runs.planning.model_size import ForeignShape, OwnShape
from tests import strangers, tiny
from tests.contracts import tuner_cases as cases
from tests.contracts.tuner_cases import bases
from tests.covering import covering

__all__ = ["bases"]

ADAPTERS = [name for name in TUNERS if TUNERS.load(name).adapts]


def marked(chosen: list[tuple[str, str, str]], **choices: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("tuner", "family", "head"), covering(chosen, **choices))


FAMILIES = ("finery-decoder", "bert", "gpt2", "t5")
CLASSIFIERS = [case for case in cases.CASES if case[2] == "sequences"]
TURNS = [(tuner, FAMILIES[(at + turn) % 4], "sequences") for at, tuner in enumerate(TUNERS) for turn in range(4)]
in_turn = marked([case for case in TURNS if case in cases.CASES])
"""Each tuner on one family, each on another."""
counted = marked(
    [case for case in CLASSIFIERS if case[1] in FAMILIES and not cases.block(case[0]).stages],
    ways=lambda tuner, family, head: {(tuner, family.startswith("finery")), family},
)
"""Each tuner on a family of our own and on a foreign one; what builds on other stages is there only after them."""
each_tuner = pytest.mark.parametrize("tuner", TUNERS)


def saved(block: Any, model: Any, head: Head, folder: Path) -> Path:
    block.save(model, folder)
    (folder / "head.json").write_text(json.dumps({"kind": head.kind, "labels": list(head.labels)}))
    return folder


def three_steps(model: Any, head: str, rate: float = 1e-2) -> None:
    """Three updates by AdamW with a large learning rate."""
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=rate)
    for step in range(3):
        optimizer.zero_grad()
        cases.loss(model.train(), head, seed=step).backward()
        optimizer.step()


@each_tuner
def test_it_serves_a_classifier_or_says_in_a_sentence_why_not(tuner: str) -> None:
    assert (tuner, "finery-encoder", "sequences") in cases.CASES
    for family, head in cases.GRID:
        sentence = cases.block(tuner).misfit(cases.words_of(family), cases.HEADS[head].kind)
        assert sentence is None or (sentence.strip() == sentence and not sentence.endswith("."))


@cases.every_way
def test_it_begins_learns_is_taken_off_and_comes_back_as_it_promises(
    tuner: str, family: str, head: str, bases: cases.Bases, tmp_path: Path
) -> None:
    before = cases.answers(bases.model(family, head), head)
    block, model = bases.tuned(tuner, family, head)
    first = cases.answers(model, head)
    assert first.shape == before.shape
    assert torch.equal(first, before) == block.begins_at_base
    what_learns_is_what_asks_for_gradients(model, head)
    wanted = cases.answers(model, head)
    if block.adapts:
        assert not torch.equal(wanted, before)
        with model.disable_adapter():
            assert torch.equal(cases.answers(model, head), before)
        assert torch.equal(cases.answers(model, head), wanted)
    folder = saved(block, model, cases.HEADS[head], tmp_path / "tuned")
    assert not list(folder.glob("*.bin"))
    beside = opening.open_folder(folder, cases.HEADS[head], seed=9, merge=False)
    assert torch.equal(cases.answers(beside, head), wanted)
    opened = opening.open_folder(folder, cases.HEADS[head], seed=9)
    assert opened.finery_new_modules == []
    torch.testing.assert_close(cases.answers(opened, head), wanted, rtol=1e-5, atol=1e-5)
    assert bool(getattr(opened, "peft_config", None)) == (block.adapts and not block.merges)
    if block.adapts and block.merges:
        opened.save_pretrained(tmp_path / "merged")
        again = opening.open_folder(tmp_path / "merged", cases.HEADS[head], seed=10, trained_head=True)
        torch.testing.assert_close(cases.answers(again, head), wanted, rtol=1e-5, atol=1e-5)


def what_learns_is_what_asks_for_gradients(model: Any, head: str) -> None:
    claimed = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert claimed
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    three_steps(model, head)
    after = dict(model.named_parameters())
    moved = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    silent = {name for name in claimed - moved if after[name].grad is None or not after[name].grad.any()}
    assert moved <= claimed
    assert claimed - moved <= silent  # what gets no gradient: a pooler that this head does not read
    assert len(silent) <= 0.1 * len(claimed), silent


@marked([case for case in TURNS if case[0] in ADAPTERS and case in cases.CASES])
def test_two_adapters_on_one_base_do_not_disturb_each_other(
    tuner: str, family: str, head: str, bases: cases.Bases, tmp_path: Path
) -> None:
    wanted = {}
    for name, rate in (("first", 1e-2), ("second", 3e-2)):
        block, model = bases.tuned(tuner, family, head)
        three_steps(model, head, rate)
        wanted[name] = cases.answers(model, head)
        saved(block, model, cases.HEADS[head], tmp_path / name)
    assert not torch.equal(wanted["first"], wanted["second"])
    model = opening.open_folder(tmp_path / "first", cases.HEADS[head], seed=9, merge=False)
    model.load_adapter(str(tmp_path / "second"), "second")
    for name in ("default", "second", "default"):
        model.set_adapter(name)
        assert torch.equal(cases.answers(model, head), wanted["first" if name == "default" else name])
    model.set_adapter("second")
    model.delete_adapter("default")
    assert torch.equal(cases.answers(model, head), wanted["second"])


@in_turn
def test_recomputed_activations_give_the_same_gradients(tuner: str, family: str, head: str, bases: cases.Bases) -> None:
    gradients = []
    for recomputed in (False, True):
        _, model = bases.tuned(tuner, family, head)
        tiny.disturb(model, by=0.05)  # where one side of a product is zero the other has no gradient yet
        if recomputed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        cases.loss(model.train(), head).backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad})
    plain, again = gradients
    assert any(gradient is not None and gradient.any() for gradient in plain.values())
    for name, gradient in plain.items():
        assert (gradient is None) == (again[name] is None), name
        if gradient is not None:
            torch.testing.assert_close(again[name], gradient, rtol=1e-4, atol=1e-5)  # rounding: the pass is made twice


@in_turn
def test_it_learns_in_bfloat16(tuner: str, family: str, head: str, bases: cases.Bases) -> None:
    _, model = bases.tuned(tuner, family, head)
    tiny.disturb(model, by=0.05)
    exact = cases.loss(model.train(), head)
    exact.backward()
    learning = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    expected = torch.cat([weight.grad.flatten() for weight in learning.values() if weight.grad is not None])
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = cases.loss(model, head)
    rounded.backward()
    assert all(weight.dtype == torch.float32 for weight in learning.values())
    found = torch.cat([weight.grad.flatten() for weight in learning.values() if weight.grad is not None])
    assert rounded.item() == pytest.approx(exact.item(), rel=0.02)
    assert torch.cosine_similarity(found, expected, dim=0) > 0.98


READ_ALONE = """
import sys, torch
from importlib import import_module
from peft import PeftModel
from transformers import AutoModelForSequenceClassification
base, folder, modules = task["adapter"]
sys.path.insert(0, folder)
for name in modules:
    import_module(name)
base = AutoModelForSequenceClassification.from_pretrained(base, attn_implementation="eager")
model = PeftModel.from_pretrained(base, folder).eval()
batch, expected = torch.load(folder + "/expected.pt")
with torch.no_grad():
    assert torch.equal(model(**batch).logits, expected)
"""


@marked([case for case in CLASSIFIERS if case[0] in ADAPTERS and case[1] in ("bert", "gpt2")])
def test_an_adapter_is_read_by_peft_alone(
    tuner: str, family: str, head: str, bases: cases.Bases, tmp_path: Path
) -> None:
    """PEFT runs no code of an adapter: where it does not know the method, one module beside it is imported first."""
    block, model = bases.tuned(tuner, family, head)
    three_steps(model, head)
    folder = saved(block, model, cases.HEADS[head], tmp_path / family)
    torch.save((cases.batch(model, head), cases.answers(model, head)), folder / "expected.pt")
    modules = [path.stem for path in folder.glob("*.py")]
    strangers.run(READ_ALONE, tmp_path, adapter=(str(bases.folder / f"{family}-{head}"), str(folder), modules))


@marked([case for case in CLASSIFIERS if not cases.block(case[0]).stages and case[1] in ("bert", "t5")])
def test_pretraining_does_not_change_what_is_trained(tuner: str, family: str, head: str, bases: cases.Bases) -> None:
    """But for those that build on other stages: what they start from was learnt on the pretrained model."""
    block, pretrained = bases.tuned(tuner, family, head)
    model_type, words, _ = cases.FAMILIES[family]
    scratch = block.apply(tiny.build(model_type, cases.HEADS[head], vocab_size=cases.V, **words))

    def trained(model: Any) -> dict[str, torch.Size]:
        return {name: weight.shape for name, weight in model.named_parameters() if weight.requires_grad}

    assert trained(scratch) == trained(pretrained)
    assert trained(scratch)


@counted
def test_a_plan_counts_the_weights_that_learn(tuner: str, family: str, head: str, bases: cases.Bases) -> None:
    block, model = bases.tuned(tuner, family, head)
    words = {**cases.words_of(family), "vocab_size": cases.V}
    shape = OwnShape(words) if words["model_type"] == "finery" else ForeignShape(words)
    fresh = bases.model(family, head).finery_new_modules
    counted = shape.adapter(block, cases.HEADS[head], fresh)
    assert counted.learnt == sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    base = sum(weight.numel() for weight in bases.model(family, head).parameters())
    assert counted.added == sum(weight.numel() for weight in model.parameters()) - base
    assert shape.counts(cases.HEADS[head])["total"] == base


@each_tuner
def test_learning_rates_and_schedules_are_for_what_is_there(tuner: str, bases: cases.Bases) -> None:
    block, model = bases.tuned(tuner, "bert", "sequences")
    assert set(block.rates(model)) <= {name for name, _ in model.named_parameters()}
    assert all(rate > 0 for rate in block.rates(model).values())
    learning = Counter(weight.requires_grad for weight in model.parameters())
    block.unfreeze(model, 0)
    assert block.unfreezes or Counter(weight.requires_grad for weight in model.parameters()) == learning
    assert block.factor(1, 10) is None or block.factor(1, 10) >= 0


@pytest.mark.parametrize("name", TUNERS)
def test_it_is_a_block_with_explained_keys(name: str) -> None:
    tuner = cases.block(name)
    assert issubclass(TUNERS.load(name), Block)
    assert isinstance(tuner.adapts, bool)
    assert isinstance(tuner.merges, bool)
    assert tuner.positions >= 0
    assert TUNERS.load(name).__doc__
    assert {*TUNERS.load(name).model_fields} - {*TUNERS.load(name).descriptions()} <= {"name"}

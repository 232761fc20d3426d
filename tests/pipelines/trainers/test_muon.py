"""Muon: which weights it moves, by how much, with one learning rate, and that a stopped run ends with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import _muon
from transformers import get_scheduler

from pipelines.core.errors import RecipeError, Stopped
from pipelines.core.interfaces import Context
from pipelines.core.load import loads
from pipelines.trainers import muon
from pipelines.trainers.muon import MuonWithAdamW, matrices_of_layers, orthogonal
from tests import tiny
from tests.pipelines.trainers.test_trainer import classification_loss, examples, simple, weights

RECIPE = """\
name: one
model: {{architecture: {{preset: bert-tiny}}}}
tokenizer: {{train: wordpiece, vocab_size: 300}}
stages:
  - {stage}
"""


def optimizer_of(model: Any, **settings: Any) -> MuonWithAdamW:
    decayed = [name for name, weight in model.named_parameters() if weight.ndim > 1]
    given = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-8} | settings
    return MuonWithAdamW(model, decayed, **given)


def moved_by_muon(optimizer: MuonWithAdamW) -> list[torch.Tensor]:
    return [weight for group in optimizer.muon.param_groups for weight in group["params"]]


@pytest.mark.parametrize("family", ["bert", "gpt2", "finery"])
def test_it_moves_the_matrices_of_the_layers_and_adamw_the_rest(family: str):
    model = tiny.build(family, tiny.MASKED if family != "gpt2" else tiny.THREE)
    ours = {id(weight) for weight in matrices_of_layers(model)}
    for name, weight in model.named_parameters():
        in_a_layer = any(part.isdigit() for part in name.split("."))
        assert (id(weight) in ours) is (in_a_layer and weight.ndim == 2), name
    groups = optimizer_of(model).param_groups
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert {(group["by"], group["weight_decay"]) for group in groups} == {("Muon", 0.1), ("AdamW", 0.1), ("AdamW", 0)}


def test_a_frozen_weight_is_left_out_and_a_model_without_layers_refused():
    model = tiny.build("bert", tiny.MASKED)
    for name, weight in model.named_parameters():
        weight.requires_grad_("layer.1" in name)
    assert all("layer.1" in name for name, weight in model.named_parameters() if weight.requires_grad)
    assert len(moved_by_muon(optimizer_of(model))) == 6
    with pytest.raises(ValueError, match="no linear maps in a stack of layers"):
        optimizer_of(torch.nn.Linear(3, 3))


@pytest.mark.parametrize("fast", [True, False])
def test_an_update_is_an_orthogonal_matrix_scaled_by_its_longer_side(fast: bool, monkeypatch: pytest.MonkeyPatch):
    """Its singular values are near 1 times 0.2 √max(rows, columns) times the rate, whatever the gradient's were."""
    monkeypatch.setattr(muon, "faster_in_bf16", lambda: fast)
    torch.manual_seed(0)
    model = torch.nn.ModuleDict(
        {"layers": torch.nn.ModuleList([torch.nn.Linear(24, 60, bias=False)]), "head": torch.nn.Linear(60, 2)}
    )
    (matrix,) = matrices_of_layers(model)
    before = matrix.detach().clone()
    matrix.grad = torch.randn(60, 24) * torch.logspace(-1, 1, 24)
    optimizer_of(model, weight_decay=0.0).step()
    scale = 0.01 * 0.2 * 60**0.5
    singular = torch.linalg.svdvals(before - matrix.detach()) / scale
    assert singular.min() > 0.5
    assert singular.max() < 1.3


@pytest.mark.parametrize("shape", [(24, 60), (60, 24), (24, 24)])
def test_newton_schulz_steps_in_float32_are_torchs_but_for_their_rounding(shape: tuple[int, int]):
    torch.manual_seed(0)
    matrix, settings = torch.randn(shape), ((3.4445, -4.775, 2.0315), 5, 1e-7)
    theirs = _muon._zeropower_via_newtonschulz(matrix, *settings)
    ours = orthogonal(matrix, *settings)
    assert theirs.dtype == torch.bfloat16, "torch may have an option for the precision: take it, and drop `in_float32`"
    assert ours.dtype == torch.float32
    assert (theirs - ours).norm() < 0.02 * ours.norm()


@pytest.mark.parametrize("fast", [True, False])
def test_a_processor_that_is_slow_in_bfloat16_takes_the_steps_in_float32(fast: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(muon, "faster_in_bf16", lambda: fast)
    asked: list[Any] = []
    monkeypatch.setattr(muon, "orthogonal", lambda *given, was=orthogonal: asked.append(given) or was(*given))
    model = tiny.build("bert", tiny.MASKED)
    optimizer = optimizer_of(model)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape)
    theirs = _muon._zeropower_via_newtonschulz
    optimizer.step()
    assert len(asked) == (0 if fast else len(moved_by_muon(optimizer)))
    assert _muon._zeropower_via_newtonschulz is theirs


def test_what_adamw_moves_is_moved_as_by_adamw_alone():
    model, plain = tiny.build("bert", tiny.MASKED), tiny.build("bert", tiny.MASKED)
    optimizer = optimizer_of(model)
    others = {id(weight) for weight in moved_by_muon(optimizer)}
    alone = torch.optim.AdamW(plain.parameters(), lr=0.01, weight_decay=0.1)
    torch.manual_seed(0)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
    optimizer.step()
    alone.step()
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        if id(one) not in others and one.ndim > 1:
            torch.testing.assert_close(one, other, msg=name)


def test_one_schedule_reaches_both():
    optimizer = optimizer_of(tiny.build("bert", tiny.MASKED))
    scheduler = get_scheduler("linear", optimizer, 2, 10)
    rates = set()
    for _ in range(3):
        rates.add(tuple(group["lr"] for group in optimizer.param_groups))
        optimizer.step()
        scheduler.step()
    assert rates == {(0.0,) * 3, (0.005,) * 3, (0.01,) * 3}


def test_a_stop_resumes_to_the_bit(context: Callable[..., Context]):
    def go(place: Context, loss: Any = classification_loss) -> Any:
        return simple(place, examples("classification"), arguments={"max_steps": 4, "optim": "muon"}, loss=loss)

    whole, metrics = go(context("whole"))
    assert metrics["train_steps"] == 4
    first, calls = context("stopped"), []

    def stopping(model: Any, inputs: Any) -> Any:
        calls.append(1)
        first.stop.requested = len(calls) == 3
        return classification_loss(model, inputs)

    with pytest.raises(Stopped, match="at step 3 of 4"):
        go(first, stopping)
    resumed, _ = go(context("stopped"))
    expected = weights(whole)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(resumed).items())
    plain, _ = simple(context("plain"), examples("classification"), arguments={"max_steps": 4})
    assert not any(
        torch.equal(weight, expected[name]) for name, weight in weights(plain).items() if "query.weight" in name
    )


@pytest.mark.parametrize(
    ("stage", "what"),
    [
        ("{stage: supervised, task: glue/rte, arguments: {optim: muon}}", "supervised stages"),
        (
            "{stage: pretrain, datasets: [{path: builtin/python-docs}], tuner: lora, arguments: {optim: muon}}",
            "the tuner lora",
        ),
        (
            "{stage: pretrain, datasets: [{path: builtin/python-docs}], tuner: bitfit, arguments: {optim: muon}}",
            "the tuner bitfit",
        ),
    ],
)
def test_it_is_for_pretraining_all_weights(stage: str, what: str):
    with pytest.raises(RecipeError, match=f"is muon, which is for pretraining all weights and not for {what}"):
        loads(RECIPE.format(stage=stage))
    loads(RECIPE.format(stage="{stage: pretrain, datasets: [{path: builtin/python-docs}], arguments: {optim: muon}}"))

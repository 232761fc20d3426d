"""Norms that hand out bfloat16: what they say and learn is what they would in float32, rounded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pipelines.models import bfloat16_norms as module
from pipelines.models.bfloat16_norms import bfloat16_norms, multiplies_bfloat16


@pytest.fixture(autouse=True)
def on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: True)


def norms() -> nn.ModuleList:
    torch.manual_seed(0)
    made = nn.ModuleList(
        [nn.LayerNorm(64), nn.LayerNorm(64, bias=False), nn.LayerNorm(64, elementwise_affine=False, eps=1e-3)]
    )
    for weight in made.parameters():
        nn.init.normal_(weight, 1.0)
    return made


def states() -> torch.Tensor:
    return (torch.randn(4, 9, 64, generator=torch.Generator().manual_seed(1)) * 3 + 1).requires_grad_()


def learnt(norm: nn.Module, given: torch.Tensor) -> list[torch.Tensor]:
    """What the norm says, and the gradients of what it was given and of its weights."""
    said = norm(given)
    found = torch.autograd.grad(said.float().sin().sum(), [given, *norm.parameters()])
    return [said.detach(), *found]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_it_says_and_learns_what_it_would_in_float32(at: int) -> None:
    model = norms()
    with torch.autocast("cpu", torch.bfloat16):
        exact = learnt(model[at], states())
        with bfloat16_norms(model, learns=True):
            found = learnt(model[at], states())
    assert exact[0].dtype is torch.float32
    assert found[0].dtype is torch.bfloat16
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.02, atol=0.02 * float(other.abs().max()))
    assert [each.dtype for each in found[1:]] == [torch.float32] * (len(found) - 1)


def test_a_model_that_only_asks_is_exact_where_a_gradient_may_be_needed() -> None:
    model = norms()
    with torch.autocast("cpu", torch.bfloat16), bfloat16_norms(model, learns=False):
        assert model[0](states()).dtype is torch.float32
        with torch.no_grad():
            assert model[0](states()).dtype is torch.bfloat16


def test_calls_outside_of_that_autocast_and_of_the_block_are_exact() -> None:
    model, given = norms(), states()
    plain = model[0](given)
    with bfloat16_norms(model, learns=True):
        assert torch.equal(model[0](given), plain)
        with torch.autocast("cpu", torch.float16):
            assert model[0](given).dtype is not torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model[0](given), plain)
    with pytest.raises(ZeroDivisionError), bfloat16_norms(model, learns=True):
        raise ZeroDivisionError
    assert not any("forward" in norm.__dict__ for norm in model)


@pytest.mark.parametrize("why", ["compiled", "changed", "in double precision", "elsewhere", "on a slow processor"])
def test_norms_that_are_left_alone(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = norms()
    if why == "compiled":
        model[1]._compiled_call_impl = model[1]._call_impl
    elif why == "changed":
        model[0].forward = theirs = lambda given: given
    elif why == "in double precision":
        model[0].double()
    elif why == "elsewhere":
        model[0].to("meta")
    else:
        monkeypatch.setattr(module, "multiplies_bfloat16", lambda: False)
    with bfloat16_norms(model, learns=True):
        assert model[0].__dict__.get("forward") is (theirs if why == "changed" else None)
        assert ("forward" in model[2].__dict__) is (why not in ("compiled", "on a slow processor"))
    assert model[0].__dict__.get("forward") is (theirs if why == "changed" else None)


@pytest.mark.parametrize(("flags", "serves"), [("avx2 avx512f avx512_bf16", True), ("amx_bf16", True), ("avx2", False)])
def test_processors_that_multiply_bfloat16(flags: str, serves: bool, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    assert multiplies_bfloat16(tmp_path) is serves

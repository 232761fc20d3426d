"""Layers laid out for oneDNN answer as they do plainly, and only where nothing is learnt."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from pipelines.models import bfloat16_norms, packed_linear
from pipelines.models.packed_linear import WORTH, packed, serves

AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: avx2 avx512f avx512_bf16\n"
INTEL = "vendor_id\t: GenuineIntel\nflags\t\t: avx2 avx512f avx512_bf16\n"
OLD = "vendor_id\t: AuthenticAMD\nflags\t\t: avx2\n"

in_bfloat16 = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="oneDNN refuses bfloat16 on a processor without AVX-512",
)


@pytest.fixture(autouse=True)
def on_every_processor(monkeypatch):
    monkeypatch.setattr(packed_linear, "serves", lambda dtype: True)
    monkeypatch.setattr(bfloat16_norms, "multiplies_bfloat16", lambda: True)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 256), nn.GELU(), Conv1D(192, 256), nn.Linear(192, 2), nn.Linear(2, 2)).eval()


def rows(count: int = 24) -> torch.Tensor:
    return torch.randn(2, count // 2, 128, generator=torch.Generator().manual_seed(1))


def is_packed(model: nn.Module) -> list[bool]:
    return ["forward" in each.__dict__ for each in model]


def test_float32_answers_are_those_of_the_plain_layers():
    model = network()
    with torch.inference_mode():
        expected = model(rows())
        with packed(model):
            assert is_packed(model) == [True, False, True, False, False]  # small ones are not worth it
            torch.testing.assert_close(model(rows()), expected, rtol=0, atol=1e-5)
            few = model(rows(2))
        assert not any(is_packed(model))
        assert torch.equal(few, model(rows(2)))  # too few to be worth a call of oneDNN


@in_bfloat16
@pytest.mark.parametrize("count", [2, 24])
def test_bfloat16_answers_are_those_of_autocast(count):
    model = network()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected = model(rows(count))
        with packed(model):
            assert is_packed(model)[:3] == [True, False, True]
            found = model(rows(count))
    assert found.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.016, atol=0.01)


@in_bfloat16
def test_for_few_texts_layers_stay_and_norms_do_not():
    model = with_norms()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        with packed(model, WORTH - 1):
            assert is_packed(model) == [True, False, True, True]
        with packed(model, WORTH):
            assert is_packed(model) == [True] * 4
    with torch.inference_mode(), packed(model, WORTH - 1):
        assert not any(is_packed(model))


def with_norms() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (
        nn.LayerNorm(128),
        nn.Linear(128, 256),
        nn.LayerNorm(256, bias=False),
        nn.LayerNorm(256, elementwise_affine=False),
    )
    return nn.Sequential(*layers).eval()


@in_bfloat16
def test_norms_compute_in_float32_and_hand_out_bfloat16():
    model = with_norms()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for norm, width in ((model[0], 128), (model[2], 256), (model[3], 256)):
            states = torch.randn(2, 12, width, generator=torch.Generator().manual_seed(1)) * 3 + 1
            expected = norm(states)
            with packed(model):
                found, of_halves = norm(states), norm(states.to(torch.bfloat16))
            assert expected.dtype is torch.float32
            assert found.dtype is of_halves.dtype is torch.bfloat16
            assert torch.equal(found, of_halves)
            torch.testing.assert_close(found.float(), expected, rtol=0.01, atol=0.02)


@in_bfloat16
def test_norms_stay_in_float32_where_products_do_or_a_gradient_is_needed():
    model = with_norms()
    with torch.no_grad(), packed(model):
        assert not any(is_packed(model)[at] for at in (0, 2, 3))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), packed(model):
        assert [is_packed(model)[at] for at in (0, 2, 3)] == [True, True, True]
        with torch.enable_grad():
            assert model[0](rows()).dtype is torch.float32
        with torch.autocast("cpu", enabled=False):
            assert model[0](rows()).dtype is torch.float32
    assert not any(is_packed(model))


def test_what_another_autocast_or_a_gradient_asks_goes_the_plain_way():
    model = network()
    plain = model(rows())
    with torch.no_grad(), packed(model):
        with torch.enable_grad():
            learnt = model(rows())
        with torch.autocast("cpu", torch.bfloat16):
            halved = model(rows())
    assert torch.equal(learnt, plain)
    learnt.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(halved, model(rows()))


def test_weights_are_those_that_the_block_began_with_and_the_next_has_the_new_ones():
    model = network()
    with torch.no_grad():
        with packed(model):
            first = model(rows())
            model[0].weight.mul_(2)
            assert torch.equal(model(rows()), first)
        after = model(rows())
        assert not torch.allclose(after, first, atol=1e-3)
        with packed(model):
            torch.testing.assert_close(model(rows()), after, rtol=0, atol=1e-5)


def test_what_somebody_else_changed_stays_theirs():
    model = network()
    theirs = model[0].forward = lambda given: nn.functional.linear(given, model[0].weight)
    with torch.no_grad():
        with packed(model):
            assert model[0].forward is theirs
            with packed(model):  # within another one there is nothing left to do
                assert is_packed(model) == [True, False, True, False, False]
            assert is_packed(model) == [True, False, True, False, False]
        assert is_packed(model) == [True, False, False, False, False]


@pytest.mark.parametrize("why", ["large", "compiled", "in double precision", "elsewhere"])
def test_a_model_that_is_left_alone(why, monkeypatch):
    model = network()
    if why == "large":
        monkeypatch.setattr(packed_linear, "MOST", 4 * (128 * 256 + 256 * 192) - 1)
    elif why == "compiled":
        model[0]._compiled_call_impl = model[0]._call_impl
    elif why == "in double precision":
        model.double()
    elif why == "elsewhere":
        model.to("meta")
    with torch.no_grad(), packed(model):
        assert not any(is_packed(model))


def test_an_error_leaves_the_layers_as_they_were():
    model = network()
    with pytest.raises(ZeroDivisionError), packed(model):
        raise ZeroDivisionError
    assert not any(is_packed(model))


@pytest.mark.parametrize(
    ("cpuinfo", "float32", "bfloat16"),
    [(AMD, True, True), (OLD, True, False), (INTEL, False, True), ("", False, False)],
    ids=["amd", "old", "intel", "unknown"],
)
def test_where_it_serves(cpuinfo, float32, bfloat16, tmp_path):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    if torch.backends.mkldnn.is_available():
        assert serves(torch.float32, tmp_path) is float32
        assert serves(torch.bfloat16, tmp_path) is bfloat16
    assert not serves(torch.float16, tmp_path)

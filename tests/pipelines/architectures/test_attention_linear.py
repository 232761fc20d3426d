"""Linear attention against the quadratic form that it must not compute."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from pipelines.architectures.attention import CHUNK, linear_attention
from pipelines.architectures.positions import rotation_at


def quadratic(query, key, value, seen, causal, rotation=None):
    """Every weight written out: φ(q)·φ(k), turned in the numerator only (RoFormer, equation 19)."""
    feature_q, feature_k = torch.nn.functional.elu(query) + 1, torch.nn.functional.elu(key) + 1
    plain = feature_q @ feature_k.mT
    turned = plain
    if rotation is not None:
        as_complex = [
            torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous()) for part in (feature_q, feature_k)
        ]
        turned = [part * torch.complex(*angle) for part, angle in zip(as_complex, rotation, strict=True)]
        turned = (turned[0] @ turned[1].conj().mT).real
    allowed = seen[:, None, None, :].expand(plain.shape)
    if causal:
        past = key.shape[2] - query.shape[2]
        allowed = allowed & torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(past)
    return (turned * allowed) @ value / (plain * allowed).sum(-1, keepdim=True)


@given(
    length=st.integers(1, 3 * CHUNK + 5),
    share=st.integers(1, 100),
    causal=st.booleans(),
    rotated=st.booleans(),
    padded=st.integers(0, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_it_is_the_quadratic_form_for_any_length_and_cache(length, share, causal, rotated, padded, seed):
    torch.manual_seed(seed)
    asked = max(1, length * share // 100)
    query, key, value = torch.randn(2, 3, asked, 4), torch.randn(2, 3, length, 4), torch.randn(2, 3, length, 5)
    seen = torch.ones(2, length, dtype=torch.bool)
    seen[1, : min(padded, length - asked)] = False  # on the left, where a decoder's padding stands
    rotation = None
    if rotated:
        places = torch.arange(length)[None]
        rotation = rotation_at(places[:, -asked:], 4, 100.0), rotation_at(places, 4, 100.0)
    expected = quadratic(query, key, value, seen, causal, rotation)
    found = linear_attention(query, key, value, seen, causal, *(rotation or ()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_operations_grow_with_the_length_and_not_with_its_square():
    def operations(length: int) -> int:
        states = torch.randn(1, 2, length, 8)
        with FlopCounterMode(display=False) as counter:
            linear_attention(states, states, states, causal=True)
        return counter.get_total_flops()

    assert operations(32 * CHUNK) == 32 * operations(CHUNK)


def test_a_sequence_of_padding_alone_gives_zeros_and_no_gradient_that_is_not_a_number():
    states = torch.randn(1, 2, 5, 4, requires_grad=True)
    output = linear_attention(states, states, states, torch.zeros(1, 5, dtype=torch.bool), causal=True)
    output.sum().backward()
    assert output.eq(0).all()
    assert states.grad.isfinite().all()


@pytest.mark.parametrize("causal", [True, False])
def test_half_precision_is_summed_in_float32(causal):
    torch.manual_seed(0)
    states = torch.rand(1, 1, 2000, 4)
    exact = linear_attention(states, states, states, causal=causal)
    half = states.bfloat16()
    found = linear_attention(half, half, half, causal=causal)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=0.02, atol=0.01)

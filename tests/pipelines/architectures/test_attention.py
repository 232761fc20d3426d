import math

import pytest
import torch
from transformers import DynamicCache

from pipelines.architectures.attention import FineryAttention
from pipelines.architectures.positions import rotate, rotation_at


def slow_attention(attention, states, seen):
    """One head, one query at a time, as the formula reads. `seen` (batch, key) is True where a key may be used."""
    batch, length, dim = states.shape
    heads, head_dim = dim // attention.head_dim, attention.head_dim
    query, key, value = attention.query(states), attention.key(states), attention.value(states)
    joined = torch.zeros(batch, length, dim)
    for row in range(batch):
        for head in range(heads):
            part = slice(head * head_dim, (head + 1) * head_dim)
            for position in range(length):
                scores = torch.stack([query[row, position, part] @ k for k in key[row, :, part]]) / math.sqrt(head_dim)
                scores[~seen[row]] = -math.inf
                joined[row, position, part] = scores.softmax(0) @ value[row, :, part]
    return attention.output(joined)


def attention_with(config, implementation):
    config._attn_implementation = implementation
    return FineryAttention(config, layer_idx=0).eval()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_attention_is_the_formula(tiny, implementation):
    torch.manual_seed(0)
    attention = attention_with(tiny(), implementation)
    states, seen = torch.randn(2, 5, 24), torch.tensor([[True] * 5, [True, True, True, False, False]])
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None, None, :].expand(2, 1, 5, 5)
    output, weights = attention(states, mask)
    torch.testing.assert_close(output, slow_attention(attention, states, seen), rtol=1e-5, atol=1e-6)
    if implementation == "eager":
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))
        assert weights[1, :, :, 3:].eq(0).all()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_past_keys_and_values_are_seen_before_the_sequence(tiny, implementation):
    """Keys and values of the first two tokens, supplied as the past, leave the others' output as in the full pass."""
    torch.manual_seed(0)
    attention = attention_with(tiny(), implementation)
    states = torch.randn(2, 5, 24)
    full, _ = attention(states)
    past = tuple(part(states[:, :2]).view(2, 2, 4, 6).transpose(1, 2) for part in (attention.key, attention.value))
    output, _ = attention(states[:, 2:], past_key_values=DynamicCache([past]))
    torch.testing.assert_close(output, full[:, 2:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_past_keys_are_seen_as_they_come_and_not_turned_again(tiny, implementation):
    """Keys turned at places 0 and 1, supplied as the past, leave the others' output as in the full pass."""
    torch.manual_seed(0)
    attention = attention_with(tiny(position="rotary"), implementation)
    states, rotation = torch.randn(2, 5, 24), rotation_at(torch.arange(5)[None], 6, 10.0)
    first, rest = tuple(part[..., :2, :] for part in rotation), tuple(part[..., 2:, :] for part in rotation)
    full, _ = attention(states, rotation=rotation)
    key, value = (part(states[:, :2]).view(2, 2, 4, 6).transpose(1, 2) for part in (attention.key, attention.value))
    output, _ = attention(states[:, 2:], past_key_values=DynamicCache([(rotate(key, first), value)]), rotation=rest)
    torch.testing.assert_close(output, full[:, 2:], rtol=1e-5, atol=1e-6)
    unturned, _ = attention(states[:, 2:], past_key_values=DynamicCache([(key, value)]), rotation=rest)
    assert not torch.allclose(unturned, full[:, 2:], atol=1e-3)


def test_no_kernel_is_told_to_hide_later_tokens():
    assert FineryAttention.is_causal is False

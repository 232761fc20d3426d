"""Every scoring against the formula, one query and one key at a time."""

import math

import pytest
import torch

from pipelines.architectures.attention import FineryAttention
from pipelines.architectures.configuration_rules import ATTENTION_SCORINGS


def score(attention, head, query, key):
    """One number from one query and one key (head_dim,), as the papers write it."""
    scoring = attention.scoring
    return {
        "scaled_dot_product": lambda: query @ key / math.sqrt(len(query)),
        "dot_product": lambda: query @ key,
        "general": lambda: query @ scoring.matrix[head] @ key,
        "additive": lambda: scoring.vector[head] @ torch.tanh(query + key),
        "cosine": lambda: scoring.temperature[head] * (query @ key) / (query.norm() * key.norm()),
    }[scoring.kind]()


def slow_attention(attention, states, others, heads, shared_by):
    query = attention.query(states).unflatten(-1, (heads, -1))
    key = attention.key(others).unflatten(-1, (heads // shared_by, -1))
    value = attention.value(others).unflatten(-1, (heads // shared_by, -1))
    if attention.query_norm is not None:
        query, key = attention.query_norm(query), attention.key_norm(key)
    joined = torch.zeros_like(query)
    for row in range(states.shape[0]):
        for place in range(states.shape[1]):
            for head in range(heads):
                group = head // shared_by
                scores = torch.stack([score(attention, head, query[row, place, head], k) for k in key[row, :, group]])
                joined[row, place, head] = scores.softmax(0) @ value[row, :, group]
    return attention.output(joined.flatten(-2))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("shared_by", [1, 2, 4])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("kind", ATTENTION_SCORINGS)
@torch.no_grad()
def test_attention_is_the_formula(tiny, kind, qk_norm, shared_by, implementation):
    torch.manual_seed(0)
    config = tiny(attention_scoring=kind, num_key_value_heads=4 // shared_by, qk_norm=qk_norm, head_dim=5)
    config._attn_implementation = implementation
    attention = FineryAttention(config, layer_idx=0).eval()
    for weight in attention.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    states, others = torch.randn(2, 3, 24), torch.randn(2, 4, 24)
    expected = slow_attention(attention, states, others, heads=4, shared_by=shared_by)
    output, weights = attention(states, key_value_states=others)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    if implementation == "eager":
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 3))


def test_general_and_cosine_start_with_the_spread_of_scaled_dot_products(tiny):
    """A unit matrix divided by √head_dim is the scaled dot product itself."""
    from pipelines.architectures import FineryModel

    torch.manual_seed(0)
    general = FineryModel(tiny(attention_scoring="general", attn_implementation="eager")).eval()
    scaled = FineryModel(tiny(attn_implementation="eager")).eval()
    weights = {name: weight for name, weight in general.state_dict().items() if "scoring" not in name}
    scaled.load_state_dict(weights)
    tokens = torch.arange(1, 9)[None]
    torch.testing.assert_close(general(tokens).last_hidden_state, scaled(tokens).last_hidden_state)
    cosine = FineryModel(tiny(attention_scoring="cosine"))
    assert cosine.layers[0].attention.scoring.temperature.tolist() == pytest.approx([math.sqrt(6)] * 4)


@pytest.mark.parametrize("as_booleans", [True, False])
@torch.no_grad()
def test_additive_attention_respects_both_forms_of_a_mask(tiny, as_booleans):
    config = tiny(attention_scoring="additive")
    config._attn_implementation = "sdpa"
    attention = FineryAttention(config, layer_idx=0).eval()
    torch.nn.init.normal_(attention.scoring.vector)
    states = torch.randn(1, 4, 24)
    seen = torch.tensor([True, True, False, True]).expand(1, 1, 4, 4)
    mask = seen if as_booleans else torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    _, weights = attention(states, mask)
    _, without = attention(states, key_value_states=states[:, [0, 1, 3]])
    assert weights[..., 2].eq(0).all()
    torch.testing.assert_close(weights[..., [0, 1, 3]], without)

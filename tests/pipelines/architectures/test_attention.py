"""Attention: who sees whom, and each scoring and the linear form against the formula written out slowly."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from pipelines.architectures import FineryModel
from pipelines.architectures.attention import (
    CHUNK,
    FineryAttention,
    distances,
    linear_attention,
    norm,
    padding_of,
    places_in_documents,
    prefix_blocks,
    refuse_kernel,
    with_bias,
)
from pipelines.architectures.configuration_rules import ATTENTION_SCORINGS, POSITIONS
from pipelines.architectures.positions import rotate, rotation_at


def test_a_layer_norm_has_a_bias_if_configured(tiny):
    assert {name for name, _ in norm(tiny(), 5).named_parameters()} == {"weight", "bias"}
    assert {name for name, _ in norm(tiny(norm_bias=False), 5).named_parameters()} == {"weight"}


def test_an_rms_norm_divides_by_the_root_of_the_mean_square(tiny):
    normalise = norm(tiny(norm_type="rms_norm", layer_norm_eps=0.5), 3)
    with torch.no_grad():
        normalise.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    # mean square (1 + 4 + 4) / 3 = 3, and 0.5 is added to it
    expected = torch.tensor([1.0, 2 * 2.0, -3 * 2.0]) / 3.5**0.5
    torch.testing.assert_close(normalise(torch.tensor([1.0, 2.0, -2.0])), expected)
    assert {name for name, _ in normalise.named_parameters()} == {"weight"}


def test_an_rms_norm_of_a_lower_precision_is_rounded_once_and_warns_of_nothing(tiny, recwarn):
    normalise = norm(tiny(norm_type="rms_norm"), 64)
    states = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        normed = normalise(states.bfloat16())
    assert normed.dtype == torch.bfloat16
    torch.testing.assert_close(normed, normalise(states.bfloat16().float()).bfloat16(), rtol=0, atol=0)
    assert not recwarn.list


LENGTH = 8
WINDOW = {"attention_pattern": "sliding_window", "sliding_window": 3}
kernels = pytest.mark.parametrize("implementation", ["eager", "sdpa"])


def model_of(tiny, implementation: str = "eager", **fields) -> FineryModel:
    torch.manual_seed(0)
    return FineryModel(tiny(**{"num_hidden_layers": 1, **fields}, attn_implementation=implementation)).eval()


def seen(model: FineryModel, **inputs: Tensor) -> Tensor:
    """Which tokens (batch, query, key) one layer's output depends on: where its gradient is not zero."""
    tokens = torch.arange(1, LENGTH + 1)[None].expand(inputs.get("attention_mask", torch.ones(1)).shape[0], -1)
    words = model.get_input_embeddings()(tokens).detach().requires_grad_()
    output = model(inputs_embeds=words, **inputs).last_hidden_state
    rows = []
    for place in range(LENGTH):
        (gradient,) = torch.autograd.grad(output[:, place].square().sum(), words, retain_graph=True)
        rows.append(gradient.abs().sum(-1) > 0)
    return torch.stack(rows, dim=1)


def pattern(rule) -> Tensor:
    return torch.tensor([[[rule(query, key) for key in range(LENGTH)] for query in range(LENGTH)]])


@kernels
@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({}, lambda query, key: True),
        ({"family": "decoder"}, lambda query, key: key <= query),
        (WINDOW, lambda query, key: abs(query - key) <= 3),
        ({"family": "decoder", **WINDOW}, lambda query, key: query - 3 < key <= query),
        ({"attention_pattern": "linear"}, lambda query, key: True),
        ({"family": "decoder", "attention_pattern": "linear"}, lambda query, key: key <= query),
    ],
    ids=["full", "causal", "window", "causal window", "linear", "causal linear"],
)
def test_a_pattern_shows_the_keys_that_it_promises(tiny, fields, rule, implementation):
    linear = fields.get("attention_pattern") == "linear"
    for position in ("learned", "rotary", "none") if linear else POSITIONS:
        assert torch.equal(seen(model_of(tiny, implementation, position=position, **fields)), pattern(rule)), position


@kernels
def test_every_nth_layer_sees_beyond_the_window(tiny, implementation):
    """Layer 0 is full and layer 1 is not: with one layer everything is seen, with the second alone a window."""
    every_second = {**WINDOW, "global_attn_every_n_layers": 2, "num_hidden_layers": 2}
    model = model_of(tiny, implementation, **every_second)
    assert seen(model).all()
    model.layers[0].attention.output.weight.data.zero_()
    assert torch.equal(seen(model), pattern(lambda query, key: abs(query - key) <= 3))


@kernels
@pytest.mark.parametrize("fields", [{}, WINDOW], ids=["causal", "window"])
def test_the_first_tokens_of_a_prefix_see_each_other_in_both_directions(tiny, fields, implementation):
    model = model_of(tiny, implementation, family="decoder", **fields)
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    mask[2, :2] = 0  # padding on the left: its prefix starts at 2
    found = seen(model, prefix_length=torch.tensor([4, 0, 3]), attention_mask=mask)
    order = seen(model, attention_mask=mask)

    def with_prefix(row: int, first: int, length: int) -> Tensor:
        expected = order[row].clone()
        expected[first : first + length, first : first + length] = True
        return expected

    assert torch.equal(found[0], with_prefix(0, 0, 4))
    assert torch.equal(found[1], order[1])
    assert torch.equal(found[2, 2:], with_prefix(2, 2, 3)[2:])
    assert not found[2, 2:, :2].any()


@kernels
@pytest.mark.parametrize("fields", [{}, WINDOW, {"position": "relative"}, {"attention_scoring": "additive"}], ids=str)
@pytest.mark.parametrize("as_booleans", [True, False])
def test_a_ready_mask_is_taken_as_it_is_and_a_window_still_applies(tiny, fields, implementation, as_booleans):
    """Documents of 3 and 5 tokens: nobody sees the other one."""
    model = model_of(tiny, implementation, family="decoder", **fields)
    documents = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    allowed = (documents[:, None] == documents) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask = allowed if as_booleans else torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    found = seen(model, attention_mask=mask[None, None])
    assert torch.equal(found[0], seen(model)[0] & allowed)
    if implementation in ("eager", "sdpa"):  # whose numbers may be wider than the mask's
        assert torch.equal(seen(model.double(), attention_mask=mask[None, None])[0], found[0])


@kernels
@torch.no_grad()
def test_positions_that_start_again_begin_another_document(tiny, implementation):
    model = model_of(tiny, implementation, family="decoder", num_hidden_layers=3)
    first, second = torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9, 10, 11, 12]])
    together = model(
        torch.cat([first, second], 1), position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    ).last_hidden_state
    apart = torch.cat([model(first).last_hidden_state, model(second).last_hidden_state], 1)
    torch.testing.assert_close(together, apart)


@kernels
@torch.no_grad()
def test_positions_with_gaps_are_one_document(tiny, implementation):
    model = model_of(tiny, implementation, family="decoder", position="rotary")
    ids = torch.arange(1, LENGTH + 1)[None]
    gaps = torch.tensor([[0, 1, 5, 6, 7, 11, 12, 18]])
    with_mask = model(ids, position_ids=gaps, attention_mask=torch.ones_like(ids)).last_hidden_state
    torch.testing.assert_close(model(ids, position_ids=gaps).last_hidden_state, with_mask)


def test_documents_are_told_by_where_positions_start_again():
    positions = torch.tensor([[0, 1, 2, 0, 1, 0], [3, 4, 7, 8, 2, 2]])
    assert places_in_documents(positions).tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0]]


def test_a_prefix_begins_after_the_padding_on_the_left():
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    assert prefix_blocks(torch.tensor([2, 1]), mask, 4).tolist() == [[0, 0, -1, -1], [-1, -1, 0, -1]]
    assert prefix_blocks(torch.tensor([2, 9]), None, 3).tolist() == [[0, 0, -1], [0, 0, 0]]


def test_distances_count_on_from_what_a_cache_keeps():
    states, cache = torch.zeros(1, 2, 4), DynamicCache()
    assert distances(states, None)[0].tolist() == [[0, 1], [-1, 0]]
    assert distances(states, None, 0, torch.tensor([[3, 9]]))[0].tolist() == [[0, 6], [-6, 0]]
    cache.update(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), 0)
    assert distances(states, cache)[0].tolist() == [[-3, -2, -1, 0, 1], [-4, -3, -2, -1, 0]]


def test_a_bias_shows_through_a_mask_and_never_overflows():
    bias = torch.tensor([[-5.0, -6.0]], dtype=torch.float16)
    lowest = torch.finfo(torch.float16).min
    assert torch.equal(with_bias(None, bias), bias)
    assert with_bias(torch.tensor([[True, False]]), bias).tolist() == [[-5.0, lowest]]
    added = with_bias(torch.tensor([[0.0, lowest]], dtype=torch.float16), torch.tensor([[-5.0, -60.0]]).half())
    assert added.tolist() == [[-5.0, lowest]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_hides_a_key_stays_a_number_in_the_type_that_autocast_computes_in(dtype):
    with torch.autocast("cpu", dtype):
        for bias in (torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2, dtype=dtype)):
            for mask in (torch.tensor([True, False]), torch.tensor([0.0, torch.finfo(torch.float32).min])):
                added = with_bias(mask, bias)
                assert added.to(dtype).isfinite().all()
                assert added[..., 1].item() == torch.finfo(dtype).min


@pytest.mark.parametrize(
    ("fields", "implementation", "sentence"),
    [
        ({"position": "alibi"}, "flash_attention_2", "position 'alibi' adds a number to each score, for which"),
        ({"position": "relative"}, "flash_attention_3", "use 'sdpa', 'eager' or 'flex_attention'"),
        ({"attention_scoring": "additive"}, "flex_attention", "attention_scoring 'additive' is no product of queries"),
        ({"attention_scoring": "additive"}, "flash_attention_2", "use 'sdpa' or 'eager'"),
    ],
)
def test_a_kernel_that_cannot_compute_the_scores_is_refused_with_one_that_can(tiny, fields, implementation, sentence):
    with pytest.raises(ValueError, match=sentence):
        refuse_kernel(tiny(**fields), implementation)
    with pytest.raises(ValueError, match=sentence):
        FineryModel(tiny(**fields, attn_implementation=implementation))


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flex_attention", "flash_attention_2", None])
def test_a_kernel_that_can_is_let_through(tiny, implementation):
    refuse_kernel(tiny(attention_scoring="cosine", position="rotary"), implementation)
    refuse_kernel(tiny(attention_pattern="linear"), implementation)


def test_linear_attention_refuses_masks_of_single_scores(tiny):
    model = model_of(tiny, family="decoder", attention_pattern="linear")
    ids = torch.ones(1, LENGTH, dtype=torch.long)
    with pytest.raises(ValueError, match=r"takes an attention_mask of shape \(batch, key\) only"):
        model(ids, attention_mask=torch.zeros(1, 1, LENGTH, LENGTH))
    with pytest.raises(ValueError, match="'linear' has no prefix_length"):
        model(ids, prefix_length=torch.tensor([2]))
    assert padding_of(None) is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"family": "decoder"}, "ready mask"),
        ({"family": "decoder", **WINDOW}, "ready mask"),
        ({"family": "decoder", "position": "relative"}, "prefix"),
        ({"position": "alibi"}, "padding"),
        ({"family": "encoder-decoder", "position": "relative"}, "padding"),
    ],
    ids=str,
)
@torch.no_grad()
def test_flex_attention_hides_and_weighs_what_eager_does(tiny, fields, asked):
    torch.compiler.reset()  # torch's kernel for a CPU does not compile for a second shape
    # of 8 or 24 keys torch 2.13's kernel for processors without AVX-512 makes wrong numbers in some processes
    length = LENGTH - (torch.backends.cpu.get_cpu_capability() == "AVX2")
    eager, flex = (model_of(tiny, kernel, hidden_size=64, **fields) for kernel in ("eager", "flex_attention"))
    ids = torch.arange(1, length + 1).expand(2, -1)
    mask = torch.tensor([[1] * length, [1] * 5 + [0] * (length - 5)])
    inputs = {"input_ids": ids, "attention_mask": mask}
    if asked == "ready mask":
        order = torch.ones(length, length, dtype=torch.bool).tril()
        inputs["attention_mask"] = torch.where(order, 0.0, torch.finfo(torch.float32).min)[None, None]
    elif asked == "prefix":
        inputs["prefix_length"] = torch.tensor([4, 2])
    if fields.get("family") == "encoder-decoder":
        inputs |= {"attention_mask": mask, "decoder_input_ids": ids, "decoder_attention_mask": mask}
    found, expected = (model(**inputs, use_cache=False).last_hidden_state[mask.bool()] for model in (flex, eager))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


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


def slow_scoring(attention, states, others, heads, shared_by):
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
def test_every_scoring_is_its_formula(tiny, kind, qk_norm, shared_by, implementation):
    torch.manual_seed(0)
    config = tiny(attention_scoring=kind, num_key_value_heads=4 // shared_by, qk_norm=qk_norm, head_dim=5)
    config._attn_implementation = implementation
    attention = FineryAttention(config, layer_idx=0).eval()
    for weight in attention.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    states, others = torch.randn(2, 3, 24), torch.randn(2, 4, 24)
    expected = slow_scoring(attention, states, others, heads=4, shared_by=shared_by)
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

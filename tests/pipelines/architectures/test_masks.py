"""Who sees whom, read off the attention weights or off what a changed token changes."""

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from pipelines.architectures import FineryModel
from pipelines.architectures.attention import (
    distances,
    padding_of,
    places_in_documents,
    prefix_blocks,
    refuse_kernel,
    with_bias,
)
from pipelines.architectures.configuration_rules import POSITIONS

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
    eager, flex = (model_of(tiny, kernel, hidden_size=64, **fields) for kernel in ("eager", "flex_attention"))
    ids = torch.arange(1, LENGTH + 1).expand(2, -1)
    mask = torch.tensor([[1] * LENGTH, [1] * 5 + [0] * 3])
    inputs = {"input_ids": ids, "attention_mask": mask}
    if asked == "ready mask":
        order = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        inputs["attention_mask"] = torch.where(order, 0.0, torch.finfo(torch.float32).min)[None, None]
    elif asked == "prefix":
        inputs["prefix_length"] = torch.tensor([4, 2])
    if fields.get("family") == "encoder-decoder":
        inputs |= {"attention_mask": mask, "decoder_input_ids": ids, "decoder_attention_mask": mask}
    found, expected = (model(**inputs, use_cache=False).last_hidden_state[mask.bool()] for model in (flex, eager))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

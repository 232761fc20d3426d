import pytest
import torch
from torch import nn

from pipelines.architectures.layers import FineryLayer


def torch_layer_of(layer: FineryLayer, norm_first: bool) -> nn.TransformerEncoderLayer:
    """torch's own layer with the same weights."""
    theirs = nn.TransformerEncoderLayer(
        24, 4, 40, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True, norm_first=norm_first
    )
    attention, feed_forward = layer.attention, layer.feed_forward
    joined = [attention.query, attention.key, attention.value]
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in joined]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in joined]))
    theirs.self_attn.out_proj.load_state_dict(attention.output.state_dict())
    theirs.linear1.load_state_dict(feed_forward.intermediate.state_dict())
    theirs.linear2.load_state_dict(feed_forward.output.state_dict())
    theirs.norm1.load_state_dict(layer.attention_norm.state_dict())
    theirs.norm2.load_state_dict(layer.feed_forward_norm.state_dict())
    return theirs


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_a_layer_agrees_with_torchs_own_in_output_and_gradient(tiny, norm_position):
    torch.manual_seed(0)
    config = tiny(norm_position=norm_position, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config._attn_implementation = "eager"
    layer = FineryLayer(config, layer_idx=0)
    for norm in (layer.attention_norm, layer.feed_forward_norm):  # a fresh norm would hide a misplaced one
        nn.init.normal_(norm.weight, mean=1.0)
        nn.init.normal_(norm.bias)
    theirs = torch_layer_of(layer, norm_first=norm_position == "pre")
    states = torch.randn(2, 5, 24, requires_grad=True)
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    mask = torch.where(padding, torch.finfo(torch.float32).min, 0.0)[:, None, None, :]

    ours_out, theirs_out = layer(states, mask), theirs(states, src_key_padding_mask=padding)
    torch.testing.assert_close(ours_out, theirs_out, rtol=1e-5, atol=1e-5)
    (ours_gradient,) = torch.autograd.grad(ours_out.square().sum(), states)
    (theirs_gradient,) = torch.autograd.grad(theirs_out.square().sum(), states)
    torch.testing.assert_close(ours_gradient, theirs_gradient, rtol=1e-4, atol=1e-5)


def test_a_chunked_feed_forward_changes_memory_not_the_result(tiny):
    whole = FineryLayer(tiny(attn_implementation="eager"), layer_idx=0).eval()
    chunked = FineryLayer(tiny(attn_implementation="eager", chunk_size_feed_forward=3), layer_idx=0).eval()
    chunked.load_state_dict(whole.state_dict())
    states = torch.randn(2, 6, 24)
    torch.testing.assert_close(chunked(states), whole(states))


@torch.no_grad()
def test_a_sandwich_normalises_input_and_output_of_each_sublayer(tiny):
    torch.manual_seed(0)
    config = tiny(norm_position="sandwich")
    config._attn_implementation = "eager"
    layer = FineryLayer(config, layer_idx=0).eval()
    for name, weight in layer.named_parameters():
        if "norm" in name:
            nn.init.normal_(weight)
    states = torch.randn(2, 5, 24)
    middle = states + layer.attention_output_norm(layer.attention(layer.attention_norm(states))[0])
    expected = middle + layer.feed_forward_output_norm(layer.feed_forward(layer.feed_forward_norm(middle)))
    torch.testing.assert_close(layer(states), expected)

import pytest
import torch
from torch import nn

from pipelines.architectures.attention import FineryAttention
from pipelines.architectures.layers import FineryDecoderLayer


def copy_attention(ours: FineryAttention, theirs: nn.MultiheadAttention) -> None:
    joined = [ours.query, ours.key, ours.value]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in joined]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in joined]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def torch_layer_of(layer: FineryDecoderLayer, norm_first: bool) -> nn.TransformerDecoderLayer:
    """torch's own layer with the same weights."""
    theirs = nn.TransformerDecoderLayer(
        24, 4, 40, dropout=0.0, activation="relu", layer_norm_eps=1e-12, batch_first=True, norm_first=norm_first
    )
    copy_attention(layer.attention, theirs.self_attn)
    copy_attention(layer.cross_attention, theirs.multihead_attn)
    theirs.linear1.load_state_dict(layer.feed_forward.intermediate.state_dict())
    theirs.linear2.load_state_dict(layer.feed_forward.output.state_dict())
    norms = (layer.attention_norm, layer.cross_attention_norm, layer.feed_forward_norm)
    for ours, other in zip(norms, (theirs.norm1, theirs.norm2, theirs.norm3), strict=True):
        other.load_state_dict(ours.state_dict())
    return theirs


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_a_decoder_layer_agrees_with_torchs_own_in_output_and_gradient(tiny, norm_position):
    torch.manual_seed(0)
    config = tiny(
        family="encoder-decoder",
        norm_position=norm_position,
        hidden_act="relu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config._attn_implementation = "eager"
    layer = FineryDecoderLayer(config, layer_idx=0)
    for norm in (layer.attention_norm, layer.cross_attention_norm, layer.feed_forward_norm):
        nn.init.normal_(norm.weight, mean=1.0)
        nn.init.normal_(norm.bias)
    theirs = torch_layer_of(layer, norm_first=norm_position == "pre")
    states, encoded = torch.randn(2, 5, 24, requires_grad=True), torch.randn(2, 4, 24, requires_grad=True)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    lowest = torch.finfo(torch.float32).min
    ours_out = layer(
        states, torch.where(future, lowest, 0.0), encoded, torch.where(padding, lowest, 0.0)[:, None, None, :]
    )
    theirs_out = theirs(states, encoded, tgt_mask=future, memory_key_padding_mask=padding)
    torch.testing.assert_close(ours_out, theirs_out, rtol=1e-5, atol=1e-5)
    for ours, other in zip(
        torch.autograd.grad(ours_out.square().sum(), (states, encoded)),
        torch.autograd.grad(theirs_out.square().sum(), (states, encoded)),
        strict=True,
    ):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_decoder_that_stands_alone_skips_the_attention_across(tiny):
    config = tiny(family="encoder-decoder", attn_implementation="eager")
    config._attn_implementation = "eager"
    layer = FineryDecoderLayer(config, layer_idx=0).eval()
    states = torch.randn(1, 3, 24)
    alone = layer.feed_forward_norm(
        (changed := layer.attention_norm(states + layer.attention(states)[0])) + layer.feed_forward(changed)
    )
    torch.testing.assert_close(layer(states), alone)

import math

import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration
from transformers.activations import ACT2FN

from pipelines.architectures import FineryForCausalLM, FineryForConditionalGeneration, FineryModel
from pipelines.architectures.configuration_rules import POSITIONS
from pipelines.architectures.layers import (
    AT_ONCE,
    BOUNDED,
    FineryDecoderLayer,
    FineryEmbeddings,
    FineryFeedForward,
    FineryLayer,
    activation,
)
from pipelines.architectures.positions import sinusoidal_table


def test_learned_embeddings_are_a_normalised_sum_of_three_rows(tiny, batch):
    embeddings = FineryEmbeddings(tiny()).eval()
    output = embeddings(batch["input_ids"], batch["token_type_ids"])
    total = (
        embeddings.word_embeddings.weight[batch["input_ids"][0, 4]]
        + embeddings.position_embeddings.weight[4]
        + embeddings.token_type_embeddings.weight[1]
    )
    torch.testing.assert_close(output[0, 4], nn.functional.layer_norm(total, (24,), eps=1e-12))


def test_sinusoidal_embeddings_scale_the_word_by_the_root_of_the_width(tiny, batch):
    embeddings = FineryEmbeddings(tiny(position="sinusoidal")).eval()
    output = embeddings(batch["input_ids"], batch["token_type_ids"])
    total = (
        embeddings.word_embeddings.weight[batch["input_ids"][0, 4]] * 24**0.5
        + sinusoidal_table(19, 24)[4]
        + embeddings.token_type_embeddings.weight[1]
    )
    torch.testing.assert_close(output[0, 4], nn.functional.layer_norm(total, (24,), eps=1e-12))


def test_rotary_embeddings_have_no_term_for_the_position(tiny, batch):
    embeddings = FineryEmbeddings(tiny(position="rotary")).eval()
    output = embeddings(batch["input_ids"], batch["token_type_ids"])
    total = embeddings.word_embeddings.weight[batch["input_ids"][0, 4]] + embeddings.token_type_embeddings.weight[1]
    torch.testing.assert_close(output[0, 4], nn.functional.layer_norm(total, (24,), eps=1e-12))
    assert not any("position" in name for name, _ in embeddings.named_parameters())


@pytest.mark.parametrize("position", POSITIONS)
def test_embedded_words_give_what_their_ids_give(tiny, batch, position):
    embeddings = FineryEmbeddings(tiny(position=position)).eval()
    words = embeddings.word_embeddings(batch["input_ids"])
    assert torch.equal(embeddings(inputs_embeds=words), embeddings(batch["input_ids"]))


def test_without_segments_every_token_is_of_the_first(tiny, batch):
    embeddings = FineryEmbeddings(tiny()).eval()
    first = torch.zeros_like(batch["input_ids"])
    assert torch.equal(embeddings(batch["input_ids"]), embeddings(batch["input_ids"], first))


@pytest.mark.parametrize("position", BOUNDED)
def test_a_sequence_that_is_too_long_is_refused_with_the_limit(tiny, position):
    embeddings = FineryEmbeddings(tiny(position=position))
    with pytest.raises(ValueError, match="ends at position 20, but max_position_embeddings is 19"):
        embeddings(torch.ones(1, 20, dtype=torch.long))


def test_it_widens_activates_and_narrows(tiny):
    feed_forward = FineryFeedForward(tiny(hidden_act="relu"))
    states = torch.randn(2, 3, 24)
    expected = feed_forward.output(feed_forward.intermediate(states).clamp(min=0))
    torch.testing.assert_close(feed_forward(states), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_a_gate_is_activated_and_multiplied_with_what_it_lets_through(tiny, bias):
    feed_forward = FineryFeedForward(tiny(hidden_act="silu", is_gated_act=True, mlp_bias=bias))
    states = torch.randn(2, 3, 24)
    gate = feed_forward.gate(states)
    expected = feed_forward.output(gate * gate.sigmoid() * feed_forward.intermediate(states))
    torch.testing.assert_close(feed_forward(states), expected)
    assert any("bias" in name for name, _ in feed_forward.named_parameters()) is bias


@pytest.mark.parametrize("name", sorted(AT_ONCE.keys() & ACT2FN.keys()))
def test_a_gelu_of_many_operations_is_computed_by_one(tiny, name):
    x = torch.linspace(-8, 8, 999, dtype=torch.float64)
    torch.testing.assert_close(activation(tiny(hidden_act=name))(x), ACT2FN[name](x), rtol=1e-8, atol=1e-8)


def test_gelu_tanh_is_the_original_formula(tiny):
    """Hendrycks and Gimpel 2016, section 2: 0.5x(1 + tanh[√(2/π)(x + 0.044715x³)])."""
    x = torch.linspace(-4, 4, 50, dtype=torch.float64)
    expected = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    torch.testing.assert_close(activation(tiny(hidden_act="gelu_tanh"))(x), expected)


def test_activation_dropout_falls_between_activation_and_output(tiny):
    feed_forward = FineryFeedForward(tiny(activation_dropout_prob=0.5)).train()
    feed_forward.output = nn.Identity()
    torch.manual_seed(0)
    dropped = feed_forward(torch.randn(50, 24)).eq(0).float().mean().item()
    assert dropped == pytest.approx(0.5, abs=0.05)


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


WIDE = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 900}


def spread(weight: torch.Tensor) -> float:
    return weight.std().item()


def fresh(tiny, head: type = FineryForCausalLM, **fields):
    torch.manual_seed(0)
    family = "encoder-decoder" if head is FineryForConditionalGeneration else "decoder"
    return head(tiny(**{"family": family, "num_hidden_layers": 2, **WIDE, **fields}))


def test_a_truncated_normal_goes_no_further_than_two_standard_deviations(tiny):
    weight = fresh(tiny, initializer="truncated_normal", initializer_range=0.1).model.layers[0].attention.query.weight
    assert 0.19 < weight.abs().max().item() <= 0.2
    assert spread(weight) == pytest.approx(0.088, rel=0.05)  # of a standard normal cut at 2: 0.8796


def test_xavier_draws_evenly_between_the_roots_of_six_by_inputs_and_outputs(tiny):
    model = fresh(tiny, initializer="xavier_uniform")
    weight = model.model.layers[0].feed_forward.intermediate.weight
    bound = (6 / (256 + 512)) ** 0.5
    assert 0.99 * bound < weight.abs().max().item() <= bound
    assert spread(weight) == pytest.approx(bound / 3**0.5, rel=0.05)
    assert spread(model.get_input_embeddings().weight[1:]) == pytest.approx(256**-0.5, rel=0.05)


def test_fan_in_divides_by_the_root_of_the_inputs(tiny):
    model = fresh(tiny, initializer="fan_in", tie_word_embeddings=False)
    layer = model.model.layers[0]
    assert spread(layer.attention.query.weight) == pytest.approx(256**-0.5, rel=0.05)
    assert spread(layer.feed_forward.output.weight) == pytest.approx(512**-0.5, rel=0.05)
    assert spread(model.lm_head.weight) == pytest.approx(256**-0.5, rel=0.05)
    assert spread(model.get_input_embeddings().weight[1:]) == pytest.approx(1, rel=0.05)


def test_biases_of_distances_start_as_small_as_in_t5(tiny):
    ours = fresh(tiny, FineryForConditionalGeneration, initializer="fan_in", position="relative").model
    theirs = T5ForConditionalGeneration(
        T5Config(d_model=256, d_kv=64, d_ff=512, num_layers=1, num_heads=4, vocab_size=50)
    )
    usual = spread(theirs.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight)
    for stack in (ours.encoder, ours.decoder):
        assert spread(stack.relative_bias.weight) == pytest.approx(256**-0.5, rel=0.3)  # 128 numbers
    assert usual == pytest.approx(256**-0.5, rel=0.3)


def test_queries_of_undivided_dot_products_start_smaller_as_in_t5(tiny):
    scoring = {"initializer": "fan_in", "attention_scoring": "dot_product"}
    layer = fresh(tiny, FineryForConditionalGeneration, **scoring).model.decoder.layers[1]
    for attention in (layer.attention, layer.cross_attention):
        assert spread(attention.query.weight) == pytest.approx((256 * 64) ** -0.5, rel=0.05)
        assert spread(attention.key.weight) == pytest.approx(256**-0.5, rel=0.05)


@pytest.mark.parametrize(
    ("initializer", "usual"), [("normal", 0.2), ("fan_in", 256**-0.5), ("xavier_uniform", (2 / 512) ** 0.5)]
)
def test_what_writes_to_the_residual_stream_starts_smaller_with_more_layers(tiny, initializer, usual):
    """GPT-2, section 2.3: by 1/√N for N residual layers, of which each of our two has two."""
    layers = fresh(tiny, initializer=initializer, scale_residual_init=True).model.layers
    for layer in layers:
        assert spread(layer.attention.output.weight) == pytest.approx(usual / 4**0.5, rel=0.05)
        assert spread(layer.attention.query.weight) == pytest.approx(usual, rel=0.05)


@pytest.mark.parametrize("initializer", ["normal", "truncated_normal", "xavier_uniform", "fan_in"])
def test_biases_start_at_zero_norms_at_one_and_padding_at_zero(tiny, initializer):
    model = fresh(tiny, initializer=initializer, qk_norm=True, norm_position="sandwich", norm_type="rms_norm")
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert weight.eq(0).all(), name
        elif "norm" in name:
            assert weight.eq(1).all(), name
    assert model.get_input_embeddings().weight[0].eq(0).all()


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_scoring": "general"},
        {"attention_scoring": "additive"},
        {"attention_scoring": "cosine"},
        {"position": "relative"},
        {"position": "sinusoidal"},
    ],
    ids=str,
)
def test_weights_that_a_checkpoint_lacks_start_like_fresh_ones(tiny, fields, tmp_path):
    """transformers builds a model without memory before loading it: what nobody fills is whatever lay there."""
    plain = FineryModel(tiny(family="decoder"))
    plain.save_pretrained(tmp_path)
    loaded, report = FineryModel.from_pretrained(tmp_path, **fields, output_loading_info=True)
    torch.manual_seed(0)
    fresh_model = FineryModel(tiny(family="decoder", **fields))
    missing = set(report["missing_keys"])
    assert missing == {name for name in fresh_model.state_dict() if name not in plain.state_dict()}
    for name, buffer in [*loaded.named_parameters(), *loaded.named_buffers()]:
        if name in missing or "table" in name:
            expected = fresh_model.get_parameter(name) if name in missing else fresh_model.get_buffer(name)
            assert buffer.isfinite().all()
            assert buffer.std().item() == pytest.approx(expected.std().item(), rel=0.6, abs=1e-6), name
            assert buffer.abs().max().item() < 10

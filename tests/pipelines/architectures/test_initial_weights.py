import pytest
import torch

from pipelines.architectures import FineryForCausalLM, FineryForConditionalGeneration, FineryModel

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

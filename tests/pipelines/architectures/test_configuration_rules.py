from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.activations import ACT2FN

from pipelines.architectures.configuration_rules import (
    ACTIVATIONS,
    CHOICES,
    DEFAULTS,
    KINDS,
    contradictions,
    doubts,
    findings,
)

WAVES = {"position": "sinusoidal", "hidden_size": 64}


@pytest.mark.parametrize(
    ("fields", "doubted"),
    [
        (WAVES, True),
        (WAVES | {"hidden_size": 768}, False),  # 0.02 times the root of 768 is 0.55
        (WAVES | {"initializer_range": 0.2}, False),
        (WAVES | {"initializer": "xavier_uniform"}, False),
        (WAVES | {"initializer": "xavier_uniform", "scale_embedding": False}, True),
        (WAVES | {"position": "learned"}, False),
    ],
)
def test_waves_that_drown_the_words_are_doubted(fields, doubted):
    sentences = doubts(fields)
    assert len(sentences) == doubted
    assert all("0.71" in each and "xavier_uniform" in each for each in sentences)


WINDOW = {"attention_pattern": "sliding_window"}


@pytest.mark.parametrize("family", CHOICES["family"])
def test_the_defaults_contradict_nothing_in_any_family(family):
    assert contradictions({**DEFAULTS, "family": family}) == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"family": "decodr"}, "family is 'decodr', must be one of: encoder, decoder, encoder-decoder; did you mean"),
        (
            {"position": "rope"},
            "position is 'rope', must be one of: learned, sinusoidal, rotary, alibi, relative, none",
        ),
        ({"norm_position": "both"}, "norm_position is 'both', must be one of: post, pre, sandwich"),
        ({"norm_type": None}, "norm_type is None, must be one of: layer_norm, rms_norm"),
        ({"attention_scoring": "bilinear"}, "must be one of: scaled_dot_product, dot_product, general, additive"),
        ({"hidden_size": -4}, "hidden_size is -4, must be at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, must be at least 1"),
        ({"intermediate_size": 3.5}, "intermediate_size is 3.5, must be a whole number of at least 1"),
        ({"vocab_size": "512"}, "vocab_size is '512', must be a whole number of at least 1"),
        ({"vocab_size": True}, "vocab_size is True, must be a whole number of at least 1"),
        ({"vocab_size": None}, "vocab_size is None, must be a whole number of at least 1"),
        ({"head_dim": 0}, "head_dim is 0, must be at least 1, or null for hidden_size / num_attention_heads"),
        ({"relative_attention_num_buckets": 2}, "relative_attention_num_buckets is 2, must be at least 4"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0, must be a probability of at least 0 and below 1"),
        ({"layerdrop": -0.1}, "layerdrop is -0.1, must be a probability of at least 0 and below 1"),
        ({"activation_dropout_prob": float("nan")}, "activation_dropout_prob is nan, must be a probability"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0.0, must be a number above 0"),
        ({"rope_theta": 0}, "rope_theta is 0, must be a number above 0"),
        ({"rope_theta": float("inf")}, "rope_theta is inf, must be a number above 0"),
        ({"rope_theta": 10**400}, "must be a number above 0"),
        ({"layerdrop": 10**400}, "must be a probability of at least 0 and below 1"),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers is 10001, must be at most 10000"),
        ({"hidden_size": 2**31}, "hidden_size is 2147483648, must be at most 2147483647"),
        ({"sparse_prediction": "yes"}, "sparse_prediction is 'yes', must be true or false"),
        ({"qk_norm": None}, "qk_norm is None, must be true or false"),
        ({"pad_token_id": -1}, "pad_token_id is -1, must be the id of a token, or null"),
        (
            {"type_vocab_size": -1},
            "type_vocab_size is -1, must be at least 0; 0 means that the model knows no segments",
        ),
        (
            {"classifier_dropout": 2},
            "classifier_dropout is 2, must be a probability of at least 0 and below 1, or null to use hidden",
        ),
        (
            {"hidden_size": 12, "num_attention_heads": 5},
            "set num_attention_heads to one of 1, 2, 3, 4, 6, 12, or change",
        ),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 4},
            "4 key-value heads do not divide 6 attention heads; set",
        ),
        ({"position": "sinusoidal", "hidden_size": 15}, "choose an even hidden_size, or position: learned"),
        ({"position": "sinusoidal", "hidden_size": 16, "embedding_size": 15}, "choose an even embedding_size"),
        (
            {"position": "rotary", "hidden_size": 15, "num_attention_heads": 5},
            "5 attention heads of hidden_size 15 are 3 wide; choose sizes with an even quotient",
        ),
        (
            {"position": "rotary", "hidden_size": 16, "num_attention_heads": 5},
            "set num_attention_heads to one of 1, 2, 4",
        ),
        ({"position": "rotary", "head_dim": 7}, "but head_dim is 7; choose an even head_dim"),
        ({"pad_token_id": 9, "vocab_size": 9}, "pad_token_id 9 lies outside a vocabulary of 9; choose a smaller id"),
        ({"eos_token_id": 10, "vocab_size": 9}, "eos_token_id 10 lies outside a vocabulary of 9"),
        ({"family": "decoder", "attention_pattern": "full"}, "would show a decoder the words that it must predict"),
        ({"family": "encoder", "attention_pattern": "causal"}, "is for family: decoder, not for 'encoder'"),
        ({"family": "encoder-decoder", "attention_pattern": "causal"}, "where its decoder is causal by itself"),
        ({"family": "encoder", "num_decoder_layers": 2}, "num_decoder_layers is for family: encoder-decoder, but the"),
        ({"family": "decoder", "bidirectional_decoder": True}, "bidirectional_decoder is for family: encoder-decoder"),
        ({"family": "encoder", "length_prediction": True}, "length_prediction is for family: encoder-decoder"),
        (
            {"family": "decoder", "sparse_prediction": True},
            "sparse_prediction is for family: encoder, but the family is",
        ),
        ({"family": "decoder", "embedding_size": 8, "hidden_size": 16}, "which only family: encoder can have"),
        ({"family": "decoder", **WINDOW, "sliding_window": 1}, "see nothing but itself; choose at least 2"),
        ({**WINDOW, "sliding_window": None}, "needs sliding_window, the number of tokens"),
        (
            {"attention_pattern": None, "sliding_window": 4},
            "sliding_window is 4, which only attention_pattern: sliding",
        ),
        (
            {"attention_pattern": "linear", "global_attn_every_n_layers": 3},
            "global_attn_every_n_layers is 3, which only",
        ),
        ({"attention_pattern": "full", "local_rope_theta": 5.0}, "local_rope_theta is 5.0, which only"),
        ({**WINDOW, "local_rope_theta": 5.0, "position": "none"}, "but position is 'none'; leave it out, or use"),
        ({"attention_pattern": "linear", "attention_scoring": "additive"}, "has no meaning for attention_pattern"),
        ({"attention_pattern": "linear", "attention_scoring": "general"}, "has no meaning for attention_pattern"),
        (
            {"attention_pattern": "linear", "position": "alibi"},
            "adds to single scores, which attention_pattern 'linear'",
        ),
        ({"attention_pattern": "linear", "position": "relative"}, "adds to single scores"),
        ({"position": "relative", "relative_attention_num_buckets": 7}, "half of the buckets are for each direction"),
        (
            {"position": "relative", "relative_attention_num_buckets": 32, "relative_attention_max_distance": 16},
            "relative_attention_max_distance 16 lies within the 16 distances that have a bucket each",
        ),
    ],
)
def test_a_mistake_is_named_with_what_was_given_and_what_is_allowed(fields, sentence):
    (found,) = contradictions(fields)
    assert sentence in found


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": 12, "num_attention_heads": 5, "head_dim": 4},
        {"position": "sinusoidal", "hidden_size": 15, "embedding_size": 8},
        {"family": "decoder", "embedding_size": 16, "hidden_size": 16},
        {
            "family": "encoder-decoder",
            "num_decoder_layers": 2,
            "bidirectional_decoder": True,
            "length_prediction": True,
        },
        {"family": "encoder", **WINDOW, "sliding_window": 1},
        {"family": "encoder-decoder", **WINDOW, "sliding_window": 4, "global_attn_every_n_layers": 2},
        {"attention_pattern": "linear", "attention_scoring": "scaled_dot_product", "position": "rotary"},
        {"position": "learned", "relative_attention_num_buckets": 7},
        {"type_vocab_size": 0, "norm_type": "rms_norm", "norm_bias": True},
        {"pad_token_id": None, "classifier_dropout": None, "attention_pattern": None, "head_dim": None},
        {"sliding_window": 4},  # an override alone: the preset may have the pattern
    ],
)
def test_what_fits_together_is_let_through(fields):
    assert contradictions(fields) == []


def test_every_mistake_is_reported_at_once():
    assert len(contradictions({"family": "dekoder", "hidden_size": 0, "hidden_act": "gleu"})) == 3
    assert len(contradictions({"family": "decoder", "attention_pattern": "full", "length_prediction": True})) == 2


def test_a_finding_names_its_fields_the_one_to_change_first():
    assert findings({"hidden_size": 0}) == [(("hidden_size",), "is 0, must be at least 1")]
    ((keys, sentence),) = findings({"num_attention_heads": 6, "num_key_value_heads": 4})
    assert keys == ("num_key_value_heads", "num_attention_heads")
    assert not sentence.startswith("is ")


def test_a_misspelt_choice_is_answered_with_the_nearest_one():
    (found,) = contradictions({"hidden_act": "gleu"})
    assert found.startswith("hidden_act is 'gleu', must be one of: gelu, ")
    assert found.endswith("; did you mean 'gelu'?")


def test_every_allowed_activation_exists_and_holds_no_parameters():
    named = [ACT2FN["gelu_pytorch_tanh" if name == "gelu_tanh" else name] for name in ACTIVATIONS]
    assert all(not list(activation.parameters()) for activation in named)


def test_activations_are_listed_in_order():
    assert all(first < second for first, second in pairwise(ACTIVATIONS))


VALUES = (
    st.none() | st.booleans() | st.integers(-3, 200) | st.floats() | st.sampled_from(["", "rotary", "decoder", "a"])
)


@given(st.dictionaries(st.sampled_from(sorted(KINDS)), VALUES, max_size=8))
def test_anything_a_recipe_may_hold_is_judged_without_an_error(fields):
    for keys, sentence in findings({**DEFAULTS, **fields}):
        assert keys
        assert set(keys) <= set(KINDS)
        assert sentence == sentence.strip()
        assert len(keys) == 1 or not sentence.startswith("is ")

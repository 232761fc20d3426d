from itertools import pairwise

import pytest
from transformers.activations import ACT2FN

from pipelines.architectures.arithmetic import DEFAULTS
from pipelines.architectures.contradictions import ACTIVATIONS, contradictions


def test_the_defaults_contradict_nothing():
    assert contradictions(DEFAULTS) == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"family": "decoder"}, "family is 'decoder', must be one of: encoder (the only one built so far)"),
        ({"position": "rope"}, "position is 'rope', must be one of: learned, sinusoidal, rotary"),
        ({"norm_position": "both"}, "norm_position is 'both', must be one of: post, pre"),
        ({"hidden_size": -4}, "hidden_size is -4, must be a whole number of at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, must be a whole number of at least 1"),
        ({"intermediate_size": 3.5}, "intermediate_size is 3.5, must be a whole number of at least 1"),
        ({"vocab_size": "512"}, "vocab_size is '512', must be a whole number of at least 1"),
        ({"vocab_size": True}, "vocab_size is True, must be a whole number of at least 1"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0, must be a probability of at least 0 and below 1"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0.0, must be a number above 0"),
        ({"rope_theta": 0}, "rope_theta is 0, must be a number above 0"),
        ({"sparse_prediction": "yes"}, "sparse_prediction is 'yes', must be true or false"),
        ({"pad_token_id": -1}, "pad_token_id is -1, must be the id of a token, or null"),
        ({"type_vocab_size": 0}, "type_vocab_size is 0, must be a whole number of at least 1; 1 means"),
        (
            {"classifier_dropout": 2},
            "classifier_dropout is 2, must be a probability of at least 0 and below 1, or null",
        ),
        ({"hidden_size": 12, "num_attention_heads": 5}, "choose one of 1, 2, 3, 4, 6, 12 heads"),
        ({"position": "sinusoidal", "hidden_size": 15}, "choose an even hidden_size, or position: learned"),
        (
            {"position": "rotary", "hidden_size": 15, "num_attention_heads": 5},
            "position is 'rotary' and each head is 3 wide (hidden_size 15, num_attention_heads 5): rotation turns pairs",
        ),
        ({"position": "rotary", "hidden_size": 16, "num_attention_heads": 5}, "choose one of 1, 2, 4, 8, 16 heads"),
        ({"pad_token_id": 9, "vocab_size": 9}, "pad_token_id is 9 and vocab_size is 9: choose an id below"),
    ],
)
def test_a_mistake_is_named_with_what_was_given_and_what_is_allowed(fields, sentence):
    (found,) = contradictions(fields)
    assert sentence in found


def test_every_mistake_is_reported_at_once():
    assert len(contradictions({"family": "decoder", "hidden_size": 0, "hidden_act": "gleu"})) == 3


def test_a_misspelt_choice_is_answered_with_the_nearest_one():
    (found,) = contradictions({"hidden_act": "gleu"})
    assert found.startswith("hidden_act is 'gleu', must be one of: gelu, ")
    assert found.endswith("; did you mean 'gelu'?")


def test_null_is_allowed_where_it_means_something():
    assert contradictions({"pad_token_id": None, "classifier_dropout": None}) == []


def test_every_allowed_activation_exists_and_holds_no_parameters():
    assert all(not list(ACT2FN[name].parameters()) for name in ACTIVATIONS)


def test_activations_are_listed_in_order():
    assert all(first < second for first, second in pairwise(ACTIVATIONS))

"""The arithmetic against the models themselves: their weights by name, and torch's counter of operations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import pipelines.architectures as family
from pipelines.architectures import FineryConfig
from pipelines.architectures.arithmetic import (
    HEADS,
    forward_flops,
    growth,
    linear_layers,
    other_biases,
    parameter_count,
)
from tests.covering import examples

CLASSES = {
    "base": "FineryModel",
    "masked_lm": "FineryForMaskedLM",
    "pretraining": "FineryForPreTraining",
    "causal_lm": "FineryForCausalLM",
    "causal_lm_with_value": "FineryForCausalLMWithValueHead",
    "seq2seq_lm": "FineryForConditionalGeneration",
    "sequence_classification": "FineryForSequenceClassification",
    "token_classification": "FineryForTokenClassification",
    "question_answering": "FineryForQuestionAnswering",
    "multiple_choice": "FineryForMultipleChoice",
    "reward": "FineryForReward",
}
PARTS = {  # where a weight's name says it belongs, the first that fits
    "head": ("lm_head.", ".classifier.", ".score.", "qa_outputs.", "seq_relationship.", "value_head.", "length_head."),
    "norms": ("embeddings.norm.", "attention_norm.", "feed_forward_norm.", "output_norm.", "final_norm."),
    "cross_attention": (".cross_attention.",),
    "attention": (".attention.", "relative_bias"),
    "embeddings": ("embeddings.",),
    "feed_forward": (".feed_forward.",),
    "pooler": ("pooler.",),
}
SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 56,
    "vocab_size": 150,
    "max_position_embeddings": 90,
}
VARIANTS = [
    {},
    {"position": "sinusoidal", "norm_position": "pre", "tie_word_embeddings": False},
    {"position": "rotary", "norm_type": "rms_norm", "norm_position": "sandwich", "qk_norm": True, "hidden_act": "silu"},
    {"position": "alibi", "num_key_value_heads": 2, "is_gated_act": True, "mlp_bias": False, "attention_bias": False},
    {"position": "relative", "attention_scoring": "dot_product", "norm_bias": False, "num_key_value_heads": 1},
    {"position": "none", "attention_scoring": "general", "head_dim": 6, "qk_norm": True, "scale_logits": True},
    {"attention_scoring": "additive", "norm_position": "pre", "lm_head_bias": False, "hidden_act": "relu2"},
    {"attention_scoring": "cosine", "embedding_norm": False, "type_vocab_size": 3, "lm_head_bias": True},
    {"attention_pattern": "linear", "position": "rotary", "num_key_value_heads": 2, "embedding_norm": True},
    {"attention_pattern": "sliding_window", "sliding_window": 5, "global_attn_every_n_layers": 2, "position": "rotary"},
]
ONLY_IN = {
    "encoder": [{"embedding_size": 12}, {"embedding_size": 12, "position": "relative", "tie_word_embeddings": False}],
    "decoder": [{"attention_pattern": "causal", "scale_residual_init": True}],
    "encoder-decoder": [
        {"num_decoder_layers": 3, "length_prediction": True, "bidirectional_decoder": True},
        {"num_decoder_layers": 1, "attention_pattern": "linear", "norm_position": "pre"},
    ],
}
CASES = [(name, {"family": name, **words}) for name in HEADS for words in [*VARIANTS, *ONLY_IN[name]]]


LANGUAGE = ("masked_lm", "pretraining", "causal_lm", "causal_lm_with_value", "seq2seq_lm")


def heads_of(name: str, config: dict) -> list[str]:
    """Every head of a family's usual design; those whose matrix depends on the design in every other."""
    return [head for head in HEADS[name] if len(config) == 1 or head in LANGUAGE]


def build(config: dict, head: str, num_labels: int, device: str = "meta"):
    live = FineryConfig(**SIZES, **config, num_labels=num_labels)
    with torch.device(device):
        return getattr(family, CLASSES[head])._from_config(live, attn_implementation="eager").eval()


def counted_by_name(model) -> dict[str, int]:
    counts = dict.fromkeys(PARTS, 0)
    for name, weight in model.named_parameters():  # a shared weight appears once
        name = "." + name
        counts[next(part for part, marks in PARTS.items() if any(mark in name for mark in marks))] += weight.numel()
    return {**counts, "total": sum(weight.numel() for weight in model.parameters())}


def short(words) -> str:
    return "-".join(str(value) for value in words.values()) if isinstance(words, dict) else str(words)


def test_every_head_of_every_family_is_counted():
    from pipelines.core.architecture_fields import HEADS as offered

    assert {name: heads[1:] for name, heads in HEADS.items()} == offered
    assert {head for heads in HEADS.values() for head in heads} == set(CLASSES)


@pytest.mark.parametrize(("name", "config"), CASES, ids=short)
def test_weights_and_linear_layers_are_those_of_the_built_models(name, config):
    for head in heads_of(name, config):
        model = build(config, head, 3)
        assert parameter_count({**SIZES, **config}, head, 3) == counted_by_name(model), head
        output = model.get_output_embeddings() if head != "base" else None
        prefix = "model." if head == "base" else ""
        built = {
            (prefix + part, module.in_features, module.out_features, module.bias is not None)
            for part, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and module is not output
        }
        counted = linear_layers({**SIZES, **config}, head, 3)
        assert {(each.name, each.inputs, each.outputs, each.bias) for each in counted} == built, head
        biases = sum(weight.numel() for part, weight in model.named_parameters() if part.endswith(".bias"))
        in_layers = sum(each.outputs for each in counted if each.bias)
        assert other_biases({**SIZES, **config}, head) == biases - in_layers, head


def inputs_of(name: str, head: str, length: int, target: int) -> dict[str, torch.Tensor]:
    shape = (1, 2, length) if head == "multiple_choice" else (2, length)
    inputs = {"input_ids": torch.ones(shape, dtype=torch.long)}
    if name == "encoder-decoder" and head in ("base", "seq2seq_lm"):
        inputs["decoder_input_ids"] = torch.ones(2, target, dtype=torch.long)
    return inputs


def in_turn(at: int) -> bool:
    """Whether a usual run computes it: each family's usual design and its own, the other designs in one family each."""
    name, config = CASES[at]
    words = {key: value for key, value in config.items() if key != "family"}
    return not words or words not in VARIANTS or VARIANTS.index(words) % len(HEADS) == list(HEADS).index(name)


@pytest.mark.parametrize(
    ("name", "config"),
    [pytest.param(*case, marks=() if in_turn(at) else pytest.mark.long) for at, case in enumerate(CASES)],
    ids=short,
)
def test_operations_are_those_that_torch_counts(name, config):
    """Two sequences of 20 tokens, and targets of 9 where there are such."""
    for head in heads_of(name, config):
        inputs = inputs_of(name, head, 20, 9)
        model = build(config, head, 5, "cpu")
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(**inputs)
        target = 9 if "decoder_input_ids" in inputs else 20
        computed = forward_flops({**SIZES, **config}, head, 20, num_labels=5, target_length=target)
        assert 2 * computed["total"] == pytest.approx(counter.get_total_flops(), rel=0.01), head


def test_a_head_that_sees_few_tokens_costs_in_proportion():
    for name, head in (("encoder", "masked_lm"), ("decoder", "causal_lm"), ("encoder-decoder", "seq2seq_lm")):
        full = forward_flops({"family": name}, head, 128)
        sparse = forward_flops({"family": name}, head, 128, predicted_tokens=16)
        assert sparse["head"] * 8 == full["head"]
        assert full["total"] - sparse["total"] == full["head"] - sparse["head"]


def test_the_operations_of_one_small_layer_by_hand():
    """One layer of width 4 with 8 inside, 3 tokens: 2 operations a weight and token, and 2·2·3·3·4 for the scores."""
    config = {"hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    flops = forward_flops(config, "sequence_classification", 3, num_labels=2)
    assert flops["attention_projections"] == 2 * 3 * (4 * 16)
    assert flops["attention_scores"] == 144
    assert flops["feed_forward"] == 2 * 3 * (4 * 8 + 8 * 4)
    assert flops["pooler"] == 2 * 16
    assert flops["head"] == 2 * 8


def test_cross_attention_by_hand():
    """3 target tokens look at 5 source tokens: queries and outputs of the former, keys and values of the latter."""
    config = {
        "family": "encoder-decoder",
        "hidden_size": 4,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
    }
    flops = forward_flops(config, "base", 5, target_length=3)
    assert flops["cross_attention_projections"] == 2 * 16 * (3 + 5 + 5 + 3)
    assert flops["cross_attention_scores"] == 2 * 2 * 3 * 5 * 4
    assert flops["attention_scores"] == 2 * 2 * 4 * (5 * 5 + 3 * 3)


def test_scores_pass_the_other_terms_of_bert_at_six_widths():
    """n²·d against n·d²: 4·n·d against 8·d² + 16·d² operations a token, so n = 6d; attention passes 16·d² at 2d."""
    grown = growth({"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256}, (64,))
    assert grown["crossover"] == 6 * 64 + 1
    assert grown["attention_crossover"] == 2 * 64 + 1
    (row,) = grown["lengths"]
    per_token = 12 * 64  # twelve layers, 64 tokens
    assert row == {
        "length": 64,
        "projections": per_token * 8 * 64**2,
        "scores": per_token * 4 * 64 * 64,
        "feed_forward": per_token * 16 * 64**2,
    }


def test_linear_attention_never_passes_the_other_terms():
    assert growth({"attention_pattern": "linear"})["crossover"] is None
    assert growth({"attention_pattern": "linear", "family": "decoder"})["crossover"] is None


@examples(40, 200)
@given(
    st.sampled_from(sorted(HEADS)),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["scaled_dot_product", "general", "additive"]),
)
def test_the_crossover_is_the_first_length_whose_scores_cost_more(name, layers, heads, scoring):
    config = {
        "family": name,
        "hidden_size": 8 * heads,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "attention_scoring": scoring,
    }
    crossover = growth(config, ())["crossover"]
    before, at = growth(config, (crossover - 1, crossover))["lengths"]
    assert before["scores"] <= before["projections"] + before["feed_forward"]
    assert at["scores"] > at["projections"] + at["feed_forward"]


def test_an_impossible_shape_is_refused_in_the_configs_words():
    with pytest.raises(ValueError, match="3 attention heads do not divide hidden_size 10"):
        parameter_count({"hidden_size": 10, "num_attention_heads": 3}, "base")


def test_an_unknown_head_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="head is 'causal_lm', must be one of: base, masked_lm, pretraining, "):
        parameter_count({}, "causal_lm")

"""The torch-free tables say what the live classes of the pinned libraries say."""

import json
from dataclasses import MISSING, fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core import architecture_fields, generate_model_types
from pipelines.core.config import misfit
from pipelines.core.model_types import model_types

SAMPLE = ("bert", "gpt2", "xlnet", "t5", "bart", "electra", "roberta", "llama", "modernbert", "deberta-v2", "albert")


# ---- our own family -------------------------------------------------------------------------------------------------


def own_fields() -> dict[str, Any]:
    """Fields that FineryConfig declares itself, by name."""
    from pipelines.architectures.configuration_finery import FineryConfig

    declared = FineryConfig.__annotations__
    return {each.name: each for each in fields(FineryConfig) if each.name in declared}


def test_our_family_has_the_keys_of_the_live_config():
    assert set(architecture_fields.KINDS) == set(own_fields())


def test_our_family_has_the_default_values_of_the_live_config():
    assert {name: each.default for name, each in own_fields().items()} == architecture_fields.DEFAULTS


def test_our_family_has_the_types_of_the_live_config():
    from pipelines.architectures.configuration_finery import FineryConfig

    for name in own_fields():
        live = set(generate_model_types.kind(FineryConfig.__annotations__[name]).split("|"))
        if "float" in live:
            live -= {"int"}  # whole numbers stand for floats in a recipe
        ours = {"str" if word.startswith("=") else word for word in architecture_fields.KINDS[name].split("|")}
        assert live == ours, name


def test_the_words_and_rules_are_those_of_the_family_itself():
    from pipelines.architectures import configuration_rules

    assert architecture_fields.KINDS is configuration_rules.KINDS
    assert architecture_fields.DEFAULTS is configuration_rules.DEFAULTS
    overruled = {word for key, gone in architecture_fields.OVERRULED.items() for word in (key, *gone)}
    assert overruled <= set(configuration_rules.KINDS)


def test_every_activation_is_one_of_transformers():
    from transformers.activations import ACT2FN

    from pipelines.architectures.configuration_rules import ACTIVATIONS

    assert set(ACTIVATIONS) - {"gelu_tanh"} <= set(ACT2FN)  # our name of the original formula


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.floats(-0.5, 1.5),
    st.sampled_from(
        [
            "encoder",
            "decoder",
            "encoder-decoder",
            "learned",
            "relu",
            "rotary",
            "sinusoidal",
            "pre",
            "post",
            "alibi",
            "relative",
            "linear",
            "sliding_window",
            "causal",
            "full",
            "rms_norm",
            "cosine",
            "x",
        ]
    ),
)


@settings(deadline=None, max_examples=400)
@given(st.dictionaries(st.sampled_from(sorted(architecture_fields.DEFAULTS)), values, min_size=1, max_size=5))
def test_a_shape_is_refused_here_exactly_when_the_live_rules_refuse_it(words):
    from pipelines.architectures.configuration_rules import contradictions

    refused = bool(contradictions({**architecture_fields.DEFAULTS, **words}))
    assert bool(architecture_fields.mistakes(words)) == refused


def test_a_shape_whose_heads_cannot_turn_in_pairs_is_refused_like_the_live_rules_do():
    from pipelines.architectures.configuration_rules import contradictions

    for width, heads in ((15, 5), (15, 3), (12, 12), (12, 6), (16, 5)):
        words = {"position": "rotary", "hidden_size": width, "num_attention_heads": heads}
        found = architecture_fields.mistakes(words)
        assert len(found) == len(contradictions(words)) == (0 if (width, heads) == (12, 6) else 1)
    (found,) = architecture_fields.mistakes({"preset": "bert-mini", "position": "rotary", "num_attention_heads": 256})
    assert found[0] == ("num_attention_heads",)
    assert found[1].startswith("rotary positions turn pairs of numbers, but 256 attention heads of hidden_size 256 are")


@pytest.mark.parametrize("preset", sorted(architecture_fields.presets()))
def test_every_preset_builds_the_live_config(preset):
    from pipelines.architectures import FineryConfig

    words = architecture_fields.resolve({"preset": preset, "position": "sinusoidal"})
    assert architecture_fields.mistakes({"preset": preset}) == []
    assert words.pop("model_type") == "finery"
    config = FineryConfig(**words)
    assert {key: getattr(config, key) for key in words} == words


# ---- foreign model types --------------------------------------------------------------------------------------------


def test_the_file_was_made_from_the_pinned_transformers():
    import transformers

    assert json.loads(generate_model_types.TARGET.read_text())["transformers"] == transformers.__version__
    assert generate_model_types.TARGET.stat().st_size < 400_000


@pytest.mark.parametrize("name", SAMPLE)
def test_a_model_type_has_the_keys_and_types_of_its_live_config(name):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    live = generate_model_types.describe(CONFIG_MAPPING[name])
    assert model_types()[name].keys == live["keys"]
    assert model_types()[name].aliases == live["aliases"]
    assert list(model_types()[name].heads) == live["heads"]


def test_the_heads_of_a_model_type_are_those_that_transformers_builds():
    from transformers import AutoConfig, AutoModelForMaskedLM

    assert "masked_lm" in architecture_fields.heads({"model_type": "electra"})
    assert "masked_lm" not in architecture_fields.heads({"model_type": "xlnet", "d_model": 32})
    with pytest.raises(ValueError, match="Unrecognized configuration class"):
        AutoModelForMaskedLM.from_config(AutoConfig.for_model("xlnet"))


def test_the_heads_of_our_families_are_those_of_the_live_auto_map():
    from pipelines.architectures.configuration_finery import AUTO_MAP

    named = {
        "".join(part.title() for part in head.split("_"))
        for heads in architecture_fields.HEADS.values()
        for head in heads
    }
    live = {auto_class.removeprefix("AutoModelFor") for auto_class in AUTO_MAP if auto_class.startswith("AutoModelFor")}
    spelt = {"MaskedLm": "MaskedLM", "Pretraining": "PreTraining", "CausalLm": "CausalLM", "Seq2SeqLm": "Seq2SeqLM"}
    spelt |= {"CausalLmWithValue": "CausalLMWithValueHead", "Seq2seqLm": "Seq2SeqLM"}
    assert {spelt.get(name, name) for name in named} == live


def test_the_whole_file_is_what_the_generator_makes():
    assert generate_model_types.TARGET.read_text() == generate_model_types.text()


@pytest.mark.parametrize("name", SAMPLE)
def test_the_live_config_accepts_its_own_defaults_through_the_table(name):
    """Default values have the types that the table asks for, and the live class takes them back."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = model_types()[name]
    plain = {each.name: each.default for each in fields(CONFIG_MAPPING[name]) if each.default is not MISSING}
    words = {key: plain[key] for key in known.keys if key in plain}
    assert architecture_fields.mistakes({"model_type": name, **words}) == []
    config = CONFIG_MAPPING[name](**words)
    assert config.model_type == name


@pytest.mark.parametrize("name", SAMPLE)
def test_what_the_table_refuses_as_a_type_the_live_config_refuses_too(name):
    from huggingface_hub.errors import StrictDataclassFieldValidationError
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    assert misfit("wide", model_types()[name].keys["vocab_size"])
    with pytest.raises(StrictDataclassFieldValidationError):
        CONFIG_MAPPING[name](vocab_size="wide")


def test_an_alias_means_what_it_means_to_the_live_config():
    from transformers import GPT2Config

    words = architecture_fields.resolve({"model_type": "gpt2", "hidden_size": 96, "num_hidden_layers": 3})
    assert words == {"model_type": "gpt2", "n_embd": 96, "n_layer": 3}
    assert GPT2Config(n_embd=96, n_layer=3).hidden_size == 96


# ---- LoRA -----------------------------------------------------------------------------------------------------------


def test_the_keys_of_the_lora_block_are_those_of_pefts_config():
    from peft import LoraConfig

    from pipelines.tuners.lora import LoRA

    ours = {"name", "lora_plus_ratio"}  # the latter is no part of the adapter, but of how it learns
    assert set(LoRA.model_fields) - ours <= {each.name for each in fields(LoraConfig)}

"""The tables of the recurrent and the convolutional family say what their live configurations say."""

from dataclasses import fields
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.architectures import FineryCnnConfig, FineryRnnConfig
from pipelines.architectures.convolutional_rules import RULES as CNN
from pipelines.architectures.recurrent_rules import CELLS, SCORINGS, STACKS
from pipelines.architectures.recurrent_rules import RULES as RNN
from pipelines.core import architecture_fields, generate_model_types
from tests.covering import examples

each_family = pytest.mark.parametrize(
    ("config", "rules"), [(FineryRnnConfig, RNN), (FineryCnnConfig, CNN)], ids=["rnn", "cnn"]
)


@each_family
def test_the_table_has_the_fields_defaults_and_types_of_the_live_config(config, rules):
    own = {each.name: each.default for each in fields(config) if each.name in config.__annotations__}
    assert own == rules.defaults
    for name, kind in rules.kinds.items():
        live = set(generate_model_types.kind(config.__annotations__[name]).split("|")) - {"int"}
        ours = {"str" if word.startswith("=") else word for word in kind.split("|")} - {"int"}
        assert live == ours, name


@each_family
def test_what_is_usual_is_written_out_and_contradicts_nothing(config, rules):
    built = config()
    assert {name: getattr(built, name) for name in rules.fields} == rules.completed({})
    assert config(**{name: getattr(built, name) for name in rules.fields}).to_dict() == built.to_dict()
    nulls = {name for name, value in rules.completed({}).items() if value is None}
    assert nulls <= {"bos_token_id", "eos_token_id", "decoder_start_token_id"}


@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_has_words_that_are_usual_for_it(stack):
    built = FineryRnnConfig(stack=stack)
    assert built.bidirectional == (stack != "decoder")
    assert built.attention_scoring == ("additive" if stack == "encoder-decoder" else "none")
    assert built.is_encoder_decoder == built.input_feeding == (stack == "encoder-decoder")
    assert FineryRnnConfig(stack=stack, hidden_size=64).embedding_size == 64


def test_every_cell_goes_with_every_way_of_scoring():
    for cell, scoring in product(CELLS, SCORINGS):
        assert FineryRnnConfig(cell=cell, attention_scoring=scoring).input_feeding == (scoring != "none")


def test_a_contradiction_is_refused_when_it_is_built_and_when_it_is_saved(tmp_path):
    with pytest.raises(ValueError, match="hidden_size 9 cannot be shared by two directions"):
        FineryRnnConfig(hidden_size=9)
    with pytest.raises(ValueError, match="kernel_size is 2, but a place of the encoder stands in the middle"):
        FineryCnnConfig(kernel_size=2)
    config = FineryRnnConfig(stack="decoder")
    config.bidirectional = True
    with pytest.raises(ValueError, match="would see the words that it must predict"):
        config.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("config.json"))


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.floats(-0.5, 1.5),
    st.sampled_from([*STACKS, *SCORINGS, *CELLS, "x"]),
)


@pytest.mark.parametrize(("family", "rules"), [("rnn", RNN), ("cnn", CNN)])
def test_a_shape_is_refused_in_a_recipe_exactly_when_the_live_rules_refuse_it(family, rules):
    @examples(150, 600)
    @given(st.dictionaries(st.sampled_from(sorted(rules.fields)), values, min_size=1, max_size=5))
    def agree(words):
        refused = bool(rules.contradictions(words))
        assert bool(architecture_fields.mistakes({"family": family, **words})) == refused

    agree()

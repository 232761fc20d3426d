import pytest
from transformers import AutoConfig

from pipelines.architectures.configuration_finery import AUTO_MAP, FineryConfig
from pipelines.architectures.registration import HEADS, WITHOUT_AUTO_CLASS, register


def test_registering_twice_is_harmless():
    register()
    register()


FAMILY = {"AutoModelForCausalLM": "decoder", "AutoModelForSeq2SeqLM": "encoder-decoder"}
CLASSES = {**{auto_class.__name__: head for auto_class, head in HEADS.items()}, **WITHOUT_AUTO_CLASS}

each_auto_class = pytest.mark.parametrize("auto_class", HEADS, ids=lambda auto_class: auto_class.__name__)


@each_auto_class
def test_each_auto_class_builds_its_head(auto_class, tiny):
    config = tiny(family=FAMILY.get(auto_class.__name__, "encoder"))
    assert type(auto_class.from_config(config)) is HEADS[auto_class]


def test_a_config_is_found_by_model_type():
    assert type(AutoConfig.for_model("finery")) is FineryConfig


def test_the_auto_map_says_the_same_as_the_registration():
    said = {name: f"{head.__module__.rpartition('.')[2]}.{head.__name__}" for name, head in CLASSES.items()}
    assert {"AutoConfig": "configuration_finery.FineryConfig", **said} == AUTO_MAP


@pytest.mark.parametrize(("name", "head"), CLASSES.items())
def test_each_head_is_saved_under_its_own_auto_class(name, head):
    assert head._auto_class == name

import pytest
from transformers import AutoConfig

from pipelines.architectures.configuration_finery import AUTO_MAP, FineryConfig
from pipelines.architectures.registration import HEADS, register


def test_registering_twice_is_harmless():
    register()
    register()


@pytest.mark.parametrize("auto_class", HEADS, ids=lambda auto_class: auto_class.__name__)
def test_each_auto_class_builds_its_head(auto_class, tiny):
    assert type(auto_class.from_config(tiny())) is HEADS[auto_class]


def test_a_config_is_found_by_model_type():
    assert type(AutoConfig.for_model("finery")) is FineryConfig


def test_the_auto_map_says_the_same_as_the_registration():
    said = {auto_class.__name__: f"modeling_finery.{head.__name__}" for auto_class, head in HEADS.items()}
    assert {"AutoConfig": "configuration_finery.FineryConfig", **said} == AUTO_MAP


@pytest.mark.parametrize("auto_class", HEADS, ids=lambda auto_class: auto_class.__name__)
def test_each_head_is_saved_under_its_own_auto_class(auto_class):
    assert HEADS[auto_class]._auto_class == auto_class.__name__

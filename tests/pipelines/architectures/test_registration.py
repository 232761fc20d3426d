import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig

import pipelines.architectures
from pipelines.architectures import FineryCnnConfig, FineryRnnConfig
from pipelines.architectures.configuration_finery import AUTO_MAP, FineryConfig
from pipelines.architectures.configuration_finery_cnn import AUTO_MAP as CNN_MAP
from pipelines.architectures.configuration_finery_rnn import AUTO_MAP as RNN_MAP
from pipelines.architectures.registration import CNN_HEADS, FAMILIES, HEADS, RNN_HEADS, WITHOUT_AUTO_CLASS, register
from tests import strangers


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


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.model_type)
def test_a_config_is_found_by_model_type(config):
    assert type(AutoConfig.for_model(config.model_type)) is config


EVERY_CLASS = {
    "finery": (AUTO_MAP, FineryConfig, CLASSES),
    "rnn": (RNN_MAP, FineryRnnConfig, {each.__name__: head for each, head in RNN_HEADS.items()}),
    "cnn": (CNN_MAP, FineryCnnConfig, {each.__name__: head for each, head in CNN_HEADS.items()}),
}


@pytest.mark.parametrize("family", EVERY_CLASS)
def test_the_auto_map_says_the_same_as_the_registration(family):
    auto_map, config, classes = EVERY_CLASS[family]
    named = {"AutoConfig": config, **classes}
    assert {name: f"{each.__module__.rpartition('.')[2]}.{each.__name__}" for name, each in named.items()} == auto_map


@pytest.mark.parametrize(("name", "head"), [pair for *_, classes in EVERY_CLASS.values() for pair in classes.items()])
def test_each_head_is_saved_under_its_own_auto_class(name, head):
    assert head._auto_class == name


REPOSITORY = Path(pipelines.architectures.__file__).parents[2]


def test_importing_the_package_and_its_arithmetic_loads_neither_torch_nor_transformers():
    code = (
        "import sys, pipelines.architectures\n"
        "from pipelines.architectures import arithmetic, convolutional_arithmetic, recurrent_arithmetic\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_asking_for_a_class_registers_the_family(tmp_path):
    code = (
        "import sys\n"
        "del sys.modules['pipelines']\n"
        "sys.path.insert(0, task['repository'])\n"
        "from transformers import AutoConfig, AutoModelForMaskedLM\n"
        "from pipelines.architectures import FineryConfig\n"
        "config = AutoConfig.for_model('finery', hidden_size=8, num_attention_heads=2, num_hidden_layers=1)\n"
        "answer['head'] = type(AutoModelForMaskedLM.from_config(config)).__name__"
    )
    assert strangers.run(code, tmp_path, repository=str(REPOSITORY)) == {"head": "FineryForMaskedLM"}


def test_every_public_name_is_there():
    for name in pipelines.architectures.__all__:
        assert getattr(pipelines.architectures, name).__name__ == name
    assert set(pipelines.architectures.__all__) <= set(dir(pipelines.architectures))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="FineryForNothing"):
        _ = pipelines.architectures.FineryForNothing

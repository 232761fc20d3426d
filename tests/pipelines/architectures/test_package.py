import subprocess
import sys
from pathlib import Path

import pytest

import pipelines.architectures

REPOSITORY = Path(pipelines.architectures.__file__).parents[2]


def in_a_new_process(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_importing_the_package_and_its_arithmetic_loads_neither_torch_nor_transformers():
    code = (
        "import sys, pipelines.architectures\n"
        "from pipelines.architectures import arithmetic, contradictions\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert in_a_new_process(code) == "[]"


def test_asking_for_a_class_registers_the_family():
    code = (
        "from pipelines.architectures import FineryConfig\n"
        "from transformers import AutoConfig, AutoModelForMaskedLM\n"
        "config = AutoConfig.for_model('finery', hidden_size=8, num_attention_heads=2, num_hidden_layers=1)\n"
        "print(type(AutoModelForMaskedLM.from_config(config)).__name__)"
    )
    assert in_a_new_process(code) == "FineryForMaskedLM"


def test_every_public_name_is_there():
    for name in pipelines.architectures.__all__:
        assert getattr(pipelines.architectures, name).__name__ == name
    assert set(pipelines.architectures.__all__) <= set(dir(pipelines.architectures))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="FineryForNothing"):
        _ = pipelines.architectures.FineryForNothing

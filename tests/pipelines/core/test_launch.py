"""`launch`: its own words, and those of accelerate configurations; what Finery does not do is refused with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from pipelines.core.errors import RecipeError
from pipelines.core.files import configs_folder
from pipelines.core.launch import SEVERAL, Launch, from_accelerate
from pipelines.core.load import load

FILES = sorted((configs_folder() / "launch").glob("*.yaml"))
RECIPE = """\
name: mini
launch: {config: mine.yaml}
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, task: builtin/python-docs}
"""
FSDP = """\
distributed_type: FSDP
num_processes: 4
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_file_of_a_profile_means_that_profile(path: Path) -> None:
    words, issues = from_accelerate(path)
    assert issues == []
    launch = Launch.model_validate(words)
    assert launch.profile == path.stem
    assert launch.mixed_precision == "bf16"


def test_every_profile_has_its_file() -> None:
    assert {path.stem for path in FILES} == {"single", *SEVERAL} >= {"zero2", "zero3"}


def test_a_recipe_that_names_a_configuration_is_resolved_to_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(FSDP)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    recipe = load(tmp_path / "recipe.yaml")
    assert recipe.launch == Launch(profile="fsdp2", num_processes=4, mixed_precision="bf16")
    assert YAML(typ="safe").load(recipe.to_yaml())["launch"] == {
        "profile": "fsdp2",
        "num_processes": 4,
        "mixed_precision": "bf16",
    }


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (FSDP.replace("version: 2", "version: 1"), "mine.yaml:5  fsdp_config.fsdp_version is 1: must be 2"),
        (FSDP.replace("fsdp_version: 2", "fsdp_reshard_after_forward: true"), "mine.yaml:4  fsdp_config says no fsdp_"),
        (FSDP + "  fsdp_offload_params: true\n", "fsdp_config.fsdp_offload_params is true: must be false"),
        (FSDP + "  fsdp_new: 1\n", "mine.yaml:6  fsdp_config.fsdp_new is 1: is not offered; leave it out"),
        (FSDP.replace("bf16", "fp8"), 'mine.yaml:3  mixed_precision is "fp8", must be one of no, bf16, fp16'),
        (
            FSDP.replace("FSDP", "XLA"),
            'mine.yaml:1  distributed_type is "XLA", must be one of NO, MULTI_GPU, MULTI_CPU',
        ),
        (FSDP.replace("FSDP", "'NO'"), "num_processes is 4, but distributed_type NO is one process"),
        (FSDP + "num_machines: 2\n", "num_machines is 2: must be 1: hosts are named by the environment"),
        (FSDP + "dynamo_config: {dynamo_backend: INDUCTOR}\n", 'dynamo_config.dynamo_backend is "INDUCTOR"'),
        (FSDP + "deepspeed_config: {zero_stage: 3}\n", "zero_stage is 3: belongs to distributed_type DEEPSPEED"),
        (
            FSDP.replace("FSDP", "DEEPSPEED"),
            "mine.yaml:5  fsdp_config.fsdp_version is 2: belongs to distributed_type FSDP",
        ),
        ("distributed_type: DEEPSPEED\n", "mine.yaml:1  deepspeed_config says no zero_stage, which must be 2 or 3"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 1}\n", "zero_stage is 1: must be 2 or 3"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: [1]\n", "mine.yaml:2  deepspeed_config"),
        ("distributed_type: [FSDP]\n", "mine.yaml:1  distributed_type"),
        ("- 1\n", "no accelerate configuration"),
        ("a: [", "is not valid YAML"),
        (None, "there is no such file"),
    ],
)
def test_what_finery_does_not_do_is_refused_with_its_place(text: str | None, mistake: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(RecipeError) as raised:
        load(tmp_path / "recipe.yaml")
    assert mistake in str(raised.value)
    assert "recipe.yaml:2  launch.config: " in str(raised.value)


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        ({"profile": "fsdp2", "num_processes": 1}, "needs at least 2"),
        ({"profile": "fsdp2", "mixed_precision": "fp16"}, "is fp16, which the profile 'fsdp2' does not offer"),
        ({"num_processes": 4, "hosts": 3}, "is 3, which 4 processes cannot share evenly"),
        ({"config": "mine.yaml", "profile": "ddp"}, "is given, and 'config' says it too"),
    ],
)
def test_words_that_contradict_each_other(words: dict[str, Any], mistake: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Launch.model_validate(words)
    assert mistake in str(raised.value)

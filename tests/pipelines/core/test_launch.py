"""`launch`: its own words, and those of accelerate configurations; what Finery does not do is refused with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from pipelines.core.errors import RecipeError
from pipelines.core.files import configs_folder
from pipelines.core.launch import SEVERAL, Launch, faster_in_bf16, from_accelerate
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
    read = from_accelerate(path)
    assert (read.issues, read.decided) == ([], ())
    launch = Launch.model_validate(read.words)
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
        ({"config": str(FILES[0]), "host": 2}, "host"),
        ({"config": str(FILES[0]), "hosts": 3}, "is 3, which 2 processes cannot share evenly"),
    ],
)
def test_words_that_contradict_each_other(words: dict[str, Any], mistake: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Launch.model_validate(words)
    assert mistake in str(raised.value)


def test_hosts_beside_a_configuration_count() -> None:
    path = next(path for path in FILES if path.stem == "fsdp2")
    launch = Launch.model_validate({"config": str(path), "hosts": 2})
    assert (launch.profile, launch.num_processes, launch.hosts) == ("fsdp2", 2, 2)


# -- files that accelerate writes --------------------------------------------------------------------------------------

Written = Callable[..., Path]
MULTI_GPU = {"Which type of machine": "multi-GPU", "should be used for distributed training": 4}
MULTI_CPU = {"Which type of machine": "multi-CPU", "should be used for distributed training": 2}
FSDP2 = MULTI_GPU | {"FullyShardedDataParallel": True, "mixed precision": "bf16", "layer class names": "BertLayer"}
DEEPSPEED = MULTI_GPU | {"use DeepSpeed": True, "mixed precision": "bf16", "use gradient clipping": True}
ZERO3 = DEEPSPEED | {"ZeRO optimization stage": 3, "save 16-bit": True, "zero.Init": True}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """The file that `accelerate config` writes for these answers, by parts of its questions; else its defaults."""
    from accelerate.commands.config import cluster

    def write(answers: dict[str, Any]) -> Path:
        left = dict(answers)

        def answer(question: str, default: Any) -> Any:
            part = next((part for part in left if part in question), None)
            return default if part is None else left.pop(part)

        def field(question: str, convert: object = None, default: Any = None, error_message: object = None) -> Any:
            return answer(question, default)

        def options(question: str, choices: list[Any], convert: Any = None, default: int = 0) -> Any:
            index = choices.index(answer(question, choices[default]))
            return index if convert is None else convert(index)

        monkeypatch.setattr(cluster, "_ask_field", field)
        monkeypatch.setattr(cluster, "_ask_options", options)
        monkeypatch.setattr(cluster, "is_deepspeed_available", lambda: True)
        path = tmp_path / "mine.yaml"
        cluster.get_cluster_input().to_yaml_file(str(path))
        assert left == {}, "questions that were not asked"
        return path

    return write


@pytest.mark.parametrize(
    ("answers", "words", "decided"),
    [
        ({}, ("single", 1, "no"), []),
        ({"CPU only": True}, ("single", 1, "no"), ["use_cpu"]),
        (MULTI_GPU | {"mixed precision": "fp16", "numa efficiency": True}, ("ddp", 4, "fp16"), ["enable_cpu_affinity"]),
        (MULTI_CPU, ("ddp", 2, "no"), ["use_cpu"]),
        (
            FSDP2,
            ("fsdp2", 4, "bf16"),
            ["fsdp_config.fsdp_state_dict_type", "fsdp_config.fsdp_transformer_layer_cls_to_wrap"],
        ),
        (
            FSDP2 | {"RAM efficient": False, "parallelism config": True, "FSDP shard size": 4},
            ("fsdp2", 4, "bf16"),
            [
                "fsdp_config.fsdp_cpu_ram_efficient_loading",
                "fsdp_config.fsdp_state_dict_type",
                "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
            ],
        ),
        (
            DEEPSPEED,
            ("zero2", 4, "bf16"),
            ["deepspeed_config.gradient_accumulation_steps", "deepspeed_config.gradient_clipping"],
        ),
        (
            ZERO3,
            ("zero3", 4, "bf16"),
            [
                "deepspeed_config.gradient_accumulation_steps",
                "deepspeed_config.gradient_clipping",
                "deepspeed_config.zero3_init_flag",
                "deepspeed_config.zero3_save_16bit_model",
            ],
        ),
    ],
    ids=["one GPU", "one CPU", "ddp", "CPUs", "fsdp2", "fsdp2 by parallelism", "zero2", "zero3"],
)
def test_a_file_that_accelerate_wrote_is_taken_as_it_is(
    answers: dict[str, Any], words: tuple[str, int, str], decided: list[str], written: Written
) -> None:
    path = written(answers)
    read = from_accelerate(path)
    assert read.issues == []
    assert tuple(read.words.values()) == words
    assert [sentence.split("  ")[1].split(" is ")[0] for sentence in read.decided] == decided
    lines = path.read_text().splitlines()
    for sentence in read.decided:
        place, text = sentence.split("  ")
        assert lines[int(place.rpartition(":")[2]) - 1].strip().startswith(text.split(" ")[0].split(".")[-1] + ":")
        assert ", which Finery decides itself: " in text


def test_the_default_that_accelerate_writes_is_taken(tmp_path: Path) -> None:
    from accelerate.commands.config.default import write_basic_config

    read = from_accelerate(write_basic_config(save_location=str(tmp_path / "default_config.yaml")))
    assert read.issues == []


@pytest.mark.parametrize(
    ("answers", "mistake"),
    [
        (FSDP2 | {"offload parameters": True}, "fsdp_config.fsdp_offload_params is true: must be false"),
        (FSDP2 | {"activation checkpointing": True}, "write arguments: {activation_checkpointing: true} in the stage"),
        (FSDP2 | {"resharding after forward": False}, "fsdp_reshard_after_forward is false: must be true"),
        (FSDP2 | {"FSDP version": 1}, "fsdp_config.fsdp_version is 1: must be 2"),
        (FSDP2 | {"parallelism config": True, "context parallelism size": 2}, "must be 1: context parallelism"),
        (FSDP2 | {"parallelism config": True, "FSDP shard size": 2}, "dp_shard_size is 2: must be num_processes"),
        (DEEPSPEED | {"offload optimizer states": "cpu"}, 'offload_optimizer_device is "cpu": must be none'),
        (DEEPSPEED | {"ZeRO optimization stage": 1}, "deepspeed_config.zero_stage is 1: must be 2 or 3"),
        (
            MULTI_GPU | {"use DeepSpeed": True, "json file": True},
            "is not read: Finery writes DeepSpeed's configuration",
        ),
        (MULTI_GPU | {"by id": "0,1"}, 'gpu_ids is "0,1": must be all: set CUDA_VISIBLE_DEVICES'),
        (MULTI_GPU | {"torch dynamo": True}, 'dynamo_backend is "INDUCTOR": must be NO'),
        (MULTI_GPU | {"different machines": 2, "rank of this machine": 1}, "machine_rank is 1: must be 0"),
        (MULTI_CPU | {"mpirun": True}, "is not offered: torchrun starts the processes"),
        (MULTI_GPU | {"Megatron-LM": True}, 'distributed_type is "MEGATRON_LM", must be one of NO, MULTI_GPU'),
    ],
)
def test_what_would_give_another_result_is_refused_with_what_to_do(
    answers: dict[str, Any], mistake: str, written: Written
) -> None:
    text = "\n".join(from_accelerate(written(answers)).issues)
    assert mistake in text


def test_what_finery_decides_itself_is_a_warning_of_the_recipe(written: Written, tmp_path: Path) -> None:
    written(FSDP2)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    first, second = load(tmp_path / "recipe.yaml").doubts()
    assert first.startswith("launch.config: ")
    assert 'fsdp_config.fsdp_state_dict_type is "SHARDED_STATE_DICT", which Finery decides itself: checkpoints' in first
    assert "fsdp_transformer_layer_cls_to_wrap" in second


def test_a_profile_whose_package_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.core.launch.find_spec", lambda name: None)
    why = Launch(profile="zero3", num_processes=2).unavailable_reason()
    assert why is not None
    assert why.startswith("the profile zero3 needs the package deepspeed")
    assert Launch(profile="fsdp2", num_processes=2).unavailable_reason() is None


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", "avx512f avx512_bf16", True),
        ("GenuineIntel", "avx512f avx512_bf16", False),
        ("GenuineIntel", "avx512f avx512_bf16 amx_bf16", True),
        ("GenuineIntel", "avx512f", False),
        ("AuthenticAMD", "avx2", False),
    ],
)
def test_a_processor_is_faster_in_bf16_by_its_maker_and_flags(
    vendor: str, flags: str, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n")
    assert faster_in_bf16(tmp_path) is expected

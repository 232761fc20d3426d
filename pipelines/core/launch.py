"""How the processes of a run are started: the recipe's `launch`, and what an accelerate configuration says of it.

`launch: {config: my-accelerate.yaml}` takes profile, processes and precision from a file that `accelerate config`
wrote. What such a file asks for beside these is either what Finery does anyway, or refused: nothing in it is passed
over. The files of `configs/launch`, one a profile, are such files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from pipelines.core.config import Block, ConfigIssue, ConfigIssues, Position, key_path, show
from pipelines.core.errors import RecipeError
from pipelines.core.yaml_positions import line_of, read_yaml

ProfileName = Literal["single", "ddp", "fsdp2", "zero2", "zero3", "auto"]
"""The profiles that a recipe may ask for."""
SEVERAL = tuple(each for each in get_args(ProfileName) if each not in ("single", "auto"))
"""Those of at least two processes."""


def _processes(value: object) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1024):
        return value
    raise ValueError(f"is {show(value)}, must be auto or a whole number from 1 to 1024")


class Launch(Block):
    """How the processes of a stage are started."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{num_processes: auto, mixed_precision: auto}",
        "{profile: fsdp2, num_processes: 4, mixed_precision: bf16}",
        "{profile: ddp, num_processes: 16, hosts: 2}",
    )
    profile: ProfileName = "single"
    """`single`: one process, or as many as `num_processes` says, each with the whole model (`ddp`); `ddp`: that, and
    at least two; `fsdp2`: weights, gradients and optimizer state divided among at least two; `zero2`, `zero3`: by
    DeepSpeed on GPUs; `auto`: the simplest of the first three that fits into memory by the plan."""
    num_processes: Annotated[Annotated[int, Field(ge=1, le=1024)] | Literal["auto"], BeforeValidator(_processes)] = (
        "auto"
    )
    """`auto` is one per GPU, 1 on a CPU."""
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = "auto"
    """`auto` is bf16 where the hardware computes it natively, else no."""
    hosts: int | None = Field(None, ge=1, le=1024)
    """Hosts that share the processes evenly. A server gives a job as many; by hand each of them is started
    (docs/how-to/several-hosts.md). Default: those that the environment names, else one."""
    config: str | None = None
    """An accelerate configuration that says these three instead: a path relative to the recipe."""

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, data: Any, info: ValidationInfo) -> Any:
        """The words of `config` in the place of its name, so that the resolved recipe needs no other file."""
        if not isinstance(data, Mapping) or not isinstance(data.get("config"), str):
            return data
        also = [key for key in ("profile", "num_processes", "mixed_precision") if key in data]
        if also:
            raise ConfigIssues([((key,), "is given, and 'config' says it too; leave one of them out") for key in also])
        place = Path((info.context or {}).get("folder", Path.cwd())) / Path(data["config"]).expanduser()
        words, issues = from_accelerate(place)
        if issues:
            raise ConfigIssues([(("config",), issue) for issue in issues])
        return words

    @model_validator(mode="after")
    def _several_are_two(self) -> Launch:
        issues: list[ConfigIssue] = []
        if self.profile in SEVERAL and self.num_processes == 1:
            why = f"is 1, but the profile '{self.profile}' needs at least 2 (or use the profile 'single')"
            issues.append((("num_processes",), why))
        if self.hosts and isinstance(self.num_processes, int) and self.num_processes % self.hosts:
            why = f"is {self.hosts}, which {self.num_processes} processes cannot share evenly"
            issues.append((("hosts",), f"{why}; set launch.num_processes to a multiple of it"))
        if self.profile == "fsdp2" and self.mixed_precision == "fp16":
            issues.append((("mixed_precision",), "is fp16, which the profile 'fsdp2' does not offer; use bf16 or no"))
        if issues:
            raise ConfigIssues(issues)
        return self


# -- accelerate's words ------------------------------------------------------------------------------------------------

PROFILES = {"NO": "single", "MULTI_GPU": "ddp", "MULTI_CPU": "ddp", "FSDP": "fsdp2", "DEEPSPEED": "zero3"}
"""Profiles by accelerate's `distributed_type`."""
OWNERS = ("FSDP", "DEEPSPEED")
"""Kinds of distribution that have a block of their own in a file: `fsdp_config`, `deepspeed_config`."""
PRECISIONS = ("no", "bf16", "fp16")
NOT_HERE = "is not offered; leave it out"
DONE: dict[str, tuple[tuple[object, ...], str]] = {
    "compute_environment": (("LOCAL_MACHINE",), "must be LOCAL_MACHINE"),
    "num_machines": ((1,), "must be 1: hosts are named by the environment, see docs/how-to/many-gpus.md"),
    "machine_rank": ((0,), "must be 0: hosts are named by the environment, see docs/how-to/many-gpus.md"),
    "main_process_ip": ((None,), NOT_HERE),
    "main_process_port": ((None,), NOT_HERE),
    "main_training_function": (("main",), NOT_HERE),
    "rdzv_backend": (("static", "c10d"), NOT_HERE),
    "same_network": ((True, False), NOT_HERE),
    "gpu_ids": (("all", None), "must be all: set CUDA_VISIBLE_DEVICES to the GPUs that are to be used"),
    "use_cpu": ((False,), "must be false: to keep a run off its GPUs, set CUDA_VISIBLE_DEVICES to nothing"),
    "debug": ((False,), NOT_HERE),
    "enable_cpu_affinity": ((False,), NOT_HERE),
    "downcast_bf16": ((False, "no"), NOT_HERE),
    "tpu_use_cluster": ((False,), NOT_HERE),
    "tpu_use_sudo": ((False,), NOT_HERE),
    "tpu_env": (((), None), NOT_HERE),
    "dynamo_config": (({}, None), "is not read; write arguments: {torch_compile: true} in the stage"),
    "deepspeed_config.zero_stage": ((2, 3), "must be 2 or 3"),
    "deepspeed_config.zero3_init_flag": ((False,), "must be false: every process opens the model"),
    "deepspeed_config.zero3_save_16bit_model": ((False,), "must be false: it is saved in the type that it has"),
    "deepspeed_config.offload_optimizer_device": (("none",), "must be none: nothing is kept off the GPUs"),
    "deepspeed_config.offload_param_device": (("none",), "must be none: nothing is kept off the GPUs"),
    "deepspeed_config.gradient_accumulation_steps": ((), "is not read; write it into the arguments of the stage"),
    "deepspeed_config.gradient_clipping": ((), "is not read; write arguments: {max_grad_norm: …} in the stage"),
    "fsdp_config.fsdp_version": ((2,), "must be 2: the profile fsdp2 is torch's fully_shard"),
    "fsdp_config.fsdp_reshard_after_forward": ((True,), "must be true"),
    "fsdp_config.fsdp_auto_wrap_policy": (
        ("TRANSFORMER_BASED_WRAP",),
        "must be TRANSFORMER_BASED_WRAP: layers are found in the model",
    ),
    "fsdp_config.fsdp_state_dict_type": (
        ("FULL_STATE_DICT",),
        "must be FULL_STATE_DICT: any profile can go on from it",
    ),
    "fsdp_config.fsdp_offload_params": ((False,), "must be false: weights are not kept off the GPUs"),
    "fsdp_config.fsdp_cpu_ram_efficient_loading": ((False,), "must be false: every process opens the model"),
    "fsdp_config.fsdp_activation_checkpointing": (
        (False,),
        "must be false: write arguments: {activation_checkpointing: true} in the stage",
    ),
}
"""What a file may say beside profile, processes and precision: the values that are what Finery does, and the advice for
others."""


def from_accelerate(path: Path) -> tuple[dict[str, Any], list[str]]:
    """(the words of `launch` that an accelerate configuration means, what is wrong with it, with its lines)."""
    try:
        data, lines = read_yaml(path)
    except RecipeError as error:
        return {}, [str(mistake) for mistake in error.mistakes]
    if not isinstance(data, Mapping):
        return {}, [f"is {path}, which holds {show(data)} and no accelerate configuration"]
    issues: list[tuple[Position, str]] = []
    words: dict[str, Any] = {}
    kind = data.get("distributed_type")
    if isinstance(kind, str) and kind in PROFILES:
        words["profile"] = PROFILES[kind]
    else:
        given = f"is {show(kind)}" if "distributed_type" in data else "is missing"
        issues.append((("distributed_type",), f"{given}, must be one of {', '.join(PROFILES)}"))
    number = data.get("num_processes", "auto")
    if words.get("profile") == "single":
        number = 1 if number == "auto" else number
        if number != 1:
            issues.append((("num_processes",), f"is {show(number)}, but distributed_type NO is one process"))
    words["num_processes"] = number
    words["mixed_precision"] = data.get("mixed_precision") or "no"
    if words["mixed_precision"] not in PRECISIONS:
        given = show(words["mixed_precision"])
        issues.append((("mixed_precision",), f"is {given}, must be one of {', '.join(PRECISIONS)}"))
    read = {"distributed_type", "num_processes", "mixed_precision"}
    if kind == "DEEPSPEED":
        stage = _block(data, "deepspeed_config").get("zero_stage")
        words["profile"] = "zero2" if stage == 2 else "zero3"
        if stage is None:
            issues.append((("deepspeed_config",), "says no zero_stage, which must be 2 or 3"))
    if kind == "FSDP" and "fsdp_version" not in _block(data, "fsdp_config"):
        issues.append((("fsdp_config",), f"says no fsdp_version, which {DONE['fsdp_config.fsdp_version'][1]}"))
    for place, value in _leaves({key: value for key, value in data.items() if key not in read}):
        allowed, advice = DONE.get(key_path(place), ((), NOT_HERE))
        owner = next((each for each in OWNERS if place[0] == f"{each.lower()}_config"), kind)
        if owner != kind:
            issues.append((place, f"is {show(value)}: belongs to distributed_type {owner}; leave it out"))
        elif value not in allowed:
            issues.append((place, f"is {show(value)}: {advice}"))
    return words, [f"{path}:{line_of(place, lines) or 1}  {key_path(place)} {text}" for place, text in issues]


def _block(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    block = data.get(key)
    return block if isinstance(block, Mapping) else {}


def _leaves(data: Mapping[str, Any], place: Position = ()) -> Iterator[tuple[Position, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*place, key))
        elif not (isinstance(value, Mapping) and key.endswith("_config") and key != "dynamo_config"):
            yield (*place, key), value

"""How the processes of a run are started: the recipe's `launch`, and what an accelerate configuration says of it.

`launch: {config: my-accelerate.yaml}` takes profile, processes and precision from a file that `accelerate config`
wrote. Of what such a file asks for beside these, some is what Finery does anyway, some Finery decides itself and says
so in a warning, and what would change a result or a promise about memory is refused: nothing in it is passed over
without a word. The files of `configs/launch`, one a profile, are such files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from pipelines.core.config import Block, ConfigIssue, ConfigIssues, Position, key_path, show
from pipelines.core.errors import RecipeError
from pipelines.core.yaml_positions import line_of, read_yaml

ProfileName = Literal["single", "ddp", "fsdp2", "zero2", "zero3", "auto"]
"""The profiles that a recipe may ask for."""
SEVERAL = tuple(each for each in get_args(ProfileName) if each not in ("single", "auto"))
"""Those of at least two processes."""

BY_DEEPSPEED = ("zero2", "zero3")
"""Those that DeepSpeed does."""


NATIVE_BF16 = {"avx512_bf16", "amx_bf16"}
"""Feature flags of processors that multiply bfloat16 themselves."""


def processor(key: str, proc: Path = Path("/proc")) -> str:
    """What the kernel says of the first processor; empty where it says nothing."""
    try:
        lines = (proc / "cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def processor_flags(proc: Path = Path("/proc")) -> set[str]:
    """Feature flags of the first processor (Linux on x86); empty elsewhere."""
    return set(processor("flags", proc).split())


def faster_in_bf16(proc: Path = Path("/proc")) -> bool:
    """Whether the first processor trains faster in bfloat16 than in float32: with AMX, or with AVX-512's instructions
    for it on AMD's cores. One of Intel's with these and without AMX was measured to be slower (decision 25)."""
    flags = processor_flags(proc)
    return "amx_bf16" in flags or ("avx512_bf16" in flags and processor("vendor_id", proc) != "GenuineIntel")


def lacking_deepspeed() -> str | None:
    """Why this machine has no DeepSpeed, completing `the profile zero3 …`; None where it is installed."""
    if find_spec("deepspeed") is not None:
        return None
    return (
        "needs the package deepspeed, which is not installed here: pip install 'finery[deepspeed]', or use the "
        "profile fsdp2, which needs none"
    )


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
    """`auto` is bf16 where the hardware is faster in it, else no: on GPUs that multiply it, on processors with AMX, and
    on AMD's with AVX-512's instructions for it."""
    hosts: int | None = Field(None, ge=1, le=1024)
    """Hosts that share the processes evenly. A server gives a job as many; by hand each of them is started
    (docs/how-to/several-hosts.md). Default: those that the environment names, else one."""
    config: str | None = None
    """An accelerate configuration that says profile, processes and precision instead: a path relative to the recipe.
    `hosts` may stand beside it."""

    _decided: tuple[str, ...] = PrivateAttr(())
    """What Finery decides itself of what `config` says, a sentence each."""

    def doubts(self) -> list[str]:
        """One sentence for each word of an accelerate configuration that Finery decides itself."""
        return [f"launch.config: {sentence}" for sentence in self._decided]

    def unavailable_reason(self) -> str | None:
        """One sentence where this machine lacks a package that the profile needs."""
        why = lacking_deepspeed() if self.profile in BY_DEEPSPEED else None
        return None if why is None else f"the profile {self.profile} {why}"

    @model_validator(mode="wrap")
    @classmethod
    def _from_file(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """The words of `config` in the place of its name, so that the resolved recipe needs no other file."""
        if not isinstance(data, Mapping) or not isinstance(data.get("config"), str):
            return handler(data)
        also = [key for key in ("profile", "num_processes", "mixed_precision") if key in data]
        if also:
            raise ConfigIssues([((key,), "is given, and 'config' says it too; leave one of them out") for key in also])
        place = Path((info.context or {}).get("folder", Path.cwd())) / Path(data["config"]).expanduser()
        read = from_accelerate(place)
        if read.issues:
            raise ConfigIssues([(("config",), issue) for issue in read.issues])
        launch = handler({**{key: value for key, value in data.items() if key != "config"}, **read.words})
        launch._decided = read.decided
        return launch

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
ON_HOSTS = "hosts are named by the environment, see docs/how-to/many-gpus.md"
DONE: dict[str, tuple[tuple[object, ...], str]] = {
    "compute_environment": (("LOCAL_MACHINE",), "must be LOCAL_MACHINE; write that, or leave it out"),
    "num_machines": ((1,), f"must be 1: {ON_HOSTS}; write launch: {{config: …, hosts: …}}"),
    "machine_rank": ((0,), f"must be 0: {ON_HOSTS}; leave it out"),
    "rdzv_backend": (("static", "c10d"), "must be static or c10d; leave it out"),
    "gpu_ids": (("all",), "must be all: set CUDA_VISIBLE_DEVICES to the GPUs that are to be used"),
    "use_cpu": ((False,), "must be false here; to train on processors, write distributed_type: MULTI_CPU"),
    "downcast_bf16": ((False, "no"), "must be no: it is for TPUs; leave it out"),
    "tpu_use_cluster": ((False,), "must be false: there are no TPUs here; leave it out"),
    "tpu_use_sudo": ((False,), "must be false: there are no TPUs here; leave it out"),
    "tpu_env": (((),), "must be empty: there are no TPUs here; leave it out"),
    "mpirun_config.mpirun_hostfile": ((), "is not offered: torchrun starts the processes; leave it out"),
    "dynamo_config.dynamo_backend": (
        ("NO", "no"),
        "must be NO: it is not read; leave dynamo_config out and write arguments: {torch_compile: true} in the stage",
    ),
    "parallelism_config.parallelism_config_dp_replicate_size": ((1,), "must be 1: all processes divide one copy"),
    "parallelism_config.parallelism_config_tp_size": ((1,), "must be 1: tensor parallelism is not offered"),
    "parallelism_config.parallelism_config_cp_size": ((1,), "must be 1: context parallelism is not offered"),
    "deepspeed_config.zero_stage": ((2, 3), "must be 2 or 3; for less, write distributed_type: MULTI_GPU"),
    "deepspeed_config.offload_optimizer_device": (
        ("none",),
        "must be none: nothing is kept off the GPUs; write none, and use more GPUs where it does not fit",
    ),
    "deepspeed_config.offload_param_device": (
        ("none",),
        "must be none: nothing is kept off the GPUs; write none, and use more GPUs where it does not fit",
    ),
    "deepspeed_config.deepspeed_config_file": (
        (),
        "is not read: Finery writes DeepSpeed's configuration; leave it out and write zero_stage: 2 or 3",
    ),
    "fsdp_config.fsdp_version": ((2,), "must be 2: the profile fsdp2 is torch's fully_shard"),
    "fsdp_config.fsdp_reshard_after_forward": (
        (True,),
        "must be true: a layer is given up behind its forward pass; write true, or the profile ddp",
    ),
    "fsdp_config.fsdp_offload_params": (
        (False,),
        "must be false: weights are not kept off the GPUs; write false, and use more GPUs where it does not fit",
    ),
    "fsdp_config.fsdp_activation_checkpointing": (
        (False,),
        "must be false: write arguments: {activation_checkpointing: true} in the stage",
    ),
}
"""What a file may say beside profile, processes and precision: the values that are what Finery does, and the advice for
others."""

BY_LAYER = "each layer of the model's stacks is divided by itself, and what remains is one part"
OF_FSDP1 = "it is FSDP1's, and torch's fully_shard has no such setting"
DECIDED: dict[str, tuple[tuple[object, ...], str]] = {
    "main_process_ip": ((), ON_HOSTS),
    "main_process_port": ((), "a free port is taken"),
    "main_training_function": (("main",), "the stages of the recipe are what runs"),
    "same_network": ((True, False), ""),
    "debug": ((False,), "collectives are not checked one by one"),
    "enable_cpu_affinity": ((False,), "processes are not bound to cores"),
    "deepspeed_config.zero3_init_flag": ((False,), "every process opens the whole model, and DeepSpeed divides it"),
    "deepspeed_config.zero3_save_16bit_model": ((False,), "weights are gathered and saved in the type that they have"),
    "deepspeed_config.gradient_accumulation_steps": (
        ("auto",),
        "the arguments of a stage say it, by global_batch_size or gradient_accumulation_steps",
    ),
    "deepspeed_config.gradient_clipping": (("auto",), "the arguments of a stage say it, by max_grad_norm"),
    "fsdp_config.fsdp_auto_wrap_policy": (("TRANSFORMER_BASED_WRAP",), BY_LAYER),
    "fsdp_config.fsdp_transformer_layer_cls_to_wrap": ((), BY_LAYER),
    "fsdp_config.fsdp_min_num_params": ((), BY_LAYER),
    "fsdp_config.fsdp_state_dict_type": (
        ("FULL_STATE_DICT",),
        "checkpoints are those of one process, so that any profile goes on from them",
    ),
    "fsdp_config.fsdp_cpu_ram_efficient_loading": (
        (True,),
        "the first process alone opens the model wherever the others can make its shape",
    ),
    "fsdp_config.fsdp_backward_prefetch": ((), OF_FSDP1),
    "fsdp_config.fsdp_forward_prefetch": ((False,), OF_FSDP1),
    "fsdp_config.fsdp_use_orig_params": ((True,), OF_FSDP1),
    "fsdp_config.fsdp_sync_module_states": ((True,), OF_FSDP1),
}
"""What a file may say in any way, for the result is the same: the values of which nothing is said, and what Finery does
whatever the value is."""
ON_PROCESSORS = "GPUs are used where the run sees any; set CUDA_VISIBLE_DEVICES to nothing to keep it off them"
DP_SHARD = "parallelism_config.parallelism_config_dp_shard_size"


class AccelerateWords(NamedTuple):
    """What an accelerate configuration comes to."""

    words: dict[str, Any]
    """The words of `launch` that it means."""
    issues: list[str]
    """What is wrong with it, with its lines."""
    decided: tuple[str, ...] = ()
    """What Finery decides itself, with its lines."""


def from_accelerate(path: Path) -> AccelerateWords:
    """An accelerate configuration, read."""
    try:
        data, lines = read_yaml(path)
    except RecipeError as error:
        return AccelerateWords({}, [str(mistake) for mistake in error.mistakes])
    if not isinstance(data, Mapping):
        return AccelerateWords({}, [f"is {path}, which holds {show(data)} and no accelerate configuration"])
    issues: list[tuple[Position, str]] = []
    decided: list[tuple[Position, str]] = []
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
        if stage is None and "deepspeed_config_file" not in _block(data, "deepspeed_config"):
            issues.append((("deepspeed_config",), "says no zero_stage, which must be 2 or 3"))
    if kind == "FSDP" and "fsdp_version" not in _block(data, "fsdp_config"):
        issues.append((("fsdp_config",), f"says no fsdp_version, which {DONE['fsdp_config.fsdp_version'][1]}"))
    for place, value in _leaves({key: value for key, value in data.items() if key not in read}):
        key, given = key_path(place), f"is {show(value)}"
        allowed, advice = DONE.get(key, ((), NOT_HERE))
        if key == DP_SHARD:
            allowed, advice = (1, number), "must be num_processes: all of them divide one copy"
        silent, what_is_done = DECIDED.get(key, ((), ON_PROCESSORS))
        owner = next((each for each in OWNERS if place[0] == f"{each.lower()}_config"), kind)
        if owner != kind:
            issues.append((place, f"{given}: belongs to distributed_type {owner}; leave it out"))
        elif key in DECIDED or (key == "use_cpu" and kind in ("NO", "MULTI_CPU") and value is True):
            if value not in silent:
                decided.append((place, f"{given}, which Finery decides itself: {what_is_done}"))
        elif value not in allowed:
            issues.append((place, f"{given}: {advice}"))

    def told(texts: list[tuple[Position, str]]) -> list[str]:
        return [f"{path}:{line_of(place, lines) or 1}  {key_path(place)} {text}" for place, text in texts]

    return AccelerateWords(words, told(issues), tuple(told(decided)))


def _block(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    block = data.get(key)
    return block if isinstance(block, Mapping) else {}


def _leaves(data: Mapping[str, Any], place: Position = ()) -> Iterator[tuple[Position, Any]]:
    """Every value with its place, but for those that say nothing: null, and a block without keys."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*place, key))
        elif value is not None:
            yield (*place, key), value

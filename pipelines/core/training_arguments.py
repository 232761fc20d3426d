"""What a stage's `arguments` may say: the names of transformers' `TrainingArguments`, and `global_batch_size`.

`TrainingArguments` is what transformers' class of that name is, as far as a recipe decides it: the same names, types
and defaults (a test holds it equal), with bounds, and without what something else in the recipe decides. Stages whose
method has numbers of its own add them as fields in a subclass that stands beside the stage, under TRL's names where
TRL has them, so that each number is declared once: with its type, its default and what it does.

RESERVED names that something else in the recipe decides, with the sentence that says what
RENAMED  names of earlier transformers versions, translated with a warning
SYNONYMS what other tools call an argument: refused, with the right name in the sentence
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from pipelines.core.config import (
    Block,
    ConfigIssue,
    ConfigIssues,
    as_kind,
    flatten,
    json_type,
    misfit,
    show,
    unknown_key,
)
from pipelines.core.errors import StageError


@dataclass(frozen=True)
class Accepts:
    """What one argument accepts; stands in the annotation of its field."""

    kind: str
    """Type words of `core.config`, such as `int|null`."""
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    ratio: bool = False
    """Below 1 it is a share of all steps; from 1 on it must be whole."""
    listed: bool = False
    """Whether a list of such values may stand instead of one."""

    def misfit(self, value: object) -> str | None:
        """The sentence for a value that is not accepted, or None."""
        if not self.listed or not isinstance(value, list | tuple):
            return self._misfit(value)
        if not value:
            return f"is {show(value)}, must have at least one entry"
        return next((f"has an entry that {wrong}" for each in value if (wrong := self._misfit(each))), None)

    def _misfit(self, value: object) -> str | None:
        sentence = misfit(value, self.kind)
        if sentence or isinstance(value, bool) or not isinstance(value, int | float):
            return sentence
        if value != value or value in (float("inf"), float("-inf")):
            return f"is {value}, must be a finite number"
        if self.at_least is not None and value < self.at_least:
            return f"is {value}, must be at least {self.at_least}"
        if self.above is not None and value <= self.above:
            return f"is {value}, must be greater than {self.above}"
        if self.below is not None and value >= self.below:
            return f"is {value}, must be less than {self.below}"
        if self.ratio and value > 1 and value != int(value):
            return f"is {value}, must be a share of all steps below 1, or a whole number of steps"
        return None

    def _checked(self, value: object) -> object:
        if sentence := self.misfit(value):
            raise ConfigIssues([((), sentence)])
        return value if self.ratio else as_kind(value, self.kind)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        bounds = {"minimum": self.at_least, "exclusiveMinimum": self.above, "exclusiveMaximum": self.below}
        one = json_type(self.kind) | {key: bound for key, bound in bounds.items() if bound is not None}
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]} if self.listed else one


def choice(*names: str) -> str:
    """The kind of one of these texts."""
    return "|".join(f"={name}" for name in names)


Switch = Annotated[bool, Accepts("bool")]
Count = Annotated[int, Accepts("int", at_least=1)]
OptionalCount = Annotated[int | None, Accepts("int|null", at_least=1)]
Positive = Annotated[float, Accepts("float", above=0)]
OptionalPositive = Annotated[float | None, Accepts("float|null", above=0)]
NotNegative = Annotated[float, Accepts("float", at_least=0)]
OptionalNotNegative = Annotated[float | None, Accepts("float|null", at_least=0)]
Fraction = Annotated[float, Accepts("float", at_least=0, below=1)]
Every = Annotated[float, Accepts("float", above=0, ratio=True)]

TRACKERS = (
    "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "kubeflow", "mlflow", "neptune",
    "swanlab", "tensorboard", "trackio", "wandb",
)  # fmt: skip
"""What `report_to` may name, beside `none`. Each needs its own package."""
TRACKER_PACKAGES = {
    "azure_ml": "azureml",
    "comet_ml": "comet_ml",
    "flyte": "flytekit",
    "kubeflow": "kubeflow",
    "tensorboard": "tensorboard",
}
"""The module that a tracker needs, where it is not called as the tracker is."""
OFFERED_TRACKERS = ("mlflow", "trackio", "wandb")
"""Those that the extra `trackers` installs."""
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop", "muon")
"""The optimizers that torch and transformers bring themselves; all others need packages or devices of their own.
transformers does not know `muon` by name."""
SCHEDULERS = (
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
    "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy",
)  # fmt: skip
WATCHING_SCHEDULERS = ("reduce_lr_on_plateau", "greedy")
"""Schedulers that look at the evaluation loss, so there must be one."""
When = Annotated[str, Accepts(choice("no", "steps", "epoch"))]

_SEED = "is the stage's own key 'seed', beside 'arguments', or the recipe's"
_PRECISION = "is decided by launch.mixed_precision (auto, no, bf16, fp16)"
_LAUNCH = "is decided by launch (profile, num_processes)"
_DEVICE = "is decided by the machine; to keep a run off its GPUs, set CUDA_VISIBLE_DEVICES to nothing"
_HUB = "is a stage of its own: {stage: publish, to: hub:owner/name}"
_PHASE = "is decided by the recipe's stages: pretrain, supervised, evaluate"
_GATHERED = "is decided by the stage, which gathers predictions itself; leave it out"
_COLUMNS = "is decided by the stage, which names its columns itself; leave it out"
_TOKEN = f"never stands in a recipe: set HF_TOKEN in the environment; publishing {_HUB}"
_EXACT = "would change what a resumed run computes; leave it out"
_EVENTS = "is not offered: every process reports to events.jsonl, and the command shows it"
_REMOVED = "does nothing any more, transformers removed it; leave it out"

RESERVED: dict[str, str] = {
    "output_dir": "is the stage's own folder runs/<name>/stages/NN-id; leave it out",
    "overwrite_output_dir": "is not needed: a changed recipe keeps the old stages as history; leave it out",
    "logging_dir": "is not needed: events lie in runs/<name>/events.jsonl; leave it out",
    "run_name": "is the recipe's 'name'",
    "seed": _SEED,
    "data_seed": _SEED,
    "full_determinism": "is not offered: a run on a CPU is already the same to the bit; leave it out",
    "bf16": _PRECISION,
    "fp16": _PRECISION,
    "tf32": _PRECISION,
    "bf16_full_eval": _PRECISION,
    "fp16_full_eval": _PRECISION,
    "fp16_backend": _PRECISION,
    "fp16_opt_level": _PRECISION,
    "half_precision_backend": _PRECISION,
    "use_cpu": _DEVICE,
    "no_cuda": _DEVICE,
    "use_mps_device": _DEVICE,
    "local_rank": _LAUNCH,
    "deepspeed": _LAUNCH,
    "fsdp": _LAUNCH,
    "fsdp_config": _LAUNCH,
    "fsdp_min_num_params": _LAUNCH,
    "fsdp_transformer_layer_cls_to_wrap": _LAUNCH,
    "ddp_backend": _LAUNCH,
    "accelerator_config": _LAUNCH,
    "parallelism_config": _LAUNCH,
    "dispatch_batches": _LAUNCH,
    "split_batches": _LAUNCH,
    "push_to_hub": _HUB,
    "hub_model_id": _HUB,
    "hub_token": _TOKEN,
    "hub_private_repo": _HUB,
    "hub_strategy": _HUB,
    "hub_always_push": _HUB,
    "hub_revision": _HUB,
    "push_to_hub_model_id": _HUB,
    "push_to_hub_organization": _HUB,
    "push_to_hub_token": _TOKEN,
    "trackio_space_id": "is not offered; set Trackio's own environment variables",
    "trackio_bucket_id": "is not offered; set Trackio's own environment variables",
    "trackio_static_space_id": "is not offered; set Trackio's own environment variables",
    "do_train": _PHASE,
    "do_eval": _PHASE,
    "do_predict": _PHASE,
    "resume_from_checkpoint": "is a command of its own: finery resume runs/<name>",
    "ignore_data_skip": _EXACT,
    "restore_callback_states_from_checkpoint": _EXACT,
    "dataloader_in_order": _EXACT,
    "save_only_model": "would leave checkpoints that cannot be resumed; leave it out",
    "save_on_each_node": "is not offered: only the main process writes; leave it out",
    "save_safetensors": "is always so; leave it out",
    "enable_jit_checkpoint": "is always so: SIGTERM saves a checkpoint and exits 75; leave it out",
    "auto_find_batch_size": "is per_device_train_batch_size: auto here, with global_batch_size for what an update "
    "learns from",
    "average_tokens_across_devices": "is always so: the loss does not depend on the number of processes; leave it out",
    "ddp_find_unused_parameters": "is decided by the trainer, which knows which weights take part; leave it out",
    "dataloader_pin_memory": "follows the device; leave it out",
    "label_smoothing_factor": "is a key of a supervised stage itself, beside 'arguments', or of each task of several",
    "optim_target_modules": "belongs to optimizers that are not offered; leave it out",
    "use_liger_kernel": "needs a package that Finery does not install; leave it out",
    "liger_kernel_config": "needs a package that Finery does not install; leave it out",
    "use_cache": "is decided by the tuner; leave it out",
    "remove_unused_columns": _COLUMNS,
    "label_names": _COLUMNS,
    "length_column_name": _COLUMNS,
    "prediction_loss_only": _GATHERED,
    "include_for_metrics": _GATHERED,
    "include_inputs_for_metrics": _GATHERED,
    "batch_eval_metrics": _GATHERED,
    "eval_do_concat_batches": _GATHERED,
    "eval_use_gather_object": _GATHERED,
    "log_level": _EVENTS,
    "log_level_replica": _EVENTS,
    "log_on_each_node": _EVENTS,
    "disable_tqdm": _EVENTS,
    "debug": _EVENTS,
    "logging_nan_inf_filter": "is always off: a loss that is not finite stops the stage; leave it out",
    "skip_memory_metrics": "is not needed: peak memory always stands in metrics.json; leave it out",
    "past_index": _REMOVED,
    "mp_parameters": _REMOVED,
    "ray_scope": _REMOVED,
    "jit_mode_eval": _REMOVED,
    "use_ipex": _REMOVED,
    "use_legacy_prediction_loop": _REMOVED,
    "include_tokens_per_second": _REMOVED,
    "tpu_num_cores": _REMOVED,
    "tpu_metrics_debug": _REMOVED,
    "sharded_ddp": _REMOVED,
    "xpu_backend": _REMOVED,
}
"""Names that a recipe may not set here, each with what decides it."""


class Renamed(NamedTuple):
    """What a name of an earlier transformers version is called now."""

    target: str
    values: Mapping[object, object] | None = None
    """Old value -> new value; None keeps values as they are."""
    accepts: Accepts | None = None
    """What the old name accepts, where that is less than the new one."""


RENAMED: dict[str, Renamed] = {
    "evaluation_strategy": Renamed("eval_strategy"),
    "warmup_ratio": Renamed("warmup_steps", accepts=Accepts("float", at_least=0, below=1)),
    "group_by_length": Renamed("train_sampling_strategy", {True: "group_by_length", False: "random"}),
    "gradient_checkpointing": Renamed("activation_checkpointing"),
    "gradient_checkpointing_kwargs": Renamed("activation_checkpointing_kwargs"),
    "per_gpu_train_batch_size": Renamed("per_device_train_batch_size"),
    "per_gpu_eval_batch_size": Renamed("per_device_eval_batch_size"),
    "adafactor": Renamed("optim", {True: "adafactor", False: "adamw_torch"}),
    "torchdynamo": Renamed("torch_compile_backend"),
}
"""Names of earlier transformers versions."""

SYNONYMS: dict[str, str] = {
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "effective_batch_size": "global_batch_size",
    "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "steps": "max_steps",
    "num_steps": "max_steps",
    "optimizer": "optim",
    "scheduler": "lr_scheduler_type",
    "grad_clip": "max_grad_norm",
}
"""What other tools call it: refused, but with the right name in the sentence."""


class TrainingArguments(Block):
    """transformers' TrainingArguments by name, and `global_batch_size`."""

    # how long
    num_train_epochs: Positive = 3.0
    """Passes over the training rows."""
    max_steps: Annotated[int, Accepts("int", at_least=-1)] = -1
    """Updates after which training ends, whatever `num_train_epochs` says; -1 counts epochs."""
    # how much at once
    global_batch_size: Annotated[int | None, Accepts("int", at_least=1)] = Field(None, validate_default=False)
    """Examples of one update, whatever the number of processes."""
    per_device_train_batch_size: Annotated[int | Literal["auto"], Accepts("int|=auto", at_least=1)] = 8
    """Examples that a process sees at once. `auto`, in pretrain and supervised stages, is the most that fits into
    memory, by the plan of the stage, and halved where memory runs out all the same; it needs `global_batch_size`. A
    processor computes batches of long texts in parts, whatever their number."""
    per_device_eval_batch_size: Count = 8
    """Examples that a process is scored on at once."""
    gradient_accumulation_steps: Count = 1
    """Batches whose gradients are added up before an update; follows from `global_batch_size`."""
    # the update
    learning_rate: NotNegative = 5e-5
    """The learning rate at its highest."""
    lr_scheduler_type: Annotated[str, Accepts(choice(*SCHEDULERS))] = "linear"
    """How the learning rate changes over the steps."""
    lr_scheduler_kwargs: Annotated[dict[str, Any] | None, Accepts("dict|null")] = None
    """Further settings of the scheduler."""
    warmup_steps: Annotated[float, Accepts("float", at_least=0, ratio=True)] = 0
    """Steps over which the learning rate rises; below 1 a share of all steps."""
    optim: Annotated[str, Accepts(choice(*OPTIMIZERS))] = "adamw_torch_fused"
    """The optimizer. `muon`, for pretraining, moves the matrices of the layers by Muon and the rest by AdamW."""
    optim_args: Annotated[str | None, Accepts("str|null")] = None
    """Further settings of the optimizer, as `key=value,key=value`."""
    weight_decay: NotNegative = 0.0
    """The weight decay of AdamW, for all but biases and norms."""
    adam_beta1: Fraction = 0.9
    """How slowly AdamW's mean of gradients forgets."""
    adam_beta2: Fraction = 0.999
    """How slowly its mean of squared gradients forgets."""
    adam_epsilon: Positive = 1e-8
    """What is added to the root of that mean."""
    max_grad_norm: NotNegative = 1.0
    """The norm that gradients are cut to; 0 leaves them as they are."""
    neftune_noise_alpha: OptionalNotNegative = None
    """Noise on the embeddings while training. Jain et al. 2023, arxiv.org/abs/2310.05914."""
    # memory against time
    activation_checkpointing: Annotated[bool | None, Accepts("bool|null")] = None
    """Compute activations again in the backward pass instead of keeping them."""
    activation_checkpointing_kwargs: Annotated[dict[str, Any] | None, Accepts("dict|null")] = None
    """Further settings of it."""
    torch_compile: Switch = False
    """Compile the model by torch.compile."""
    torch_compile_backend: Annotated[str | None, Accepts("str|null")] = None
    """The backend of torch.compile."""
    torch_compile_mode: Annotated[str | None, Accepts("str|null")] = None
    """The mode of torch.compile."""
    torch_empty_cache_steps: OptionalCount = None
    """Steps between two emptyings of the device's cache."""
    # what is reported, and when
    logging_strategy: When = "steps"
    """When the loss is logged."""
    logging_steps: Every = 10
    """Steps between two logs; below 1 a share of all steps."""
    logging_first_step: Switch = False
    """Log the first step too."""
    include_num_input_tokens_seen: Annotated[bool | str, Accepts(choice("all", "non_padding", "no") + "|bool")] = "no"
    """Count the tokens that were read."""
    report_to: Annotated[str | list[str], Accepts(choice("none", *TRACKERS) + "|list")] = "none"
    """Trackers that training reports to, beside events.jsonl."""
    project: Annotated[str, Accepts("str")] = "huggingface"
    """The project's name at the tracker."""
    # evaluation while training
    eval_strategy: When = "no"
    """When the rows set aside are scored."""
    eval_steps: Annotated[float | None, Accepts("float|null", above=0, ratio=True)] = None
    """Steps between two evaluations; below 1 a share of all steps. Default: `logging_steps`."""
    eval_delay: NotNegative = 0.0
    """Epochs or steps before the first evaluation."""
    eval_on_start: Switch = False
    """Score the rows set aside before the first step."""
    eval_accumulation_steps: OptionalCount = None
    """Batches whose predictions stay on the device before they are moved."""
    load_best_model_at_end: Switch = False
    """Keep the weights that scored best, and not the last."""
    metric_for_best_model: Annotated[str | None, Accepts("str|null")] = None
    """The score that decides. Default: the task's first metric."""
    greater_is_better: Annotated[bool | None, Accepts("bool|null")] = None
    """Whether the larger score is the better one. Default: told by the name of the score."""
    # checkpoints
    save_strategy: Annotated[str, Accepts(choice("no", "steps", "epoch", "best"))] = "steps"
    """When checkpoints are saved. Default beside `load_best_model_at_end`: `eval_strategy`."""
    save_steps: Every = 500
    """Steps between two checkpoints; below 1 a share of all steps."""
    save_total_limit: Annotated[int | None, Accepts("int|null", at_least=2)] = 2
    """Checkpoints that are kept; at least 2, for a kill may break the newest one."""
    # batches
    train_sampling_strategy: Annotated[str | None, Accepts(choice("random", "group_by_length"))] = Field(
        None, validate_default=False
    )
    """How examples are put together to batches. Default: similar lengths together, where the stage knows lengths."""
    dataloader_drop_last: Switch = False
    """Leave out a last batch that is not full."""
    dataloader_num_workers: Annotated[int, Accepts("int", at_least=0)] = 0
    """Processes that put batches together."""
    dataloader_persistent_workers: Switch = False
    """Keep these processes between epochs."""
    dataloader_prefetch_factor: OptionalCount = None
    """Batches that each of them prepares ahead."""
    dataloader_multiprocessing_context: Annotated[
        str | None, Accepts(choice("fork", "spawn", "forkserver") + "|null")
    ] = None
    """How these processes are started."""
    # several processes
    ddp_bucket_cap_mb: OptionalCount = None
    """Megabytes of gradients that are sent together."""
    ddp_broadcast_buffers: Annotated[bool | None, Accepts("bool|null")] = None
    """Send buffers from the first process to all before each step."""
    ddp_static_graph: Annotated[bool | None, Accepts("bool|null")] = None
    """Tell DistributedDataParallel that every step uses the same weights."""
    ddp_timeout: Count = 1800
    """Seconds that a process waits for the others."""

    _written: dict[str, Any] = PrivateAttr(default_factory=dict)
    """What was given, under the names that it was given by."""

    def given(self) -> dict[str, Any]:
        """What was given, under today's names; what was not is left to defaults."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}

    def own(self) -> dict[str, Any]:
        """The numbers that the stage's method adds, whether given or not."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in _OF_ALL}

    def of_the_trainer(self) -> dict[str, Any]:
        """What was given of transformers' own names."""
        return {name: value for name, value in self.given().items() if name in _OF_ALL and name not in OWN}

    def written_name(self, name: str) -> str:
        """The name under which an argument was given: an earlier one, or today's."""
        return next((old for old, new in RENAMED.items() if new.target == name and old in self._written), name)

    def warnings(self) -> list[str]:
        """One sentence for each name of an earlier version."""
        return [
            f"arguments.{old} is the name of an earlier transformers version; it is read as "
            f"{renamed.target}: {show(getattr(self, renamed.target))}"
            for old, renamed in RENAMED.items()
            if old in self._written
        ]

    def batch_sizes(self, processes: int, fits: Callable[[int], bool] = lambda each: True) -> tuple[int, int]:
        """(examples a process sees at once, accumulation steps). `fits` says whether so many fit into memory, for
        `auto`. Raises StageError when the division is not whole."""
        total, wanted = self.global_batch_size, self.per_device_train_batch_size
        if total is None:
            assert wanted != "auto"
            return wanted, self.gradient_accumulation_steps
        if total % processes:
            raise StageError(
                f"global_batch_size {total} cannot be shared by {processes} processes; make it a multiple of "
                f"{processes}"
            )
        share = total // processes
        if wanted == "auto":
            each = next((part for part in range(share, 1, -1) if share % part == 0 and fits(part)), 1)
            return each, share // each
        each = min(wanted, share) if self._gives("per_device_train_batch_size") else share
        if share % each:
            raise StageError(
                f"global_batch_size {total} over {processes} processes leaves {share} examples each, "
                f"which is no multiple of per_device_train_batch_size {each}; make it one"
            )
        return each, share // each

    def _gives(self, name: str) -> bool:
        return name in self.model_fields_set

    # -- reading a recipe --------------------------------------------------------------------------------------------

    @model_validator(mode="wrap")
    @classmethod
    def _every_mistake(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Every wrong, reserved or unknown name is a mistake of its own; what contradicts itself is said after that."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise ConfigIssues([((), f"is {show(data)}, must be a mapping of TrainingArguments names")])
        issues: list[ConfigIssue] = []
        values: dict[str, Any] = {}
        for key, value in data.items():
            if sentence := cls._refused(str(key), value, data):
                issues.append(((str(key),), sentence))
            else:
                renamed = RENAMED.get(key)
                name = key if renamed is None else renamed.target
                values[name] = value if renamed is None or renamed.values is None else renamed.values[value]
        try:
            arguments = handler(values)
        except ValidationError as error:
            issues += flatten(error)
            arguments = None
        issues += [(_as_written(position, data), sentence) for position, sentence in _batch_issues(values)]
        if arguments is not None and not issues:
            arguments._written = {key: _plain(value) for key, value in data.items()}
            issues += [((arguments.written_name(name),), sentence) for name, sentence in arguments._contradictions()]
        if issues or arguments is None:
            order = [str(key) for key in data]
            raise ConfigIssues(sorted(issues, key=lambda issue: order.index(str(issue[0][0]))))
        return arguments

    @classmethod
    def _refused(cls, key: str, value: object, data: Mapping[str, Any]) -> str | None:
        """Why a name cannot stand here, or why its value is wrong where no field says so."""
        if key in cls.model_fields:
            return _wrong_beyond_type(key, value)
        if key in RESERVED:
            return RESERVED[key]
        if key in SYNONYMS:
            return f"unknown key '{key}'. Did you mean '{SYNONYMS[key]}'?"
        if key not in RENAMED:
            own = [name for name in cls.model_fields if name not in _OF_ALL]
            return unknown_key(key, [*own, *_OF_ALL])
        renamed = RENAMED[key]
        if renamed.target in data:
            return f"is an earlier name of '{renamed.target}', which is given too; keep one"
        if renamed.values is not None:
            return None if isinstance(value, bool) else f"is {show(value)}, must be true or false"
        return renamed.accepts.misfit(value) if renamed.accepts else accepted(renamed.target).misfit(value)

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """(name, sentence) of arguments that are fine one by one."""
        if self.lr_scheduler_type in WATCHING_SCHEDULERS and self.eval_strategy == "no":
            yield (
                "lr_scheduler_type",
                f"'{self.lr_scheduler_type}' watches the evaluation loss; set eval_strategy to steps or epoch",
            )
        for key in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
            if getattr(self, key) and not self.dataloader_num_workers:
                yield key, "is for worker processes; set dataloader_num_workers to at least 1"
        if self.per_device_train_batch_size == "auto" and type(self) is not TrainingArguments:
            yield "per_device_train_batch_size", "is auto, which is for pretrain and supervised stages; write a number"
        if not self.load_best_model_at_end:
            return
        evaluates = self.eval_strategy
        saves = self.save_strategy if self._gives("save_strategy") else evaluates  # the trainer's default in this case
        every, saved = self.eval_steps or self.logging_steps, self.save_steps
        if evaluates == "no":
            yield "load_best_model_at_end", "compares evaluations; set eval_strategy to steps or epoch"
        elif saves not in (evaluates, "best"):
            yield "load_best_model_at_end", f"needs a checkpoint at each evaluation; set save_strategy: {evaluates}"
        elif saves == evaluates == "steps" and ((every < 1) != (saved < 1) or not _multiple(saved, every)):
            sentence = f"needs checkpoints at evaluations; make save_steps ({saved}) a multiple of eval_steps ({every})"
            yield "load_best_model_at_end", sentence

    # -- writing one -------------------------------------------------------------------------------------------------

    @model_serializer(mode="plain")
    def _as_in_a_recipe(self) -> dict[str, Any]:
        return dict(self._written)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The fields, and, accepted but not offered, the names of earlier versions."""
        described = super().__get_pydantic_json_schema__(schema, handler)
        handler.resolve_ref_schema(described)["patternProperties"] = {
            f"^({'|'.join(RENAMED)})$": {
                "deprecated": True,
                "description": "The name of an earlier transformers version.",
            }
        }
        return described


OWN = ("global_batch_size",)
"""Names of ours, which transformers does not have."""
_OF_ALL = TrainingArguments.model_fields
"""The arguments that every stage has."""


def accepted(name: str) -> Accepts:
    """What an argument of every stage accepts."""
    return next(each for each in _OF_ALL[name].metadata if isinstance(each, Accepts))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _as_written(position: tuple[str, ...], data: Mapping[str, Any]) -> tuple[str, ...]:
    """The position of an argument under the name that it was given by."""
    return tuple(
        next((old for old, new in RENAMED.items() if new.target == name and old in data), name) for name in position
    )


def _batch_issues(values: Mapping[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    """What is wrong with three factors of one product, whatever else is."""
    total, each, accumulated = (
        values.get(key) for key in ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
    )
    if not isinstance(total, int) or isinstance(total, bool):
        sentence = "is auto, and needs global_batch_size: what an update learns from must not depend on the machine"
        return [(("per_device_train_batch_size",), sentence)] if each == "auto" and total is None else []
    if isinstance(accumulated, int):
        return [(("gradient_accumulation_steps",), "follows from global_batch_size; leave one of the two out")]
    if isinstance(each, int) and each > 0 and total % each:
        return [(("per_device_train_batch_size",), f"is {each}, which does not divide global_batch_size {total}")]
    return []


def missing_package(tracker: str) -> str | None:
    """The package that a tracker needs and that is not installed here; None where it is."""
    module = TRACKER_PACKAGES.get(tracker, tracker)
    there = tracker == "none" or find_spec(module) or (tracker == "tensorboard" and find_spec("tensorboardX"))
    return None if there else module


def missing_trackers(report_to: str | Sequence[str]) -> str | None:
    """What a stage that reports there lacks on this machine, completing `the stage mrpc …`; None where it has all."""
    for name in [report_to] if isinstance(report_to, str) else report_to:
        if (module := missing_package(name)) is not None:
            install = "'finery[trackers]'" if name in OFFERED_TRACKERS else module
            return (
                f"reports to {name}, and the package {module} is not installed here: pip install {install}, or leave "
                "report_to out"
            )
    return None


def _wrong_beyond_type(key: str, value: object) -> str | None:
    if key == "max_steps" and value == 0 and not isinstance(value, bool):
        return "is 0, must be at least 1, or -1 to count epochs"
    if key == "report_to" and isinstance(value, list | tuple):
        return next((wrong for each in value if (wrong := misfit(each, choice(*TRACKERS)))), None)
    return None


def _multiple(large: float, small: float) -> bool:
    """As transformers decides it: in whole millionths, because shares are floats."""
    return round(large * 1_000_000) % round(small * 1_000_000) == 0

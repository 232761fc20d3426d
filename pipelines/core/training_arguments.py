"""What a stage's `arguments` may say: transformers' `TrainingArguments`, and a few names of our own.

ALLOWED  names with their types, choices and bounds
RESERVED names that something else in the recipe decides, with the sentence that says what
RENAMED  names of earlier transformers versions, translated with a warning
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import BeforeValidator, WithJsonSchema

from pipelines.core.config import ConfigIssue, ConfigIssues, json_type, misfit, show, unknown_key


class Argument(NamedTuple):
    """What one argument accepts."""

    kind: str
    """Type words of `kinds`."""
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    ratio: bool = False
    """Below 1 it is a share of all steps; from 1 on it must be whole."""

    def misfit(self, value: object) -> str | None:
        """The sentence for a value that is not accepted, or None."""
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


class Judged(Protocol):
    """Anything that says what it does not accept."""

    def misfit(self, value: object) -> str | None:
        """The sentence for a value that is not accepted, or None."""


def _choice(*names: str) -> Argument:
    return Argument("|".join(f"={name}" for name in names))


SWITCH = Argument("bool")
COUNT = Argument("int", at_least=1)
FRACTION = Argument("float", at_least=0, below=1)
EVERY = Argument("float", above=0, ratio=True)
TRACKERS = (
    "azure_ml",
    "clearml",
    "codecarbon",
    "comet_ml",
    "dagshub",
    "dvclive",
    "flyte",
    "kubeflow",
    "mlflow",
    "neptune",
    "swanlab",
    "tensorboard",
    "trackio",
    "wandb",
)
"""What `report_to` may name, beside `none`. Each needs its own package."""
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")
"""The optimizers that torch and transformers bring themselves; all others need packages or devices of their own."""
SCHEDULERS = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "reduce_lr_on_plateau",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
    "greedy",
)
WATCHING_SCHEDULERS = ("reduce_lr_on_plateau", "greedy")
"""Schedulers that look at the evaluation loss, so there must be one."""

OWN: dict[str, Argument] = {"global_batch_size": COUNT}
"""Ours: `global_batch_size` is the number of examples of one update, whatever the number of processes."""

ALLOWED: dict[str, Argument] = {
    # how long
    "num_train_epochs": Argument("float", above=0),
    "max_steps": Argument("int", at_least=-1),
    # how much at once
    "per_device_train_batch_size": COUNT,
    "per_device_eval_batch_size": COUNT,
    "gradient_accumulation_steps": COUNT,
    # the update
    "learning_rate": Argument("float", at_least=0),
    "lr_scheduler_type": _choice(*SCHEDULERS),
    "lr_scheduler_kwargs": Argument("dict|null"),
    "warmup_steps": Argument("float", at_least=0, ratio=True),
    "optim": _choice(*OPTIMIZERS),
    "optim_args": Argument("str|null"),
    "weight_decay": Argument("float", at_least=0),
    "adam_beta1": FRACTION,
    "adam_beta2": FRACTION,
    "adam_epsilon": Argument("float", above=0),
    "max_grad_norm": Argument("float", at_least=0),
    "neftune_noise_alpha": Argument("float|null", at_least=0),
    # memory against time
    "activation_checkpointing": Argument("bool|null"),
    "activation_checkpointing_kwargs": Argument("dict|null"),
    "torch_compile": SWITCH,
    "torch_compile_backend": Argument("str|null"),
    "torch_compile_mode": Argument("str|null"),
    "torch_empty_cache_steps": Argument("int|null", at_least=1),
    # what is reported, and when
    "logging_strategy": _choice("no", "steps", "epoch"),
    "logging_steps": EVERY,
    "logging_first_step": SWITCH,
    "include_num_input_tokens_seen": Argument("=all|=non_padding|=no|bool"),
    "report_to": Argument("|".join(f"={name}" for name in ("none", *TRACKERS)) + "|list"),
    "project": Argument("str"),
    # evaluation while training
    "eval_strategy": _choice("no", "steps", "epoch"),
    "eval_steps": Argument("float|null", above=0, ratio=True),
    "eval_delay": Argument("float", at_least=0),
    "eval_on_start": SWITCH,
    "eval_accumulation_steps": Argument("int|null", at_least=1),
    "load_best_model_at_end": SWITCH,
    "metric_for_best_model": Argument("str|null"),
    "greater_is_better": Argument("bool|null"),
    # checkpoints
    "save_strategy": _choice("no", "steps", "epoch", "best"),
    "save_steps": EVERY,
    "save_total_limit": Argument("int|null", at_least=2),
    # batches
    "train_sampling_strategy": _choice("random", "group_by_length"),
    "dataloader_drop_last": SWITCH,
    "dataloader_num_workers": Argument("int", at_least=0),
    "dataloader_persistent_workers": SWITCH,
    "dataloader_prefetch_factor": Argument("int|null", at_least=1),
    "dataloader_multiprocessing_context": Argument("=fork|=spawn|=forkserver|null"),
    # several processes
    "ddp_bucket_cap_mb": Argument("int|null", at_least=1),
    "ddp_broadcast_buffers": Argument("bool|null"),
    "ddp_static_graph": Argument("bool|null"),
    "ddp_timeout": COUNT,
}
"""TrainingArguments names that a recipe may set. `save_total_limit` is at least 2: a kill may break the newest one."""

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
    "auto_find_batch_size": "would let the machine choose the batch; use global_batch_size, and a "
    "per_device_train_batch_size that fits into memory",
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


RENAMED: dict[str, Renamed] = {
    "evaluation_strategy": Renamed("eval_strategy"),
    "warmup_ratio": Renamed("warmup_steps"),
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

_KNOWN = {**ALLOWED, **OWN}
NONE: Mapping[str, Judged] = MappingProxyType({})


def mistakes(arguments: Mapping[str, Any], extra: Mapping[str, Judged] = NONE) -> list[ConfigIssue]:
    """Every mistake in a stage's `arguments`, each with its place below them. `extra`: names of the stage's own
    method."""
    found: list[ConfigIssue] = []
    for key, value in arguments.items():
        sentence = extra[key].misfit(value) if key in extra else _field(key, value, arguments, extra)
        if sentence:
            found.append(((key,), sentence))
    return found or _between_fields(arguments)


def translate(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments in today's names, and one warning for each name that changed.

    `arguments` has passed `mistakes`. `global_batch_size` is still among the result.
    """
    translated: dict[str, Any] = {}
    warnings: list[str] = []
    for key, value in arguments.items():
        renamed = RENAMED.get(key)
        if renamed is None:
            translated[key] = list(value) if isinstance(value, tuple) else value
            continue
        translated[renamed.target] = renamed.values[value] if renamed.values is not None else value
        now = f"{renamed.target}: {show(translated[renamed.target])}"
        warnings.append(f"arguments.{key} is the name of an earlier transformers version; it is read as {now}")
    return translated, warnings


def checked(value: Any) -> dict[str, Any]:
    """`value` as it was written, if nothing is wrong with it. Raises Mistakes."""
    if not isinstance(value, Mapping):
        raise ConfigIssues(
            [((), f"is {show(value)}, must be a mapping of TrainingArguments, such as {{max_steps: 100}}")]
        )
    found = mistakes(value)
    if found:
        raise ConfigIssues(found)
    return dict(value)


def schema() -> dict[str, Any]:
    """The JSON Schema of `arguments`, without the names of earlier versions."""
    properties = {}
    for name, argument in _KNOWN.items():
        described = json_type(argument.kind)
        bounds = {"minimum": argument.at_least, "exclusiveMinimum": argument.above, "exclusiveMaximum": argument.below}
        properties[name] = {**described, **{key: bound for key, bound in bounds.items() if bound is not None}}
    return {"type": "object", "properties": properties, "propertyNames": {"enum": [*_KNOWN, *RENAMED]}}


Arguments = Annotated[dict[str, Any], BeforeValidator(checked), WithJsonSchema(schema())]
"""The type of a stage's `arguments` field."""


def _field(key: str, value: object, arguments: Mapping[str, Any], extra: Mapping[str, Judged]) -> str | None:
    """What is wrong with one argument, looked at alone."""
    if key in RESERVED:
        return RESERVED[key]
    if key in SYNONYMS:
        return f"unknown key '{key}'. Did you mean '{SYNONYMS[key]}'?"
    if key in RENAMED:
        renamed = RENAMED[key]
        if renamed.target in arguments:
            return f"is an earlier name of '{renamed.target}', which is given too; keep one"
        if renamed.values is not None:
            return None if isinstance(value, bool) else f"is {show(value)}, must be true or false"
        return (FRACTION if key == "warmup_ratio" else _KNOWN[renamed.target]).misfit(value)
    if key not in _KNOWN:
        return unknown_key(key, [*extra, *_KNOWN])
    if key == "max_steps" and value == 0 and not isinstance(value, bool):
        return "is 0, must be at least 1, or -1 to count epochs"
    if key == "report_to" and isinstance(value, list | tuple):
        return next((wrong for each in value if (wrong := _choice(*TRACKERS).misfit(each))), None)
    return _KNOWN[key].misfit(value)


def _between_fields(arguments: Mapping[str, Any]) -> list[ConfigIssue]:
    """What is wrong with arguments that are fine one by one."""
    whole, _ = translate(arguments)
    found: list[ConfigIssue] = []

    def add(key: str, sentence: str) -> None:
        written = next((old for old, renamed in RENAMED.items() if renamed.target == key and old in arguments), key)
        found.append(((written,), sentence))

    evaluates = whole.get("eval_strategy", "no")
    scheduler = whole.get("lr_scheduler_type")
    if scheduler in WATCHING_SCHEDULERS and evaluates == "no":
        add("lr_scheduler_type", f"'{scheduler}' watches the evaluation loss; set eval_strategy to steps or epoch")
    for key in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
        if whole.get(key) and not whole.get("dataloader_num_workers"):
            add(key, "is for worker processes; set dataloader_num_workers to at least 1")
    if whole.get("load_best_model_at_end"):
        saves = whole.get("save_strategy", evaluates)  # the trainer's default in this case
        every = whole.get("eval_steps") or whole.get("logging_steps", 10)
        saved = whole.get("save_steps", 500)
        if evaluates == "no":
            add("load_best_model_at_end", "compares evaluations; set eval_strategy to steps or epoch")
        elif saves not in (evaluates, "best"):
            add("load_best_model_at_end", f"needs a checkpoint at each evaluation; set save_strategy: {evaluates}")
        elif saves == evaluates == "steps" and ((every < 1) != (saved < 1) or not _multiple(saved, every)):
            sentence = f"needs checkpoints at evaluations; make save_steps ({saved}) a multiple of eval_steps ({every})"
            add("load_best_model_at_end", sentence)
    return found


def _multiple(large: float, small: float) -> bool:
    """As transformers decides it: in whole millionths, because shares are floats."""
    return round(large * 1_000_000) % round(small * 1_000_000) == 0

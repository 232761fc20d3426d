"""transformers' TrainingArguments of a stage: the user's words, and what Finery fixes so that runs resume exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainingArguments as LiveArguments

from pipelines.core.interfaces import Context
from pipelines.core.scores import smaller_is_better
from pipelines.core.training_arguments import TrainingArguments

ZERO = {"zero2": 2, "zero3": 3}
"""Stages of ZeRO (Rajbhandari et al. 2020, arxiv.org/abs/1910.02054) by profile."""


def deepspeed_configuration(stage: int) -> dict[str, Any]:
    """DeepSpeed's configuration; `auto` is what transformers fills in from its arguments."""
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_allow_untested_optimizer": True,  # ours are torch's, and not DeepSpeed's own
        "zero_optimization": {
            "stage": stage,
            "contiguous_gradients": True,
            "overlap_comm": True,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": stage == 3,
        },
    }


def live_words(
    context: Context, arguments: TrainingArguments, overrides: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """The words of transformers' TrainingArguments: the user's, and what Finery fixes so that runs resume exactly.

    `overrides` are what the stage decides instead of the user. Warns of names of earlier transformers versions.
    """
    if context.world.is_main:
        for warning in arguments.warnings():
            context.events.emit("warning", message=warning)
    each, accumulated = arguments.batch_sizes(context.world.size, context.fits)
    words = arguments.of_the_trainer() | {
        "per_device_train_batch_size": each,
        "gradient_accumulation_steps": accumulated,
        "logging_steps": arguments.logging_steps,
        "report_to": "none",  # trackers are callbacks of our own: see `trackers`
        "save_total_limit": max(2, arguments.save_total_limit or 2),  # a kill may spoil the one being written
    }
    if arguments.load_best_model_at_end:
        words.setdefault("save_strategy", arguments.eval_strategy)
    if words.get("optim") == "muon":  # which transformers does not know: see FineryTrainer.create_optimizer
        words["optim"] = "adamw_torch_fused"
    on_cpu = not torch.cuda.is_available()
    fixed: dict[str, Any] = {
        "output_dir": str(context.folder / "checkpoints"),
        "seed": context.seed,
        "bf16": context.precision == "bf16",
        "fp16": context.precision == "fp16",
        "use_cpu": on_cpu,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "logging_nan_inf_filter": False,  # a NaN must be seen, not averaged away
        "average_tokens_across_devices": True,
        "dataloader_pin_memory": not on_cpu,
        "accelerator_config": {"non_blocking": not on_cpu},  # a batch is copied while the one before is computed
        "ddp_find_unused_parameters": False,
    }
    if on_cpu and context.world.size > 1:
        fixed["ddp_backend"] = "gloo"
    if context.world.profile in ZERO:
        fixed["deepspeed"] = deepspeed_configuration(ZERO[context.world.profile])
    words |= dict(overrides or {})
    decides = str(words.get("metric_for_best_model") or "").removeprefix("eval_")
    if words.get("greater_is_better") is None and smaller_is_better(decides):
        words["greater_is_better"] = False  # transformers knows it of losses alone
    return words | fixed


def training_arguments(
    context: Context, arguments: TrainingArguments, overrides: Mapping[str, object] | None = None
) -> LiveArguments:
    """transformers' object of what `live_words` says."""
    return LiveArguments(**live_words(context, arguments, overrides))

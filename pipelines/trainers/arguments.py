"""From a stage's `arguments` to transformers' TrainingArguments, and the batch sizes that `global_batch_size` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelines.blocks import Found, Mistakes, show
from pipelines.errors import StageError
from pipelines.fields import arguments as argument_fields
from pipelines.fields.arguments import Judged

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from pipelines.protocols import Context

DEFAULT_BATCH = 8
"""Examples a process sees at once when nothing is said: transformers' own default."""


def checked(value: Any, extra: Mapping[str, Judged] = argument_fields.NONE) -> Any:
    """Validator of an `arguments` mapping: every wrong, reserved or unknown key is a mistake of its own.

    `extra` are the names that the stage's own method adds.
    """
    if not isinstance(value, Mapping):
        raise Mistakes([((), f"is {show(value)}, must be a mapping of TrainingArguments names")])
    found = list(argument_fields.mistakes(value, extra))
    found += _batch_mistakes(value if found else in_todays_names(value))
    if found:
        raise Mistakes(found)
    return dict(value)


def in_todays_names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as transformers calls them now: what decisions are made by, whatever the recipe wrote."""
    return argument_fields.translate(arguments)[0]


def _batch_mistakes(value: Mapping[str, Any]) -> list[Found]:
    total, each, accumulated = (
        value.get(key) for key in ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
    )
    if not isinstance(total, int) or isinstance(total, bool):
        return []
    if isinstance(accumulated, int):
        return [(("gradient_accumulation_steps",), "follows from global_batch_size; leave one of the two out")]
    if isinstance(each, int) and each > 0 and total % each:
        return [(("per_device_train_batch_size",), f"is {each}, which does not divide global_batch_size {total}")]
    return []


def batch_sizes(arguments: Mapping[str, Any], processes: int) -> tuple[int, int]:
    """(examples a process sees at once, accumulation steps). Raises StageError when the division is not whole."""
    total = arguments.get("global_batch_size")
    if total is None:
        return arguments.get("per_device_train_batch_size", DEFAULT_BATCH), arguments.get(
            "gradient_accumulation_steps", 1
        )
    if total % processes:
        raise StageError(
            f"global_batch_size {total} cannot be shared by {processes} processes; make it a multiple of {processes}"
        )
    share = total // processes
    each = min(arguments.get("per_device_train_batch_size", share), share)
    if share % each:
        raise StageError(
            f"global_batch_size {total} over {processes} processes leaves {share} examples each, "
            f"which is no multiple of per_device_train_batch_size {each}; make it one"
        )
    return each, share // each


def training_arguments(context: Context, arguments: Mapping[str, Any]) -> TrainingArguments:
    """The live object: the user's words, and what Finery fixes so that runs resume exactly."""
    from transformers import TrainingArguments

    return TrainingArguments(**live_words(context, arguments))


def live_words(context: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Its words, for a class that has more of them."""
    import torch

    words, warnings = argument_fields.translate(arguments)
    for warning in warnings:
        if context.world.is_main:
            context.events.emit("warning", message=warning)
    each, accumulated = batch_sizes(words, context.world.size)
    words.pop("global_batch_size", None)
    words |= {"per_device_train_batch_size": each, "gradient_accumulation_steps": accumulated}
    words.setdefault("logging_steps", 10)
    words.setdefault("report_to", "none")
    words["save_total_limit"] = max(2, words.get("save_total_limit") or 2)  # a kill may spoil the one being written
    if words.get("load_best_model_at_end"):
        words.setdefault("save_strategy", words.get("eval_strategy", "steps"))
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
        "ddp_find_unused_parameters": False,
    }
    if on_cpu and context.world.size > 1:
        fixed["ddp_backend"] = "gloo"
    return words | fixed

"""From a stage's `arguments` to transformers' TrainingArguments, and settings of a method that stand among them.

From a stage's `arguments` to transformers' TrainingArguments, and the batch sizes that `global_batch_size` asks for.

Settings of a method that stand among a stage's `arguments`, under the names that TRL gives them.

A stage writes its table once: `SETTINGS = {"beta": Setting(Argument("float", at_least=0), 0.1)}`, annotates its field
with `BeforeValidator(checked_with(SETTINGS))`, and takes them out again with `split` before TrainingArguments are
built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.core import training_arguments as argument_fields
from pipelines.core.config import ConfigIssue, ConfigIssues, show
from pipelines.core.errors import StageError
from pipelines.core.training_arguments import Argument, Judged

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from pipelines.core.interfaces import Context


DEFAULT_BATCH = 8
"""Examples a process sees at once when nothing is said: transformers' own default."""


def checked(value: Any, extra: Mapping[str, Judged] = argument_fields.NONE) -> Any:
    """Validator of an `arguments` mapping: every wrong, reserved or unknown key is a mistake of its own.

    `extra` are the names that the stage's own method adds.
    """
    if not isinstance(value, Mapping):
        raise ConfigIssues([((), f"is {show(value)}, must be a mapping of TrainingArguments names")])
    found = list(argument_fields.mistakes(value, extra))
    found += _batch_mistakes(value if found else in_todays_names(value))
    if found:
        raise ConfigIssues(found)
    return dict(value)


def in_todays_names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as transformers calls them now: what decisions are made by, whatever the recipe wrote."""
    return argument_fields.translate(arguments)[0]


def _batch_mistakes(value: Mapping[str, Any]) -> list[ConfigIssue]:
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


class Setting(NamedTuple):
    """What one setting accepts, and what it is when nothing is said."""

    argument: Argument
    default: Any
    listed: bool = False
    """Whether a list of such values may stand instead of one."""

    def misfit(self, value: object) -> str | None:
        """The sentence for a value that is not accepted, or None."""
        if not self.listed or not isinstance(value, list | tuple):
            return self.argument.misfit(value)
        if not value:
            return f"is {show(value)}, must have at least one entry"
        return next((f"has an entry that {wrong}" for each in value if (wrong := self.argument.misfit(each))), None)


def checked_with(table: Mapping[str, Setting]) -> Callable[[Any], Any]:
    """Validator of an `arguments` mapping that may also name the settings in `table`."""

    def validate(value: Any) -> Any:
        return checked(value, table)

    return validate


def split(arguments: Mapping[str, Any], table: Mapping[str, Setting]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(every setting of `table`, its default where `arguments` says nothing; the rest, names of TrainingArguments)."""
    own = {name: arguments.get(name, setting.default) for name, setting in table.items()}
    return own, {name: value for name, value in arguments.items() if name not in table}

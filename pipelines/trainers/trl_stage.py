"""What the stages that TRL trains have in common: what they cannot do, said before anything loads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pipelines.blocks import Found
from pipelines.trainers import policy, tuning
from pipelines.trainers.arguments import in_todays_names

if TYPE_CHECKING:
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe

TUNERS_OF_TRL = ("full", "lora")
NO_ROWS_ASIDE = ("eval_strategy", "load_best_model_at_end")
"""Arguments about rows set aside, of which there are none."""


def mistakes(stage: Any, recipe: Recipe, longest: int) -> Iterable[Found]:
    """What TRL cannot do in a stage, places relative to the stage. `longest` is the longest text it will see."""
    yield from policy.mistakes(stage, recipe, (policy.DECODER,))
    if stage.tuner.name not in TUNERS_OF_TRL:
        yield ("tuner",), f"is {stage.tuner.name}, but {stage.stage} is trained by TRL, which knows {' and '.join(TUNERS_OF_TRL)}; use one of them, or the stage dpo or ppo"
    elif not stage.tuner.leaves_base and stage.tuner.adapts:
        yield ("tuner",), "changes weights of the base, of which TRL's reference is made; leave bias and init_lora_weights out, or use the stage dpo or ppo"
    if stage.tuner.thaws:
        yield ("tuner",), "thaws weights epoch by epoch, which TRL's trainers do not follow; leave the schedule out, or use the stage dpo"
    words = in_todays_names(stage.arguments)
    for name in NO_ROWS_ASIDE:
        if words.get(name) not in (None, False, "no"):
            yield ("arguments", name), "is not offered here: no rows are set aside; use an evaluate stage"
    yield from tuning.mistakes(stage, recipe, policy.DECODER, longest)


def opened(stage: Any, context: Context) -> tuple[Any, Any, Any]:
    """(the policy, in a folder from which TRL can read its reference; its head; the tokenizer). Raises ModelError."""
    from pipelines.protocols import Head

    if context.writing_head().kind != policy.DECODER:
        policy.opened(stage, context, (policy.DECODER,))  # which says why not
    head = Head("causal_lm")
    source = context.recipe.model_of(stage)
    model = context.open_model(head, keep_base=context.folder / "base", trained_head=source in context.stage_folders)
    return model, head, context.open_tokenizer(source) if source in context.stage_folders else context.open_tokenizer()


def step_size(arguments: Mapping[str, Any]) -> int | None:
    """Examples of a step on one process, as far as the arguments tell."""
    words = in_todays_names(arguments)
    if isinstance(words.get("global_batch_size"), int):
        return int(words["global_batch_size"])
    each, accumulated = words.get("per_device_train_batch_size", 8), words.get("gradient_accumulation_steps", 1)
    return each * accumulated if isinstance(each, int) and isinstance(accumulated, int) else None


def leave(context: Context, stage: Any) -> None:
    """Take away the folder that only TRL's reference was read from; an adapter still names its base."""
    import shutil

    if context.world.is_main and not stage.tuner.adapts:
        shutil.rmtree(context.folder / "base", ignore_errors=True)
    context.barrier()

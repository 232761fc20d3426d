"""Opening the policy: the model that writes, which stages on preferences and rewards read and train further."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipelines.blocks import Found
from pipelines.errors import ModelError
from pipelines.recipe import START
from pipelines.trainers import tuning
from pipelines.trainers.writing_head import WRITERS, of_shape

if TYPE_CHECKING:
    from pipelines.protocols import Context, Head
    from pipelines.recipe import Recipe, Stage

DECODER = "causal_lm"
WHY = {
    WRITERS: "which learns from answers that a model writes token by token; this architecture cannot: use a decoder or an encoder-decoder",
    (DECODER,): "which TRL trains for decoders alone; use a decoder, or the stage dpo or ppo, which train encoder-decoders too",
}


def mistakes(stage: Stage, recipe: Recipe, allowed: tuple[str, ...] = WRITERS) -> Iterable[Found]:
    """Whether the recipe's model can be a policy, as far as the recipe tells; places relative to the stage."""
    shape = recipe.model.architecture
    if shape is not None and ((head := of_shape(shape)) is None or head.kind not in allowed):
        yield ("stage",), f"is {stage.stage}, {WHY[allowed]}"


def head_kind(recipe: Recipe) -> str:
    """The kind of head that the policy has, as far as the recipe tells; a decoder's where it does not."""
    head = of_shape(recipe.model.architecture) if recipe.model.architecture is not None else None
    return DECODER if head is None else head.kind


def opened(stage: Any, context: Context, allowed: tuple[str, ...] = WRITERS) -> tuple[Any, Head]:
    """(the policy that the stage reads, its head). Raises ModelError for a model that does not write, or never learnt to."""
    head = context.writing_head()
    if head.kind not in allowed:
        raise ModelError(f"the stage is {stage.stage}, {WHY[allowed]}")
    from_scratch = context.recipe.model_of(stage) == START and context.recipe.model.checkpoint is None
    return tuning.opened(stage, context, head, trained_head=not from_scratch), head

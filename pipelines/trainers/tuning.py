"""What a stage that trains asks of its tuner before and after a model is open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipelines.blocks import Found
from pipelines.errors import ModelError
from pipelines.fields import architectures
from pipelines.fields.positions import usable_positions

if TYPE_CHECKING:
    from pipelines.protocols import Context, Head
    from pipelines.recipe import Recipe, Stage


def mistakes(stage: Any, recipe: Recipe, head: str, longest: int) -> Iterable[Found]:
    """Why the tuner cannot serve this stage, as far as the recipe tells. `longest` is the longest text it will see."""
    shape = recipe.model.architecture
    words = architectures.resolve(shape) if shape else None
    if words is not None and (why := stage.tuner.misfit(words, head)) is not None:
        yield ("tuner",), f"is {stage.tuner.name}, which {why}"
    positions = (words or {}).get("max_position_embeddings")
    taken = stage.tuner.positions
    if taken and isinstance(positions, int) and positions - taken < longest <= positions:
        yield ("tuner",), (
            f"is {stage.tuner.name}, whose {taken} virtual tokens and texts of {longest} tokens are more than "
            f"the model's max_position_embeddings {positions}; lower one of the two"
        )
    yield from _on_unmergeable(stage, recipe)


def _on_unmergeable(stage: Stage, recipe: Recipe) -> Iterable[Found]:
    """An adapter that stays beside its base cannot be the base of further training."""
    before = next(recipe.lineage(stage), None)
    tuner = getattr(before, "tuner", None)
    if before is not None and tuner is not None and tuner.adapts and not tuner.merges:
        yield ("from",), (
            f"is '{before.id}', whose {tuner.name} cannot be merged into its model, so nothing can be trained on top; "
            f"read the model before it: from: {recipe.model_of(before)}"
        )


def opened(stage: Any, context: Context, head: Head) -> Any:
    """The model that the stage reads, with `head`; refused when the tuner cannot serve it. Raises ModelError."""
    model = context.open_model(head, keep_base=context.folder / "base" if stage.tuner.adapts else None)
    words = {"model_type": model.config.model_type, **model.config.to_dict()}
    if (why := stage.tuner.misfit(words, head.kind)) is not None:
        raise ModelError(f"the tuner {stage.tuner.name} {why}")
    return model


def room_for_text(stage: Any, model: Any) -> int | None:
    """Tokens of the longest text the tuned model can read; None where there is no bound. Raises ModelError."""
    positions = usable_positions(model.config)
    if positions is None:
        return None
    left: int = positions - stage.tuner.positions
    if left < 4:
        raise ModelError(
            f"the tuner {stage.tuner.name} takes {stage.tuner.positions} of the model's {positions} positions, which leaves no room for text"
        )
    return left

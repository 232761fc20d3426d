"""How a stage names a reward, and what the recipe says of one before anything is opened.

`reward: {from: STAGE}` and `reward: {checkpoint: …}` are short for `{name: model, …}`; every other reward is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from pipelines.core.config import ConfigIssue, Pick
from pipelines.core.registry import nearest

if TYPE_CHECKING:
    from pipelines.core.recipe import Recipe, Stage

MODEL = "model"
"""The reward that is meant where only a stage or a checkpoint is named."""
MEANS_MODEL = ("from", "checkpoint")


class PickReward(Pick):
    """The type of a key that holds a reward."""

    def __call__(self, value: object, info: ValidationInfo) -> Any:
        if isinstance(value, Mapping) and self.key not in value and any(key in value for key in MEANS_MODEL):
            value = {self.key: MODEL, **value}
        return super().__call__(value, info)

    described: ClassVar[bool] = False
    """Whether the schema of a reward is being written. Rewards hold rewards; one inside another is described by
    its name alone."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        if PickReward.described:
            return {
                "anyOf": [
                    {"type": "object", "properties": {self.key: {"enum": list(self.registry)}}},
                    {"enum": list(self.registry)},
                ]
            }
        PickReward.described = True
        try:
            json_schema = super().__get_pydantic_json_schema__(schema, handler)
        finally:
            PickReward.described = False
        for choice in json_schema["anyOf"]:
            if choice.get("properties", {}).get(self.key) == {"const": MODEL}:
                choice["required"] = [key for key in choice["required"] if key != self.key]
        return json_schema


def reward_reads(reward: Any) -> tuple[str, ...]:
    """Ids of the stages whose models a reward reads: the stage that holds it adds them to its own `reads`."""
    return tuple(dict.fromkeys(reward.stages))


def reward_mistakes(reward: Any, recipe: Recipe, stage: Stage, key: str = "reward") -> list[ConfigIssue]:
    """What is wrong with the reward that `stage` holds at `key`, places relative to the stage."""
    return [((key, *place), message) for place, message in reward.check(recipe, stage.id)]


def reward_content(reward: Any, key: str = "reward") -> dict[str, str]:
    """Content hashes of what a reward reads outside the run, by role: part of the stage's own. Raises DataError."""
    return {f"{key}.{role}": value for role, value in reward.content().items()}


def unfit_source(source: str, recipe: Recipe, stage_id: str, kinds: Iterable[str], what: str) -> str | None:
    """The sentence for a stage id inside a block that names no earlier stage of one of `kinds`, or None.

    `what` says what such a stage leaves, as in `a reward model`.
    """
    ids = [stage.id for stage in recipe.stages]
    before = recipe.stages[: ids.index(stage_id)] if stage_id in ids else recipe.stages
    kinds = tuple(kinds)
    fit = [stage.id for stage in before if stage.stage in kinds]
    if source in fit:
        return None
    if source in [stage.id for stage in before]:
        why = f"is a {recipe.stage(source).stage} stage, which leaves no {what.removeprefix('a ').removeprefix('an ')}"
    elif source == stage_id:
        why = "is this stage itself"
    elif source in ids:
        why = "comes later"
    else:
        why = "is no stage of this recipe"
    hint = (
        f"Allowed: {', '.join(fit)}"
        if fit
        else f"No earlier stage is of the kind {' or '.join(kinds)}; add one, or name a 'checkpoint'"
    )
    return f"'{source}' {why}.{nearest(source, fit)} {hint}"

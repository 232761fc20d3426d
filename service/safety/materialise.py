"""From the recipe that a user sent to the one that an attempt runs: references become paths.

`materialise` is pure. It reads the text with its overrides, puts the paths of files and checkpoints in the place of
their references, makes `publish.to: NAME` the folder `published/NAME` of the job, and writes one resolved recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.config import Position
from pipelines.core.errors import RecipeError
from pipelines.core.yaml_positions import write_yaml
from service.safety.network_recipes import read_network
from service.safety.references import MODEL_NAME, RecipeReference, key_of, references, replaced, strings
from service.safety.remote_code import asks

PUBLISHED = "published"
"""The folder below the job's that models are published to before they join the project's."""


@dataclass(frozen=True)
class Materialised:
    """What an attempt runs."""

    recipe: str
    """The recipe's text, overrides included."""
    publications: Mapping[str, str]
    """Folder of each publication, relative to the job's -> name of the model."""


@dataclass(frozen=True)
class Needs:
    """What a recipe refers to; it must be looked up before the recipe is materialised."""

    files: tuple[str, ...] = ()
    """Ids of uploaded files."""
    jobs: tuple[str, ...] = ()
    """Names or ids of jobs."""
    models: tuple[str, ...] = ()
    """Names of models."""
    publishes: tuple[str, ...] = ()
    """Names that models are published under."""
    code: bool = False
    """Whether it would run code of its checkpoint's repository."""


def needs(text: str, overrides: Sequence[str] = ()) -> Needs:
    """What a recipe refers to. Raises RecipeError when it cannot be read."""
    return needs_of(read_network(text, overrides).data)


def needs_of(data: object) -> Needs:
    """The same for a recipe that was read."""
    found = references(data)
    return Needs(
        _named(found, "file"),
        _named(found, "job"),
        _named(found, "model"),
        tuple(dict.fromkeys(name for _, name in _publications(data))),
        asks(data),
    )


def materialise(
    text: str,
    overrides: Sequence[str] = (),
    *,
    files: Mapping[str, Path],
    checkpoints: Mapping[str, Path],
    published: str = PUBLISHED,
) -> Materialised:
    """The recipe for the attempt. `files` are by id, `checkpoints` by `job:NAME` or `model:NAME`.

    Paths in it are absolute but for `publish.to`, which is relative to the working folder of the attempt.
    Raises RecipeError when a reference is not among `files` and `checkpoints`.
    """
    source = read_network(text, overrides)
    values: dict[Position, Any] = {}
    lost = []
    for reference in references(source.data):
        path = files.get(reference.name) if reference.kind == "file" else checkpoints.get(str(reference))
        if path is None:
            lost.append((reference.place, f"'{reference}' is gone; submit the job again with one that is there"))
        else:
            values[reference.place] = str(path)
    if lost:
        raise source.error(lost)
    publications = {}
    for place, name in _publications(source.data):
        if MODEL_NAME.fullmatch(name) is None:
            raise source.error([(place, f"is '{name}', must be the name of a model")])
        values[place] = f"{published}/{name}"
        publications[values[place]] = name
    return Materialised(write_yaml(replaced(source.data, values)), publications)


def _named(found: Sequence[RecipeReference], kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.name for each in found if each.kind == kind))


def _publications(data: object) -> list[tuple[Position, str]]:
    """Every text that says where to publish: of a stage, or of an override path in a matrix."""
    found = []
    for place, text in strings(data):
        if key_of(place) != "to":
            continue
        in_stage = len(place) == 3 and place[0] == "stages"
        in_matrix = place[0] == "matrix" and any(isinstance(part, str) and part.endswith(".to") for part in place)
        whole_stage = place[0] == "matrix" and place[-1] == "to"
        if in_stage or in_matrix or whole_stage:
            found.append((place, text))
    return found


__all__ = ["Materialised", "Needs", "RecipeError", "materialise", "needs", "needs_of"]

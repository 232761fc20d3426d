"""A constitution: principles that a judge compares by, and that critiques and revisions are asked for by.

Bai et al. 2022, "Constitutional AI: Harmlessness from AI Feedback", sections 3.1 and 4.1, arxiv.org/abs/2212.08073: a
principle is drawn anew for every critique and every comparison. Here the draw depends on the seed and on the comparison's
own number alone. A file of principles becomes part of the resolved recipe, so that a resume does not need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from pipelines.blocks import Block, Mistakes, show
from pipelines.errors import RecipeError
from pipelines.marks import read_yaml
from pipelines.registry import nearest

DEFAULT = "default"
"""The constitution that comes with Finery."""
KEY = "principles"
ENDINGS = (".yaml", ".yml")


class Principle(Block):
    """One thing that a completion is judged by."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$")
    """Its name in what is written down."""
    comparison: str | None = Field(None, min_length=1)
    """The question that two completions are compared by."""
    critique: str | None = Field(None, min_length=1)
    """The request to say what is wrong with a completion."""
    revision: str | None = Field(None, min_length=1)
    """The request to write it anew after that."""

    @model_validator(mode="after")
    def _says_something(self) -> Principle:
        if (self.critique is None) != (self.revision is None):
            missing = "revision" if self.revision is None else "critique"
            raise Mistakes([((missing,), "is missing: a critique and the revision after it belong together")])
        if self.comparison is None and self.critique is None:
            raise Mistakes([((), "says nothing: give a 'comparison', or a 'critique' and a 'revision'")])
        return self


def _read(value: Any, info: ValidationInfo) -> Any:
    """Principles in place, of a file beside the recipe, or the default ones."""
    if not isinstance(value, str):
        return value
    if value == DEFAULT:
        with as_file(files("pipelines.feedback") / "constitutions" / f"{DEFAULT}.yaml") as path:
            return _principles(path, value)
    place = (Path((info.context or {}).get("folder", Path.cwd())) / Path(value).expanduser()).absolute()
    if place.suffix.lower() not in ENDINGS:
        raise ValueError(f"'{value}' is neither '{DEFAULT}' nor a YAML file of principles.{nearest(value, (DEFAULT,))}")
    if not place.is_file():
        raise ValueError(f"'{value}' does not exist; looked for {place}")
    return _principles(place, value)


def _principles(path: Path, name: str) -> Any:
    try:
        data, _ = read_yaml(path)
    except RecipeError as error:
        raise ValueError(f"'{name}' is no readable YAML: {error}") from None
    found = data.get(KEY) if isinstance(data, Mapping) else data
    if not isinstance(found, tuple | list) or not found:
        raise ValueError(f"'{name}' holds {show(data)}, must hold '{KEY}: [{{id: …, comparison: …}}]'")
    return tuple(found)


def _differ(value: tuple[Principle, ...]) -> tuple[Principle, ...]:
    ids = [each.id for each in value]
    for at, name in enumerate(ids):
        if name in ids[:at]:
            raise Mistakes([((at, "id"), f"'{name}' is the id of an earlier principle too; ids must differ")])
    return value


Constitution = Annotated[
    tuple[Principle, ...], Field(min_length=1), AfterValidator(_differ), BeforeValidator(_read, json_schema_input_type=str | list[Principle])
]
"""The type of a recipe's key that takes principles: a list, a YAML file, or `default`."""


def drawn(principles: Sequence[Principle], part: str, *number: int | str) -> Principle | None:
    """The principle for the comparison or critique of that number, of those that have this part; None where none has."""
    fit = [each for each in principles if getattr(each, part) is not None]
    return fit[Random("\x1f".join(map(str, (part, *number)))).randrange(len(fit))] if fit else None

"""Files of principles: what `constitution: mine.yaml` names, read without the judges that compare by them.

Such a file holds a list of principles, alone or under the key `principles`. A recipe that is handed to a server carries
the list in the place of the file's name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.core.config import show
from pipelines.core.errors import RecipeError
from pipelines.core.registry import nearest
from pipelines.core.yaml_positions import read_yaml

DEFAULT = "default"
"""The constitution that comes with Finery."""
KEY = "principles"
ENDINGS = (".yaml", ".yml")


def read_principles(value: str, folder: Path) -> tuple[Any, ...]:
    """The principles, not checked yet, of the file that a recipe in `folder` names. Raises ValueError."""
    place = (folder / Path(value).expanduser()).absolute()
    if place.suffix.lower() not in ENDINGS:
        raise ValueError(f"'{value}' is neither '{DEFAULT}' nor a YAML file of principles.{nearest(value, (DEFAULT,))}")
    if not os.path.isfile(place):
        raise ValueError(f"'{value}' does not exist; looked for {place}")
    return principles_in(place, value)


def principles_in(path: Path, name: str) -> tuple[Any, ...]:
    """The principles of a file that messages call `name`. Raises ValueError."""
    try:
        data, _ = read_yaml(path)
    except RecipeError as error:
        raise ValueError(f"'{name}' is no readable YAML: {error}") from None
    principles = data.get(KEY) if isinstance(data, Mapping) else data
    if not isinstance(principles, tuple | list) or not principles:
        raise ValueError(f"'{name}' holds {show(data)}, must hold '{KEY}: [{{id: …, comparison: …}}]'")
    return tuple(principles)

"""Reading recipes and studies: from a file or a text, overrides applied, checked completely before anything happens.

`load` returns a frozen `Recipe`, or raises one RecipeError that names every mistake with its file, line and key. It
imports neither torch nor a data library.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipelines.core.config import ConfigIssues, Position, key_path, show
from pipelines.core.errors import Mistake, RecipeError
from pipelines.core.overrides import RecipeSource, name_stages, override
from pipelines.core.recipe import Recipe, validated
from pipelines.core.study_cells import StudyRecipe, expand
from pipelines.core.task_files import Inserted, insert, moved
from pipelines.core.yaml_positions import read_yaml, read_yaml_text


def load(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe. Raises RecipeError with every mistake in it; of a study, those of every cell."""
    return checked(read(path, overrides))


def loads(text: str, file: str = "recipe.yaml", folder: Path | None = None, overrides: Sequence[str] = ()) -> Recipe:
    """As `load`, for a text that is at hand; relative paths in it are relative to `folder`."""
    return checked(read_text(text, file, folder, overrides))


def load_either(path: Path | str, overrides: Sequence[str] = ()) -> Recipe | StudyRecipe:
    """Read and check a recipe, or a study with its cells. Raises RecipeError with every mistake in it."""
    source = read(path, overrides)
    return checked(source) if source.data.get("matrix") is None else expand(source)


def load_study(path: Path | str, overrides: Sequence[str] = ()) -> StudyRecipe:
    """Read and check a study. Raises RecipeError with every mistake in it."""
    source = read(path, overrides)
    if source.data.get("matrix") is None:
        raise source.error([(("matrix",), "is missing, so this is no study but a single run: finery run " + str(path))])
    return expand(source)


def refuse_study(recipe: Recipe, file: str) -> None:
    """Raise RecipeError when what should be run is a study."""
    if recipe.matrix is not None:
        raise RecipeError(
            [Mistake("matrix", f"makes this recipe a study of many runs; run it with: finery study {file}", file)]
        )


def checked(source: RecipeSource) -> Recipe:
    """The recipe that was read, or RecipeError with every mistake in it; of a study, those of every cell."""
    if source.data.get("matrix") is not None:
        return expand(source).recipe
    try:
        return validated(source.data, source.folder)
    except ConfigIssues as error:
        raise source.error(error.found) from None


def read(path: Path | str, overrides: Sequence[str] = ()) -> RecipeSource:
    """Read a recipe and apply the overrides, without checking it. Raises RecipeError where not even that can be
    done."""
    path = Path(path)
    data, lines = read_yaml(path)
    return _source(data, lines, str(path), path.resolve().parent, overrides)


def read_text(
    text: str,
    file: str = "recipe.yaml",
    folder: Path | None = None,
    overrides: Sequence[str] = (),
    local: bool = True,
) -> RecipeSource:
    """As `read`, for a text that is at hand; relative paths in it are relative to `folder`.

    A text that is not `local` came over the network: it names no files with tasks.
    """
    data, lines = read_yaml_text(text, file)
    return _source(data, lines, file, folder or Path.cwd(), overrides, local)


def _source(
    data: object, lines: dict[Position, int], file: str, folder: Path, overrides: Sequence[str], local: bool = True
) -> RecipeSource:
    if not isinstance(data, dict):
        raise RecipeError(
            [Mistake("", f"is {show(data)}, must be a mapping with the keys {', '.join(Recipe.keys())}", file, 1)]
        )
    from_command_line: list[Position] = []
    inserted = insert(data, folder) if local else Inserted()  # so that overrides reach into the tasks
    written = ids = name_stages(data)
    for each in overrides:
        try:
            from_command_line.append(override(data, each, ids))
        except ConfigIssues as error:
            raise RecipeError(
                [Mistake(key_path(place), message, "command line") for place, message in error.found]
            ) from None
        ids = name_stages(data)
    named = insert(data, folder, local)
    files = {**moved(inserted.files, written, ids), **named.files}
    source = RecipeSource(data, lines, file, folder, tuple(from_command_line), files)
    if named.issues:
        raise source.error(named.issues)
    return source

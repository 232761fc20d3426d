"""Rows that an earlier stage has written, as training rows of a task: `train: {from: feedback}`.

In a resolved recipe it is `stage:ID`. `run` says where the complete stages lie before it asks for data; anywhere else
the rows do not exist yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema

from pipelines.core.config import ConfigIssue, ConfigIssues, show, unknown_key
from pipelines.core.errors import DataError
from pipelines.core.registry import nearest
from pipelines.data.references import resolve_path
from pipelines.data.sources import FileSource

if TYPE_CHECKING:
    from pipelines.core.recipe import Recipe, Stage

PREFIX = "stage:"
KEY = "from"
WRITTEN = "revisions.jsonl"
"""The file that a feedback stage with `revise` leaves in its folder."""
_folders: Mapping[str, Path] = {}


def use(folders: Mapping[str, Path]) -> None:
    """Say where the complete stages of the run lie, by id; the mapping may grow."""
    global _folders
    _folders = folders


def find(path: str, name: str | None) -> FileSource | None:
    """The rows that a stage has written. Raises DataError where there are none."""
    if not path.startswith(PREFIX):
        return None
    stage = path.removeprefix(PREFIX)
    if stage not in _folders:
        raise DataError(f"stage '{stage}' has written nothing yet: its rows exist only in a run, after that stage")
    file = (_folders[stage] / WRITTEN).resolve()
    if not file.is_file():
        raise DataError(f"stage '{stage}' has left no {WRITTEN}; set revise: true there")
    return FileSource(f"{WRITTEN} of stage '{stage}'", {"train": (file,)})


def example(folder: Path) -> str:
    """A data set that is found here, put below `folder`, the folder of its stage."""
    folder.mkdir(parents=True)
    (folder / WRITTEN).write_text('{"text": "train"}\n')
    use({"feedback": folder})
    return f"{PREFIX}feedback"


def looked(path: str) -> list[str]:
    """Where `find` looked."""
    return ["the stages of this run"] if path.startswith(PREFIX) else []


def _path(value: object, info: ValidationInfo) -> Any:
    if isinstance(value, Mapping):
        wrong = [key for key in value if key != KEY]
        if wrong:
            raise ConfigIssues([((str(wrong[0]),), unknown_key(wrong[0], (KEY,)))])
        if not isinstance(value.get(KEY), str):
            raise ConfigIssues([((KEY,), f"is {show(value.get(KEY))}, must be the id of an earlier feedback stage")])
        return PREFIX + str(value[KEY])
    if isinstance(value, str) and not value.startswith(PREFIX):
        return resolve_path(value, info)
    return value


PathOrStage = Annotated[
    str,
    BeforeValidator(_path),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {KEY: {"type": "string"}},
                    "required": [KEY],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
"""The type of a key that names data, or the stage that writes it."""


def stage_of(task: object) -> str | None:
    """Id of the stage that writes the training rows of a task (a name, or a block)."""
    train = getattr(task, "train", None)
    return train.removeprefix(PREFIX) if isinstance(train, str) and train.startswith(PREFIX) else None


def mistakes(task: object, stage: Stage, recipe: Recipe) -> Iterable[ConfigIssue]:
    """What is wrong with the stage that `task` of `stage` reads its rows from, places relative to the stage."""
    named = stage_of(task)
    if named is None:
        return
    before = recipe.stages[: recipe.stages.index(stage)]
    fit = [each.id for each in before if getattr(each, "revise", None) is not None]
    if named not in fit:
        known = (
            f"Allowed: {', '.join(fit)}" if fit else "None does: add {stage: feedback, revise: true, …} before this one"
        )
        yield ("task", "train"), f"'{named}' is no earlier stage that writes revisions.{nearest(named, fit)} {known}"

"""Tasks in files of their own: `task: ./my-task.yaml` is the task that the file describes.

Such a file holds exactly the keys of a task described in place, its data paths relative to itself. Reading a recipe
puts the description where the file was named, so that the resolved recipe stands alone: a `task` becomes the inline
task, and an entry of `benchmarks` a name under the stage's `tasks`. What is wrong in the file is reported with its
file and line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.core import data_files
from pipelines.core.config import ConfigIssue, Position, show
from pipelines.core.yaml_positions import read_yaml

ENDINGS = (".yaml", ".yml")
"""What the name of such a file ends with; no benchmark and no stage is called so."""
DATA_KEYS = ("train", "validation", "test")
"""Keys of a task that may name files."""
NOT_HERE = (
    "is a file beside the recipe that was sent, and files of the sender are not read here; submit the recipe with "
    "'finery submit', which sends the task along, or describe the task in place"
)


@dataclass(frozen=True)
class TaskFile:
    """A file that was read, and where its content now stands."""

    path: str
    """As messages name it."""
    lines: Mapping[Position, int]
    """Line of every position in the file."""
    task: Mapping[str, Any]


@dataclass
class Inserted:
    """What `insert` did."""

    files: dict[Position, TaskFile] = field(default_factory=dict)
    """The files that were read, by the position of their content."""
    issues: list[ConfigIssue] = field(default_factory=list)
    """What is wrong with naming them."""


def names_file(value: Any) -> bool:
    """Whether a value of a recipe names a file with a task."""
    return isinstance(value, str) and value.lower().endswith(ENDINGS)


def insert(data: dict[str, Any], folder: Path, local: bool = True) -> Inserted:
    """Replace the files that `data`, a recipe, names as tasks by what they describe, in place.

    Recipes that came over the network name none: with `local=False` each is an issue. Raises RecipeError for a file
    that cannot be read.
    """
    done = Inserted()

    def read(value: str, position: Position) -> dict[str, Any] | None:
        if not local:
            done.issues.append((position, f"'{value}' {NOT_HERE}"))
            return None
        task = _read(value, folder, position, done)
        return None if task is None else dict(task)

    def put(block: dict[str, Any], key: str, position: Position) -> None:
        if names_file(block.get(key)) and (task := read(block[key], (*position, key))) is not None:
            block[key] = task

    stages = data.get("stages")
    copies: list[Any] = []
    for at, stage in enumerate(stages if isinstance(stages, tuple | list) else ()):
        here: Position = ("stages", at)
        copies.append(stage := dict(stage) if isinstance(stage, Mapping) else stage)
        if not isinstance(stage, dict):
            continue
        put(stage, "task", here)
        if isinstance(stage.get("tasks"), tuple | list):
            stage["tasks"] = tuple(dict(each) if isinstance(each, Mapping) else each for each in stage["tasks"])
            for place, entry in enumerate(stage["tasks"]):
                if isinstance(entry, dict) and names_file(entry.get("task")):
                    entry.setdefault("id", Path(entry["task"]).stem)
                    put(entry, "task", (*here, "tasks", place))
        if isinstance(stage.get("benchmarks"), tuple | list):
            _benchmarks(stage, here, read, done)
    if copies:
        data["stages"] = tuple(copies)
    _matrix(data, read)
    return done


def _benchmarks(stage: dict[str, Any], here: Position, read: Any, done: Inserted) -> None:
    """Entries of `benchmarks` that are files become names under `tasks`."""
    names: list[Any] = []
    tasks = dict(stage["tasks"]) if isinstance(stage.get("tasks"), Mapping) else {}
    for place, entry in enumerate(stage["benchmarks"]):
        names.append(entry)
        if not names_file(entry):
            continue
        position = (*here, "benchmarks", place)
        if (task := read(entry, position)) is None:
            continue
        name = Path(entry).stem
        if name in tasks and tasks[name] != task:
            done.issues.append((position, f"'{entry}' would be called '{name}', as another task of this stage is"))
            continue
        if position in done.files:
            done.files[*here, "tasks", name] = done.files.pop(position)
        tasks[name], names[place] = task, name
    if tasks:
        stage["benchmarks"], stage["tasks"] = tuple(names), tasks


def _matrix(data: dict[str, Any], read: Any) -> None:
    """The values that the axes of a study give to keys called `task`."""
    matrix = data.get("matrix")
    if not isinstance(matrix, Mapping):
        return

    def value_of(key: str, value: Any, position: Position) -> Any:
        if str(key).rpartition(".")[2] == "task" and names_file(value):
            return read(value, position) or value
        return value

    axes: dict[str, Any] = {}
    for key, values in matrix.items():
        if isinstance(values, tuple | list):
            axes[key] = tuple(value_of(key, each, ("matrix", key, at)) for at, each in enumerate(values))
        elif isinstance(values, Mapping):
            axes[key] = {
                name: {path: value_of(path, each, ("matrix", key, name, path)) for path, each in entry.items()}
                if isinstance(entry, Mapping)
                else entry
                for name, entry in values.items()
            }
        else:
            axes[key] = values
    data["matrix"] = axes


def _read(value: str, folder: Path, position: Position, done: Inserted) -> Mapping[str, Any] | None:
    """The task that a file describes, its data paths made good. Raises RecipeError where it cannot be read."""
    path = Path(os.path.abspath(folder / os.path.expanduser(value)))
    if not os.path.exists(path):
        done.issues.append((position, f"'{value}' does not exist; looked for {path}"))
        return None
    content, lines = read_yaml(path)
    shown = str(path)
    if not isinstance(content, Mapping) or "kind" not in content:
        given = "a recipe" if isinstance(content, Mapping) and "stages" in content else show(content)
        done.issues.append(
            (position, f"'{value}' holds no task but {given}; it must hold the keys of one, such as kind and train")
        )
        return None
    task = {key: _beside(each, path.parent) if key in DATA_KEYS else each for key, each in content.items()}
    done.files[position] = TaskFile(shown, lines, task)
    return task


def _beside(value: Any, folder: Path) -> Any:
    """A data path of the file: absolute where it means a file beside it, else as it is written."""
    if not isinstance(value, str) or value.startswith((data_files.EMBEDDED, "/")):
        return value
    place = Path(os.path.abspath(folder / os.path.expanduser(value)))
    means_file = (
        value.startswith(("./", "../", "~"))
        or value.lower().endswith(data_files.ENDINGS)
        or any(each in value for each in "*?[")
        or os.path.exists(place)
    )
    return str(place) if means_file else value


def moved(
    files: Mapping[Position, TaskFile], before: Sequence[str | None], after: Sequence[str | None]
) -> dict[Position, TaskFile]:
    """The same files once an override has left stages out: `before` and `after` are the ids of the stages."""
    places: dict[Position, TaskFile] = {}
    for position, file in files.items():
        if position[0] != "stages":
            places[position] = file
        elif (name := before[int(position[1])]) in after:
            places["stages", list(after).index(name), *position[2:]] = file
    return places


def origin(position: Position, files: Mapping[Position, TaskFile]) -> tuple[TaskFile, Position] | None:
    """The file that a position of the recipe was read from, and the position in it."""
    for length in range(len(position) - 1, 0, -1):
        if position[:length] in files:
            return files[position[:length]], position[length:]
    return None


def overrides(files: Mapping[Position, TaskFile], data: Mapping[str, Any]) -> Sequence[tuple[Position, Any]]:
    """(position, value) of what `insert` changed, so that a recipe's own text can be sent with them."""
    changed: dict[Position, Any] = {}
    for position in files:
        if len(position) > 3 and position[2] == "tasks" and isinstance(position[3], str):  # of `benchmarks`
            for key in ("benchmarks", "tasks"):
                changed[(*position[:2], key)] = data["stages"][position[1]][key]
        else:
            value: Any = data
            for part in position:
                value = value[part]
            changed[position] = value
    return list(changed.items())

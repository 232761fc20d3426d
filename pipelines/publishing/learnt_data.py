"""The data behind a publication: which data sets its stages read, under which licences, and what else it began with.

Names are those that a reader may know: of a data set on the Hub, of a file as the published recipe names it. What
nobody states is called unknown (`pipelines.data.licences`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.core.files import JSONObject
from pipelines.core.recipe import Recipe, Stage
from pipelines.core.registry import TASKS
from pipelines.core.yaml_positions import read_yaml
from pipelines.data import hub
from pipelines.data.builtin import PREFIX
from pipelines.data.licences import Licence, licence_of
from pipelines.publishing import provenance

DATASETS = ("datasets", "prompts", "human", "passages")
"""Keys of a stage below which data sets are named by `path`."""
SPLITS = ("train", "validation", "test")
"""Keys of a task whose texts name data."""
Named = tuple[str, str | None, str | None, str]
"""Of a data set: its path, its configuration, its licence as it is stated with its name, and who states it there."""


def data_of(recipe: Recipe, stages: Sequence[Stage], benchmarks: Iterable[str]) -> list[JSONObject]:
    """`{path, name, role, on_the_hub, stages, license, stated_by}` of every data set that `stages` read, and of the
    checkpoint that the recipe begins with. `benchmarks` are the names of what was scored."""
    found: dict[tuple[str, str | None], JSONObject] = {}

    def add(named: Named, stage: str) -> None:
        path, name, stated, by = named
        if (path, name) not in found:
            licence = Licence(stated, by) if stated else licence_of(path)
            about = {"path": path, "name": name, "role": "data", "on_the_hub": _is_hub_id(path)}
            found[path, name] = {**about, "stages": [], **_plain(licence)}
        if stage not in found[path, name]["stages"]:
            found[path, name]["stages"].append(stage)

    for stage in stages:
        for named in _named(stage.plain()):
            add(named, stage.id)
    read = {stage.stage: stage.id for stage in stages}
    for benchmark in benchmarks:
        for named in _of_task(benchmark):
            add(named, read.get("evaluate", "evaluate"))
    own = recipe.model
    start: list[JSONObject] = []
    if own.checkpoint is not None:
        licence = licence_of(own.checkpoint, own.revision, "model")
        start = [{"path": own.checkpoint, "name": None, "role": "checkpoint", "stages": [], **_plain(licence)}]
    return [*start, *found.values()]


def _plain(licence: Licence) -> JSONObject:
    return {"license": licence.name, "stated_by": licence.stated_by}


def _named(value: Any) -> Iterator[Named]:
    """Every data set that plain data of a stage names."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if key in DATASETS:
                yield from _references(entry)
            elif key == "task" or (key == "benchmarks" and isinstance(entry, list)):
                for each in entry if isinstance(entry, list) else [entry]:
                    yield from _of_task(each)
            elif key == "tasks" and isinstance(entry, Mapping):  # of an evaluate stage: described by name
                for each in entry.values():
                    yield from _of_task(each)
            elif isinstance(entry, Mapping | list):
                yield from _named(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _named(entry)


def _references(value: Any) -> Iterator[Named]:
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, Mapping) and isinstance(entry.get("path"), str):
            yield entry["path"], entry.get("name"), entry.get("license"), "the recipe"


def _of_task(task: Any) -> Iterator[Named]:
    """The data sets of a named task, or of one that is described in place."""
    by = "the recipe"
    if isinstance(task, str):
        if task not in TASKS:  # the id of a stage, or a score's name
            return
        task, by = read_yaml(TASKS.path(task))[0], "Finery's file of the benchmark"
    if isinstance(task, Mapping):
        for split in SPLITS:
            for path in task[split] if isinstance(task.get(split), list) else [task.get(split)]:
                if isinstance(path, str):
                    yield path, task.get("name"), task.get("license"), by


def _is_hub_id(path: str) -> bool:
    """Whether a path of a checked recipe, where files are absolute, names a data set of the Hub."""
    return bool(hub.NAME.match(path)) and "/" in path and not path.startswith(PREFIX)


def on_the_hub(data: Sequence[JSONObject]) -> list[str]:
    """The ids of those data sets that lie on the Hub, for a card's metadata: a file's path may look like one."""
    return [str(each["path"]) for each in data if each.get("on_the_hub")]


def rows(data: Sequence[JSONObject]) -> list[JSONObject]:
    """The lines of the card's table."""
    return [
        {
            "data": f"`{_shown(each)}`{' (' + each['name'] + ')' if each['name'] else ''}",
            "stages": ", ".join(each["stages"]) or "the start",
            "license": each["license"],
            "stated_by": each["stated_by"],
        }
        for each in data
    ]


def _shown(each: JSONObject) -> str:
    path = str(each["path"])
    if each["role"] == "checkpoint":
        return provenance.name_of(path)
    return path if not Path(path).is_absolute() else str(provenance.public(path))

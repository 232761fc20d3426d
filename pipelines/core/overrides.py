"""A recipe as it was written, and the overrides that the command line or a matrix put into it.

An override is `key.path=value`: stages are named by position or id, `stages.mrpc.tuner.r=8`. A stage that is set to
null is left out, and so is a key of the matrix, or a named entry of one. Places of mistakes lead back to the file and
line, or to the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.core.config import ConfigIssue, ConfigIssues, Position, key_path, show
from pipelines.core.errors import Mistake, RecipeError
from pipelines.core.recipe import stage_ids
from pipelines.core.registry import STAGES, nearest
from pipelines.core.task_files import TaskFile, origin
from pipelines.core.yaml_positions import line_of, scalar

SHORT_FORMS = ("tuner", "objective", "train", "reward")
"""Keys whose block may be written as its name alone."""
MOST_PARTS = 100
"""Of an override path."""


@dataclass(frozen=True)
class RecipeSource:
    """A recipe as it was written, its overrides applied, not checked yet."""

    data: dict[str, Any]
    lines: dict[Position, int]
    file: str
    folder: Path
    """What relative paths are relative to."""
    overridden: tuple[Position, ...] = ()
    """Places that the command line changed."""
    files: Mapping[Position, TaskFile] = field(default_factory=dict)
    """Tasks that were read from files of their own, by their position in `data`."""

    @property
    def ids(self) -> list[str | None]:
        """Ids of the stages by position, None where there is none."""
        return stage_ids(self.data)

    def error(self, issues: Iterable[ConfigIssue]) -> RecipeError:
        """The mistakes with file, line and key, in the order of the file."""
        return RecipeError(_in_order(list(issues), self))


def _in_order(issues: list[ConfigIssue], source: RecipeSource) -> list[Mistake]:
    mistakes, ids = [], source.ids
    for place, message in dict.fromkeys(issues):
        line = line_of(place, source.lines)
        overridden = any(place[: len(each)] == each for each in source.overridden)
        if not overridden and (inserted := origin(place, source.files)) is not None:
            task, inner = inserted
            mistake = Mistake(key_path(inner), message, task.path, line_of(inner, task.lines) or 1)
            mistakes.append((line or 0, mistake))
            continue
        named: Position = place
        if len(place) > 1 and place[0] == "stages" and isinstance(place[1], int) and place[1] < len(ids):
            stage_id = ids[place[1]]
            if stage_id is not None and place[2:] != ("stage",):
                named = ("stages", stage_id, *place[2:])
        if overridden:
            mistakes.append((-1, Mistake(key_path(named), message, "command line")))
        else:
            mistakes.append((line or 0, Mistake(key_path(named), message, source.file, line or 1)))
    return [mistake for _, mistake in sorted(mistakes, key=lambda pair: pair[0])]


def override(data: dict[str, object], override: str, ids: list[str | None]) -> Position:
    """Apply `key.path=value` of the command line to plain data; returns the place it changed."""
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        raise ConfigIssues([((), f"'{override}' is not an override; write key.path=value, such as stages.mrpc.seed=1")])
    try:
        value = scalar(text)
    except Exception as error:
        raise ConfigIssues([((path,), f"'{text}' is not a YAML value: {str(error).splitlines()[0]}")]) from None
    return put_at(data, path, value, ids)


def put_at(data: dict[str, object], path: str, value: object, ids: Sequence[str | None]) -> Position:
    """Set the value of an override path in plain data; returns the place it changed. Raises Mistakes.

    A stage that is set to null is left out, `stages.pretrain=null`; so is a key of the matrix, `matrix.task=null`, or
    an entry of it, `matrix.method.lora=null`, with the hypotheses about what is gone, or what an entry brings for the
    search, `matrix.method.lora.search=null`.
    """
    parts: list[str] = re.sub(r"\[(\d+)\]", r".\1", path.strip()).split(".")
    if len(parts) > MOST_PARTS:
        raise ConfigIssues([((path[:40],), f"has {len(parts)} parts, an override path at most {MOST_PARTS}")])
    if value is None and parts[0] == "matrix" and (place_left := _leave_out(data, ".".join(parts[1:]))) is not None:
        return place_left
    place: list[str | int] = []
    here: Any = data
    while parts:
        part = parts[0]
        key: str | int = part
        if isinstance(here, tuple):
            of_stages = place == ["stages"]
            if of_stages and part in ids:
                key = list(ids).index(part)
            elif part.isascii() and part.isdigit() and len(part) < 10 and int(part) < len(here):
                key = int(part)
            else:
                choices = [each for each in ids if each] if of_stages else [str(n) for n in range(len(here))]
                raise ConfigIssues(
                    [
                        (
                            (path,),
                            f"'{part}' is not there to be overridden.{nearest(part, choices)} "
                            f"Known: {', '.join(choices)}",
                        )
                    ]
                )
            if of_stages and value is None and len(parts) == 1:
                data["stages"] = tuple(stage for at, stage in enumerate(here) if at != key)
                return ("stages", part)
        elif not isinstance(here, dict):
            raise ConfigIssues([((path,), f"'{key_path(tuple(place))}' is {show(here)}, which has no keys below it")])
        else:  # keys with dots in them: those of a matrix, and of `require`
            new = ".".join(parts) if part not in here and _holds_paths(place, part, value) else part
            joined = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
            key = next((each for each in joined if each in here), new)
        del parts[: 1 if isinstance(key, int) else key.count(".") + 1]
        place.append(key)
        if not parts:
            _put(data, place, value)
        else:
            if isinstance(here, dict) and (key not in here or here[key] is None):
                _put(data, place, {})
            here = _get(data, place)
            if isinstance(here, str) and part in SHORT_FORMS:  # `tuner: lora` grows when `tuner.r` is set
                here = {"name": here}
                _put(data, place, here)
    return tuple(place)


def _holds_paths(place: Sequence[str | int], part: str, value: object) -> bool:
    """Whether a new key, whose first part this is, is an override path as a whole."""
    match place:
        case ["matrix"]:
            return part == "stages" or isinstance(value, tuple)  # values are listed for paths, entries are named
        case ["matrix", _, _]:
            return part != "search"
        case ["matrix", _, _, "search"] | ["study", "search", "over" | "budget" | "halving"]:
            return True
    return False


def _leave_out(data: dict[str, Any], name: str) -> Position | None:
    """Take a key of the matrix out, or `KEY.ENTRY`; returns its place, None where the name is that of a value within an
    entry, or the matrix as a whole. Raises Mistakes."""
    matrix = data.get("matrix")
    if not name or not isinstance(matrix, dict):
        return None
    key = max((key for key in matrix if name == key or name.startswith(f"{key}.")), key=len, default="")
    axis, label = matrix.get(key), name[len(key) + 1 :]
    entries = {str(entry): entry for entry in axis} if isinstance(axis, dict) else {}
    if not key:
        hint = f"{nearest(name, matrix)} Known: {', '.join(matrix)}"
        raise ConfigIssues([(("matrix", name), f"is not there to be left out.{hint}")])
    if name == key:
        del matrix[key]
    elif axis is None or not entries:
        return None
    elif label not in entries and any(label.startswith(f"{entry}.") for entry in entries):
        entry = label.removesuffix(".search")
        if entry == label or not isinstance(values := axis.get(entries.get(entry)), dict):
            return None  # a value within an entry
        values.pop("search", None)
    elif label not in entries:
        hint = f"{nearest(label, entries)} Known: {', '.join(entries)}"
        raise ConfigIssues([(("matrix", key, label), f"is not there to be left out.{hint}")])
    elif len(entries) == 1:
        only = f"is the only entry of '{key}', which would have none; leave the key out: matrix.{key}=null"
        raise ConfigIssues([(("matrix", key, label), only)])
    else:
        del axis[entries[label]]
        entries = {label: label}
    study, others = data.get("study"), [map(str, each) for each in matrix.values() if isinstance(each, Mapping)]
    gone = set(entries).difference(*others)
    if gone and isinstance(study, dict) and isinstance(study.get("hypotheses"), tuple):
        study["hypotheses"] = tuple(each for each in study["hypotheses"] if not _names(each) & gone)
    return ("matrix", key, label) if label else ("matrix", key)


def _names(hypothesis: object) -> set[object]:
    """Both entries that a hypothesis is about, as far as they are given."""
    if not isinstance(hypothesis, Mapping):
        return set()
    equal = hypothesis.get("equal")
    named = [hypothesis.get("better"), hypothesis.get("than"), *(equal if isinstance(equal, tuple) else ())]
    return {name for name in named if isinstance(name, str)}


def _get(data: Any, place: Sequence[str | int]) -> Any:
    for key in place:
        data = data[key]
    return data


def _put(data: Any, place: Sequence[str | int], value: Any) -> Any:
    """Set `value` at `place`, rebuilding the tuples on the way."""
    key = place[0]
    inner = value if len(place) == 1 else _put(data[key], place[1:], value)
    if isinstance(data, tuple):
        assert isinstance(key, int)
        return (*data[:key], inner, *data[key + 1 :])
    data[key] = inner
    return data


def name_stages(data: dict[str, object]) -> list[str | None]:
    """Give every stage without an id its default one; returns the ids by position, None where there can be none."""
    stages = data.get("stages")
    if not isinstance(stages, tuple | list):
        return []
    data["stages"] = stages = tuple(dict(stage) if isinstance(stage, Mapping) else stage for stage in stages)
    ids: list[str | None] = []
    counts: dict[str, int] = {}
    taken = {stage["id"] for stage in stages if isinstance(stage, dict) and isinstance(stage.get("id"), str)}
    for stage in stages:
        if not isinstance(stage, dict):
            ids.append(None)
            continue
        kind = stage.get("stage")
        if "id" not in stage and isinstance(kind, str) and kind in STAGES:
            name = kind
            while name in taken or counts.get(name):
                counts[kind] = counts.get(kind, 1) + 1
                name = f"{kind}-{counts[kind]}"
            counts.setdefault(kind, 1)
            counts.setdefault(name, 1)
            stage["id"] = name
            taken.add(name)
        ids.append(stage.get("id") if isinstance(stage.get("id"), str) else None)
    return ids

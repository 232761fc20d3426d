"""The matrix of a study: which values are tried, and under what names their combinations are reported.

A key of `matrix` is either an override path with the values that it takes, one cell each,

    stages.mrpc.seed: [1, 2, 3]

or a word of one's own with named entries, each of which sets several paths together:

    method:
      full: {stages.mrpc.tuner: full, search: {stages.mrpc.arguments.learning_rate: [2e-5, 5e-5]}}
      lora: {stages.mrpc.tuner: {name: lora, r: 8}, search: {stages.mrpc.arguments.learning_rate: [5e-4, 1e-3]}}

The cells of the study are the product of all keys; the last key changes fastest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BeforeValidator

from pipelines.core.config import ConfigIssue, ConfigIssues, Position, show
from pipelines.core.registry import nearest

TOP = ("name", "seed", "model", "tokenizer", "stages", "launch")
"""What an override path may begin with: the keys of a recipe."""
FIXED = ("name", "launch")
"""Keys that are the study's own: one name, one way of starting processes."""
WORD = re.compile(r"^[A-Za-z][A-Za-z0-9_ -]{0,39}$")
SEARCH = "search"
"""The key of a named entry that holds its own values for the paths of `study.search.over`."""
MOST_CELLS = 2_000
MEANT = ("name", "preset", "checkpoint", "pretrained", "stage", "kind", "train", "model_type")
"""Keys of a block that name it, the first that is there."""


@dataclass(frozen=True)
class MatrixValue:
    """One value of an axis: the paths it sets, and what it is called in tables."""

    label: str
    values: Mapping[str, Any]
    """By override path."""
    place: Position
    """Where it stands in the recipe."""
    search: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of its own for paths of the search."""

    named: bool = False
    """Whether it is an entry of a word, with its paths below it."""

    def place_of(self, path: str) -> Position:
        """Where the value of `path` stands in the recipe."""
        return (*self.place, path) if self.named else self.place


@dataclass(frozen=True)
class Axis:
    """One key of the matrix."""

    name: str
    """What it is called in tables: the word, or the part of the path that tells it from the others."""
    key: str
    """As the recipe writes it."""
    entries: tuple[MatrixValue, ...]

    @property
    def repeats(self) -> bool:
        """Whether it only repeats the same work with other seeds: scores are averaged over it."""
        return all(path.rpartition(".")[2] == "seed" for entry in self.entries for path in entry.values)

    def entry(self, label: str) -> MatrixValue:
        """The entry of that name. Raises KeyError."""
        for entry in self.entries:
            if entry.label == label:
                return entry
        raise KeyError(label)


def is_path(key: str) -> bool:
    """Whether a key is an override path, and not a word of one's own."""
    return "." in key or "[" in key or key in TOP


def axes_of(matrix: Mapping[str, object]) -> tuple[Axis, ...]:
    """The axes of a matrix, in its order. Raises Mistakes, places relative to the matrix."""
    issues: list[ConfigIssue] = []
    axes: list[Axis] = []
    names = _short_names([key for key in matrix if is_path(key)])
    if not matrix:
        issues.append(((), "is empty, must have at least one key with the values to try"))
    for key, value in matrix.items():
        try:
            entries = _values(key, value) if is_path(key) else _named(key, value)
        except ConfigIssues as error:
            issues += [((key, *place), message) for place, message in error.found]
            continue
        axes.append(Axis(names.get(key, key), key, entries))
    issues += _set_twice(axes)
    cells = 1
    for axis in axes:
        cells *= len(axis.entries)
    if cells > MOST_CELLS:
        issues.append(((), f"has {cells:,} cells, at most {MOST_CELLS:,} are allowed; leave some values out"))
    if issues:
        raise ConfigIssues(issues)
    return tuple(axes)


def combinations(axes: tuple[Axis, ...]) -> Iterator[tuple[MatrixValue, ...]]:
    """Every combination of one entry an axis."""
    return product(*(axis.entries for axis in axes))


def _values(key: str, value: object) -> tuple[MatrixValue, ...]:
    """The entries of an override path."""
    if (wrong := unfit_path(key)) is not None:
        raise ConfigIssues([((), wrong)])
    if not isinstance(value, tuple) or not value:
        raise ConfigIssues([((), f"is {show(value)}, must be a list with the values that {key} takes")])
    again = [at for at, each in enumerate(value) if _stands_in(each, value[:at])]
    if again:
        raise ConfigIssues([((at,), f"{show(value[at])} stands here twice; leave one out") for at in again])
    labels = labels_of(value)
    return tuple(
        MatrixValue(label, {key: each}, ("matrix", key, at))
        for at, (label, each) in enumerate(zip(labels, value, strict=True))
    )


def _named(key: str, value: object) -> tuple[MatrixValue, ...]:
    """The entries of a word of one's own: a mapping by name, or a list of mappings."""
    if not WORD.match(key):
        raise ConfigIssues(
            [((), f"is neither an override path, such as stages.mrpc.tuner, nor a word (must match {WORD.pattern})")]
        )
    if isinstance(value, Mapping) and value:
        named = [(str(label), each, (str(label),)) for label, each in value.items()]
    elif isinstance(value, tuple) and value:
        texts = labels_of(
            [next(iter(each.values())) if isinstance(each, Mapping) and len(each) == 1 else each for each in value]
        )
        pairs = enumerate(zip(texts, value, strict=True))
        named = [(text, each, (at,)) for at, (text, each) in pairs]  # type: ignore[misc]
    else:
        hint = nearest(key, TOP)
        raise ConfigIssues(
            [
                (
                    (),
                    f"is {show(value)}, must be a mapping from names to override paths with their values; "
                    f"'{key}' is no key of a recipe.{hint}",
                )
            ]
        )
    issues: list[ConfigIssue] = []
    entries = []
    for label, each, place in named:
        if not isinstance(each, Mapping):
            issues.append(
                (
                    place,
                    f"is {show(each)}, must be a mapping from override paths to values, such as "
                    f"{{stages.mrpc.tuner: lora}}",
                )
            )
            continue
        values = {path: entry for path, entry in each.items() if path != SEARCH}
        issues += [((*place, path), wrong) for path in values if (wrong := unfit_path(path)) is not None]
        if isinstance(values.get("stages"), Mapping):
            issues.append(
                ((*place, "stages"), "is a mapping, but stages are a list; name the stage in the path: stages.ID.key")
            )
        try:
            grids = checked_grids(each[SEARCH]) if SEARCH in each else {}
        except ConfigIssues as error:
            issues += [((*place, SEARCH, *below), message) for below, message in error.found]
            continue
        entries.append(MatrixValue(label, values, ("matrix", key, *place), grids, named=True))
    if issues:
        raise ConfigIssues(issues)
    return tuple(entries)


def unfit_path(path: str) -> str | None:
    first = re.split(r"[.\[]", path, maxsplit=1)[0]
    if first in FIXED:
        return f"'{first}' is the same for every cell of a study, so the matrix cannot change it"
    if first not in TOP:
        return (
            f"'{path}' is no override path: it must begin with one of "
            f"{', '.join(set(TOP) - set(FIXED))}.{nearest(first, TOP)}"
        )
    return None


def _set_twice(axes: list[Axis]) -> list[ConfigIssue]:
    """Two axes that set the same path would undo each other; one that leaves a stage out does not undo what
    another sets in it."""
    issues: list[ConfigIssue] = []
    for position, axis in enumerate(axes):
        for earlier in axes[:position]:
            for entry in axis.entries:
                for path, value in entry.values.items():
                    others = ((each, own) for one in earlier.entries for each, own in one.values.items())
                    if any(
                        within(path, each) and not _left_out(path, value, each) and not _left_out(each, own, path)
                        for each, own in others
                    ):
                        issues.append(
                            (
                                entry.place_of(path)[1:],
                                f"'{path}' is set by '{earlier.key}' too, and one would undo the other; name "
                                "them together under one word",
                            )
                        )
    return issues


def _left_out(path: str, value: object, other: str) -> bool:
    """Whether a whole stage is left out, and `other` is a key of it."""
    return leaves_out_stage(path, value) and len(path_parts(other)) > 2


def leaves_out_stage(path: str, value: object) -> bool:
    """Whether this override leaves a whole stage out."""
    parts = path_parts(path)
    return value is None and len(parts) == 2 and parts[0] == "stages"


def within(path: str, other: str) -> bool:
    """Whether the two paths are one, or one lies below the other."""
    one, two = path_parts(path), path_parts(other)
    return one[: len(two)] == two or two[: len(one)] == one


def path_parts(path: str) -> list[str]:
    return re.sub(r"\[(\d+)\]", r".\1", path.strip()).split(".")


def _stands_in(value: object, others: tuple[object, ...]) -> bool:
    return any(type(value) is type(other) and value == other for other in others)


def _short_names(keys: list[str]) -> dict[str, str]:
    """The fewest last parts of each path that no other one ends with: `tuner`, or `mrpc.seed` beside `rte.seed`."""
    names = {}
    for key in keys:
        parts = path_parts(key)
        for count in range(1, len(parts) + 1):
            ending = parts[-count:]
            if not any(path_parts(other)[-count:] == ending for other in keys if other != key):
                break
        names[key] = ".".join(ending)
    return names


def labels_of(values: Any) -> list[str]:
    """What values are called in tables: as short as keeps them apart."""
    short = [label(value) for value in values]
    full = [label(value, whole=True) for value in values]
    texts = [one if short.count(one) == 1 else other for one, other in zip(short, full, strict=True)]
    return [
        each if texts.count(each) == 1 else f"{each} #{texts[: at + 1].count(each)}" for at, each in enumerate(texts)
    ]


def label(value: object, whole: bool = False) -> str:
    """`lora` for `{name: lora, r: 8}`, `lora r=8` when the `whole` is asked for."""
    if isinstance(value, Mapping):
        name = next((key for key in MEANT if isinstance(value.get(key), str)), None)
        rest = [f"{key}={label(entry)}" for key, entry in value.items() if key != name]
        if name is None:
            return " ".join(rest) or "{}"
        return " ".join([label(value[name]), *(rest if whole else [])])
    if isinstance(value, tuple | list):
        return "+".join(label(entry) for entry in value) or "[]"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return (
        (PurePath(value).name or value)
        if isinstance(value, str) and value.startswith(("/", "./", "../", "~"))
        else str(value)
    )


def checked_matrix(value: object) -> Any:
    """Validator of the key `matrix`."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ConfigIssues(
            [
                (
                    (),
                    f"is {show(value)}, must be a mapping from override paths to lists of values, such as "
                    f"{{stages.mrpc.seed: [1, 2, 3]}}",
                )
            ]
        )
    axes_of(value)
    return dict(value)


Matrix = Annotated[dict[str, Any] | None, BeforeValidator(checked_matrix)]
"""The type of the key `matrix`."""


def checked_grids(value: object) -> dict[str, tuple[Any, ...]]:
    """Validator of paths with a list of values each."""
    if not isinstance(value, Mapping) or not value:
        raise ConfigIssues(
            [
                (
                    (),
                    f"is {show(value)}, must be a mapping from override paths to lists of values, such as "
                    f"{{stages.mrpc.arguments.learning_rate: [1e-4, 1e-3]}}",
                )
            ]
        )
    issues: list[ConfigIssue] = []
    for path, values in value.items():
        if not path.startswith("stages."):
            issues.append(
                (
                    (path,),
                    "is searched over, so it must be a path into a stage, such as stages.mrpc.arguments.learning_rate",
                )
            )
        elif not isinstance(values, tuple) or not values:
            issues.append(((path,), f"is {show(values)}, must be a list of values"))
        elif any(_stands_in(each, values[:at]) for at, each in enumerate(values)):
            issues.append(((path,), f"is {show(values)}: a value stands there twice"))
    if issues:
        raise ConfigIssues(issues)
    return dict(value)


def matrix_schema() -> dict[str, Any]:
    """The JSON Schema of `matrix`."""
    entries = {"type": "object", "description": "Override paths with their values; `search` holds values of its own."}
    return {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {
            "anyOf": [{"type": "array", "minItems": 1}, {"type": "object", "additionalProperties": entries}]
        },
    }

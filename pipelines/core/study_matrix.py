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
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipelines.core.config import Block, ConfigIssue, ConfigIssues, Position, show
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
    if (wrong := _unfit_path(key)) is not None:
        raise ConfigIssues([((), wrong)])
    if not isinstance(value, tuple) or not value:
        raise ConfigIssues([((), f"is {show(value)}, must be a list with the values that {key} takes")])
    again = [at for at, each in enumerate(value) if _same(each, value[:at])]
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
        issues += [((*place, path), wrong) for path in values if (wrong := _unfit_path(path)) is not None]
        if isinstance(values.get("stages"), Mapping):
            issues.append(
                ((*place, "stages"), "is a mapping, but stages are a list; name the stage in the path: stages.ID.key")
            )
        try:
            grids = _grids(each[SEARCH]) if SEARCH in each else {}
        except ConfigIssues as error:
            issues += [((*place, SEARCH, *below), message) for below, message in error.found]
            continue
        entries.append(MatrixValue(label, values, ("matrix", key, *place), grids, named=True))
    if issues:
        raise ConfigIssues(issues)
    return tuple(entries)


def _unfit_path(path: str) -> str | None:
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
    return leaves_out_stage(path, value) and len(_parts(other)) > 2


def leaves_out_stage(path: str, value: object) -> bool:
    """Whether this override leaves a whole stage out."""
    parts = _parts(path)
    return value is None and len(parts) == 2 and parts[0] == "stages"


def within(path: str, other: str) -> bool:
    """Whether the two paths are one, or one lies below the other."""
    one, two = _parts(path), _parts(other)
    return one[: len(two)] == two or two[: len(one)] == one


def _parts(path: str) -> list[str]:
    return re.sub(r"\[(\d+)\]", r".\1", path.strip()).split(".")


def _same(value: object, others: tuple[object, ...]) -> bool:
    return any(type(value) is type(other) and value == other for other in others)


def _short_names(keys: list[str]) -> dict[str, str]:
    """The fewest last parts of each path that no other one ends with: `tuner`, or `mrpc.seed` beside `rte.seed`."""
    names = {}
    for key in keys:
        parts = _parts(key)
        for count in range(1, len(parts) + 1):
            ending = parts[-count:]
            if not any(_parts(other)[-count:] == ending for other in keys if other != key):
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


def _grids(value: object) -> dict[str, tuple[Any, ...]]:
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
        elif any(_same(each, values[:at]) for at, each in enumerate(values)):
            issues.append(((path,), f"is {show(values)}: a value stands there twice"))
    if issues:
        raise ConfigIssues(issues)
    return dict(value)


def _budget(value: object) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigIssues(
            [
                (
                    (),
                    f"is {show(value)}, must be a mapping from override paths to values, such as "
                    f"{{stages.mrpc.arguments.num_train_epochs: 1}}",
                )
            ]
        )
    issues: list[ConfigIssue] = [((path,), wrong) for path in value if (wrong := _unfit_path(path)) is not None]
    if issues:
        raise ConfigIssues(issues)
    return dict(value)


def _halving(value: object) -> Any:
    grids = _grids(value)
    if len(grids) != 1:
        raise ConfigIssues([((), f"names {len(grids)} paths, must name one: the budget that grows")])
    [(path, budgets)] = grids.items()
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) and each > 0 for each in budgets)
    if not numbers or len(budgets) < 2 or list(budgets) != sorted(budgets):
        raise ConfigIssues(
            [((path,), f"is {show(budgets)}, must be at least two budgets, each larger than the one before")]
        )
    return grids


class Search(Block):
    """How each method gets its values, before its seeds run: the same number of trials for all of them."""

    over: Annotated[dict[str, Any], BeforeValidator(_grids)]
    """Override paths with the values to try; every combination is a trial. A named entry of the matrix may bring
    values of its own under `search`: as many, so that the budgets stay equal."""
    per: tuple[str, ...] | None = None
    """Keys of the matrix: each combination of their entries is searched for itself. Default: all but the seeds. The
    other keys stay at their first entry during the search."""
    budget: Annotated[dict[str, Any], BeforeValidator(_budget)] = Field(default_factory=dict)
    """Override paths that hold for the trials only, such as fewer epochs."""
    metric: str | None = None
    """The score to choose by, on the part of train that is set aside: `loss`, or a metric of the task. Default:
    its first."""
    halving: Annotated[
        dict[str, Any] | None, BeforeValidator(lambda value: None if value is None else _halving(value))
    ] = None
    """Successive halving: one override path with growing budgets. All values are tried with the first; of n that were
    tried with budget b, the best n·b/b' (rounded up) are tried again with the next, b'. Jamieson and Talwalkar 2016,
    arxiv.org/abs/1502.07943."""

    @model_validator(mode="after")
    def _nothing_twice(self) -> Search:
        issues: list[ConfigIssue] = []
        for name, paths in (("budget", self.budget), ("halving", self.halving or {})):
            clash = [(path, other) for path in paths for other in self.over if within(path, other)]
            issues += [
                ((name, path), f"is searched over as '{other}'; leave one of the two out") for path, other in clash
            ]
        issues += [
            (("halving", path), "stands in 'budget' too; leave one of the two out")
            for path in self.halving or {}
            if path in self.budget
        ]
        if issues:
            raise ConfigIssues(issues)
        return self

    @property
    def target(self) -> str:
        """Id of the stage that is searched over: the one that the first path names."""
        return _parts(next(iter(self.over)))[1]


class Budget(Block):
    """The same amount of training for every method: the reference trains as its recipe says, the others as many steps
    as come to the same. What the search spends is not counted."""

    match: Literal["steps", "tokens", "flops", "time"]
    """What is made equal: optimizer steps, tokens that pass through the model, operations (both as `finery plan`
    counts them), or time, by steps that are measured first."""
    reference: str | None = None
    """The entry of the matrix whose training says how much. Default: `study.reference`."""
    stage: str | None = None
    """Id of the stage that is made equal. Default: the last one that trains."""
    probe_steps: int = Field(30, ge=2, le=10_000)
    """Steps that are measured where time is made equal."""


class StudyOptions(Block):
    """How the cells of a matrix are compared."""

    reference: str | None = None
    """The entry that every other one is held against, such as `full`. Default: none, each score stands for itself."""
    search: Search | None = None
    """How each method gets its learning rate, or anything else, before its seeds run."""
    budget: Budget | None = None
    """Makes the training of all methods equally long, large or dear."""
    correction: Literal["holm", "bh", "none"] = "holm"
    """How p-values are corrected for the number of rows that are held against the reference: Holm, Benjamini and
    Hochberg, or not."""


Matrix = Annotated[dict[str, Any] | None, BeforeValidator(checked_matrix)]
"""The type of the key `matrix`."""


def unfit_options(options: StudyOptions, axes: tuple[Axis, ...]) -> list[ConfigIssue]:
    """What in `study` does not fit the axes; places relative to the recipe."""
    issues: list[ConfigIssue] = []
    names = [axis.name for axis in axes]
    if options.reference is not None and reference_axis(options.reference, axes) is None:
        labels = [entry.label for axis in axes if not axis.repeats for entry in axis.entries]
        several = sum(options.reference in [entry.label for entry in axis.entries] for axis in axes) > 1
        why = (
            "is the name of entries of two keys of the matrix; name the entries differently"
            if several
            else f"is no entry of the matrix.{nearest(options.reference, labels)} Known: {', '.join(labels)}"
        )
        issues.append((("study", "reference"), f"'{options.reference}' {why}"))
    issues += _unfit_budget(options, axes)
    search = options.search
    grids = [(axis, entry) for axis in axes for entry in axis.entries if entry.search]
    if search is None:
        return issues + [
            ((*entry.place, SEARCH), "needs study.search.over to say what is searched") for _, entry in grids
        ]
    for position, name in enumerate(search.per or ()):
        if name not in names:
            issues.append(
                (
                    ("study", "search", "per", position),
                    f"'{name}' is no key of the matrix.{nearest(name, names)} Known: {', '.join(names)}",
                )
            )
    for path in search.over:
        for axis in axes:
            if any(
                _parts(other)[: len(_parts(path))] == _parts(path) for entry in axis.entries for other in entry.values
            ):
                issues.append(
                    (
                        ("study", "search", "over", path),
                        f"is set by the matrix too ('{axis.key}'); leave one of the two out",
                    )
                )
        if _parts(path)[1] != search.target:
            issues.append(
                (
                    ("study", "search", "over", path),
                    f"is of another stage than '{search.target}'; one stage is searched over at a time",
                )
            )
    for axis, entry in grids:
        if search.per is not None and axis.name not in search.per:
            issues.append(
                ((*entry.place, SEARCH), f"brings values of its own, so '{axis.name}' must stand in study.search.per")
            )
        for path, values in entry.search.items():
            if path not in search.over:
                issues.append(
                    (
                        (*entry.place, SEARCH, path),
                        f"is not searched over.{nearest(path, search.over)} Known: {', '.join(search.over)}",
                    )
                )
            elif len(values) != len(search.over[path]):
                issues.append(
                    (
                        (*entry.place, SEARCH, path),
                        f"has {len(values)} values, but study.search.over has {len(search.over[path])}: every "
                        "method gets as many trials",
                    )
                )
    return issues


def _unfit_budget(options: StudyOptions, axes: tuple[Axis, ...]) -> list[ConfigIssue]:
    """What in `study.budget` does not fit the axes."""
    budget = options.budget
    if budget is None:
        return []
    labels = [entry.label for axis in axes if not axis.repeats for entry in axis.entries]
    name = budget.reference or options.reference
    if name is None:
        return [
            (
                ("study", "budget", "reference"),
                f"is missing: name the entry whose training says how much. Known: {', '.join(labels)}",
            )
        ]
    issues: list[ConfigIssue] = []
    if budget.reference is not None and reference_axis(budget.reference, axes) is None:
        issues.append(
            (
                ("study", "budget", "reference"),
                f"'{budget.reference}' is no entry of one key of the "
                f"matrix.{nearest(budget.reference, labels)} Known: {', '.join(labels)}",
            )
        )
    if "probe_steps" in budget.model_fields_set and budget.match != "time":
        issues.append(
            (
                ("study", "budget", "probe_steps"),
                f"is for 'match: time', but {budget.match} are counted, not measured; leave it out",
            )
        )
    return issues


def reference_axis(reference: str, axes: tuple[Axis, ...]) -> Axis | None:
    """The one axis that has an entry of this name."""
    having = [axis for axis in axes if not axis.repeats and reference in [entry.label for entry in axis.entries]]
    return having[0] if len(having) == 1 else None


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

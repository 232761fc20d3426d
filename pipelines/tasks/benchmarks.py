"""Named benchmarks: GLUE, SQuAD, RACE and others, each a YAML file below `configs/tasks`.

A file holds the keys of a task described in place, and under `benchmark` what only published benchmarks need: their
metrics, the data set's own names of its splits, which of them are scored. Without that block a copy of the file is a
task of one's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pipelines.core import task_files
from pipelines.core.config import Block, ConfigIssue, ConfigIssues, flatten, key_path
from pipelines.core.errors import Mistake, RecipeError
from pipelines.core.registry import TASK_KINDS, TASKS
from pipelines.core.yaml_positions import line_of, read_yaml
from pipelines.tasks.base import LabelledTask, SplitLocation, TaskKind


class BenchmarkFacts(Block):
    """The block `benchmark`: what a task described in place leaves open."""

    metrics: tuple[str, ...] | None = Field(None, min_length=1)
    """Names in METRICS, the first is the one to select models by. Default: those of the kind."""
    splits: tuple[str, ...] | None = Field(None, min_length=1)
    """The splits of the data set that `train` names, by its own names."""
    evaluation_splits: Mapping[str, str] | None = None
    """Suffix of the metric names -> split. Default: `{"": validation}`."""
    hidden_label: int | None = None
    """The label that stands for an answer that is not public."""
    trained_by: str | None = None
    """The task whose model this one asks where no stage trained on it."""
    empty_texts: bool = False
    """Whether empty texts are part of the data, not a mistake in it."""
    sorted_by_label: bool = False
    """Whether the file holds one class after another: its rows are then read in a fixed random order."""
    skip_empty: bool = False
    """For tasks of the kind `causal`: whether rows with an empty answer are left out instead of refused."""


@cache
def read(name: str) -> LabelledTask:
    """The benchmark of that name. Raises RecipeError for a file that describes none."""
    path = TASKS.path(name)
    data, lines = read_yaml(path)
    try:
        task, benchmark = _validated(dict(data) if isinstance(data, Mapping) else {}, name)
    except ConfigIssues as error:
        raise RecipeError(
            [Mistake(key_path(place), message, str(path), line_of(place, lines) or 1) for place, message in error.found]
        ) from None
    read_by = {key: value for key, value in data.items() if key != "license"}
    definition = hashlib.sha256(json.dumps(read_by, sort_keys=True).encode()).hexdigest()
    changes: dict[str, Any] = {key: value for key, value in benchmark if value is not None and key != "splits"}
    if benchmark.splits is not None:
        place = task.places["train"]
        changes["places"] = {split: SplitLocation(place.path, place.name, split) for split in benchmark.splits}
    names = {field.name for field in fields(task)}
    return replace(task, definition=definition, **{key: value for key, value in changes.items() if key in names})


def read_file(path: str) -> TaskKind:
    """The task that a user's own file describes. Raises RecipeError."""
    data: dict[str, Any] = {"stages": ({"task": path},)}
    inserted = task_files.insert(data, Path.cwd())
    issues = [(position[2:], message) for position, message in inserted.issues]
    if not issues:
        (file,) = inserted.files.values()
        kind = file.task["kind"]
        try:
            if kind not in TASK_KINDS:
                raise ConfigIssues([(("kind",), TASK_KINDS.unknown(kind))])
            block: TaskKind = TASK_KINDS.load(kind).model_validate(file.task, context={"folder": Path.cwd()})
            return block
        except (ValidationError, ConfigIssues) as error:
            config_issues = flatten(error) if isinstance(error, ValidationError) else error.found
        lines = file.lines
        raise RecipeError(
            [Mistake(key_path(place), text, path, line_of(place, lines) or 1) for place, text in config_issues]
        )
    raise RecipeError([Mistake(key_path(place), message) for place, message in issues])


def _validated(data: dict[str, object], name: str) -> tuple[LabelledTask, BenchmarkFacts]:
    """The task as its kind describes it, and the block `benchmark`. Raises ConfigIssues with every issue."""
    more = data.pop("benchmark", {})
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in TASK_KINDS:
        raise ConfigIssues([(("kind",), TASK_KINDS.unknown(kind))])
    issues: list[ConfigIssue] = []
    try:
        benchmark = BenchmarkFacts.model_validate(more)
    except ValidationError as error:
        issues += [(("benchmark", *place), message) for place, message in flatten(error)]
    try:
        block = TASK_KINDS.load(kind).model_validate(data, context={"folder": TASKS.path(name).parent})
    except ValidationError as error:
        issues += flatten(error)
    if issues:
        raise ConfigIssues(issues)
    return block.task(name), benchmark

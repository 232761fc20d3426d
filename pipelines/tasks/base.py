"""A labelled task: its columns, its classes, its splits, and which rows are held out.

`LabelledTask` is the one class behind every task: those that a recipe names (`glue/mrpc`, the TASKS table) and those
that it describes in place. `TaskKind` is the base of the blocks that describe them (the TASK_KINDS table), and
`TaskField` the type of a recipe's key that takes either.

Rows are held out twice over: as a validation split where a task has none, by a seed that is the same for every run,
and from the rows of a stage to select models by, by the stage's own seed. Each time a tenth of them, at most 2,000.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from pipelines.core.config import Block, ConfigIssue, ConfigIssues, Pick, show
from pipelines.core.data_files import split_of_role
from pipelines.core.errors import DataError
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import FirstRecipe, Head, HeadKind, Rows
from pipelines.core.registry import TASK_KINDS, TASKS, nearest
from pipelines.data.licences import License
from pipelines.data.sources import DataSource, check_columns, find

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from datasets import Dataset

    from pipelines.core.recipe import Recipe
    from pipelines.tasks.evaluation import BenchmarkChoice, EvaluationSettings
    from pipelines.tasks.subject import Subject


def class_name(cell: object) -> str | None:
    """A label's cell as the name of a class; None when it cannot be one."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):  # a column with gaps turns whole numbers into 1.0
        return str(int(cell)) if cell.is_integer() else None
    if isinstance(cell, int | str):
        return str(cell).strip()
    return None


def natural_order(name: str) -> tuple[Any, ...]:
    """Sorting key: whole numbers first and by value, then words, numbers in them by value (`b2` before `b10`)."""
    if re.fullmatch(r"[+-]?[0-9]+", name):
        return (0, int(name), name)
    parts = re.split(r"([0-9]+)", name)
    return (1, *((int(part), "") if position % 2 else (-1, part) for position, part in enumerate(parts)), (-2, name))


def is_missing(cell: object) -> bool:
    """Whether a cell holds nothing: null, not-a-number, or white space."""
    if isinstance(cell, str):
        return not cell.strip()
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


SELECTION_SHARE = 0.1
SELECTION_MOST = 2000


def drawn(count: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(numbers of the rows that are trained on, in the order drawn; of those set aside, ascending) of `count`
    rows, at least two."""
    import numpy as np

    aside = min(max(1, round(count * SELECTION_SHARE)), SELECTION_MOST)
    order = np.random.default_rng([seed, 0x5E1EC7]).permutation(count)
    return order[aside:], np.sort(order[:aside])


HELD_OUT_SHARE = 0.1
HELD_OUT_MOST = 2_000
HELD_OUT_SEED = 20_260_101
"""Of the rows that stand in for a missing validation split, and of the order of rows that the file holds class by
class: fixed, so that every run is measured on the same rows."""


@dataclass(frozen=True)
class SplitLocation:
    """Where the rows of one split lie."""

    path: str
    name: str | None
    split: str | None
    """None: the split named as the role (`train`, `validation`, `test`), or the only one there is."""

    def open(self, role: str) -> tuple[DataSource, str]:
        """The source and its split. Raises DataError."""
        source = find(self.path, self.name)
        if self.split is not None:
            return source, self.split
        splits = source.splits()
        if (split := split_of_role(role, splits)) is not None:
            return source, split
        raise DataError(f"{source.describe()} has no split '{role}'; splits found: {', '.join(splits)}")


@dataclass(frozen=True)
class LabelledTask:
    """A labelled task on texts or pairs of texts (core.interfaces.Task). The label of a `seq2seq` task is a text as
    well."""

    name: str
    """`glue/mrpc`, or the id of the stage that describes the task."""
    kind: str
    """The kind as which it is learnt: a name in TASK_KINDS."""
    columns: tuple[str, ...]
    """One column of texts, or two of pairs."""
    label: str
    metrics: tuple[str, ...]
    """Names in METRICS, the first is the one to select models by."""
    places: Mapping[str, SplitLocation]
    """Where each split lies: `train`, the evaluation splits, and others that can be predicted."""
    labels: tuple[str, ...] | None = None
    """Class names in the order of their ids; None: found in the training rows, in natural order."""
    evaluation_splits: Mapping[str, str] = field(default_factory=lambda: {"": "validation"})
    """Suffix of the metric names -> split."""
    hidden_label: int | None = None
    """The label that stands for an answer that is not public."""
    trained_by: str | None = None
    """The task whose model this one asks, where it has no training rows of its own."""
    empty_texts: bool = False
    """Whether empty texts are part of the data, not a mistake in it."""
    definition: str = ""
    """Hash of the file that describes a named benchmark: a part of the content of its splits."""
    sorted_by_label: bool = False
    """Whether the file holds one class after another: its rows are then read in a fixed random order, so that the first
    N of them (`max_train_samples`) hold every class."""

    @cached_property
    def head(self) -> Head:
        """The head the task is learnt with. Reads the training rows when the class names are not given."""
        return Head("sequence_classification", self.labels or self._found_labels())

    @property
    def splits(self) -> list[str]:
        """Every split that can be asked for."""
        held_out = [HELD_OUT] if self._holds_out else []
        return [*self.places, *held_out]

    @property
    def _holds_out(self) -> bool:
        """Whether the validation split has to be taken from train."""
        return HELD_OUT in self.evaluation_splits.values() and HELD_OUT not in self.places

    def _needs_labels(self, split: str) -> bool:
        """Whether rows of the split are learnt from or scored."""
        return split in ("train", *self.evaluation_splits.values())

    def rows(self, split: str, limit: int | None = None) -> Rows:
        """The rows of a split, the first `limit` of them. Raises DataError."""
        data, index, described = self._first(split, limit)
        texts = [self._texts(data, column, index, described) for column in self.columns]
        return Rows(texts[0], texts[1] if len(texts) == 2 else None, self._labels(data, index, split, described), index)

    def _first(self, split: str, limit: int | None) -> tuple[Dataset, Sequence[int], str]:
        """The rows of a split, the first `limit` of them, their numbers in the file, and what it is, for messages."""
        data, index, described = self._read(split)
        if limit is not None:
            index = index[:limit]
        return (data.select(index) if self.sorted_by_label or len(index) < len(data) else data), index, described

    def content(self) -> dict[str, str]:
        """Content hash of the training rows and of each split that is evaluated, by split. Raises DataError."""
        wanted = [split for split in ("train", *self.evaluation_splits.values()) if split in self.splits]
        hashes: dict[str, str] = {}
        for split in wanted:
            stored = split if split in self.places else "train"
            source, inner = self.places[stored].open(stored)
            hashes[split] = source.content_hash(inner)
            if self._holds_out:
                rule = f"{hashes[split]} {split} {HELD_OUT_SHARE} {HELD_OUT_MOST} {HELD_OUT_SEED}"
                hashes[split] = hashlib.sha256(rule.encode()).hexdigest()
            if self.definition:
                hashes[split] = hashlib.sha256(f"{hashes[split]} {self.definition}".encode()).hexdigest()
        return hashes

    def _read(self, split: str) -> tuple[Dataset, Sequence[int], str]:
        """The data that holds the split, the numbers of the rows that belong to it, and what it is, for messages."""
        if split not in self.splits:
            if split == "train" and self.trained_by:
                raise DataError(f"task '{self.name}' has no training rows; it is asked of '{self.trained_by}'")
            hint = nearest(split, self.splits)
            raise DataError(f"task '{self.name}' has no split '{split}'.{hint} Splits: {', '.join(self.splits)}")
        stored = split if split in self.places else "train"
        source, inner = self.places[stored].open(stored)
        data = source.load(inner)
        described = source.describe() if len(source.splits()) == 1 else f"{source.describe()}, split '{inner}'"
        wanted = (*self.columns, self.label) if self._needs_labels(split) else self.columns
        data = flattened(data, wanted)
        check_columns(wanted, list(data.column_names), described)
        if self._holds_out and stored == "train":
            held_out = held_out_rows(len(data))
            rest = sorted(set(range(len(data))) - set(held_out))
            if not held_out or not rest:
                raise DataError(f"{described} has {len(data)} rows, too few to hold some out; give a 'validation' file")
            return data, held_out if split == HELD_OUT else rest, described
        return data, mixed_rows(len(data)) if self.sorted_by_label else range(len(data)), described

    def _texts(self, data: Dataset, column: str, index: Sequence[int], described: str) -> list[str]:
        cells = data[column][:]
        for number, cell in zip(index, cells, strict=True):
            if not isinstance(cell, str):
                given = "nothing" if is_missing(cell) else f"{str(cell)[:40]!r} ({type(cell).__name__})"
                self._refuse(described, number, f"holds {given} in the column '{column}', must be a text")
            if not self.empty_texts and not cell.strip():
                self._refuse(described, number, f"holds an empty text in the column '{column}'")
        texts: list[str] = cells
        return texts

    def _labels(
        self, data: Dataset, index: Sequence[int], split: str, described: str
    ) -> Sequence[int] | Sequence[float] | Sequence[str] | None:
        if self.label not in data.column_names:
            return None
        cells = data[self.label][:]
        if self.hidden_label is not None and all(cell == self.hidden_label for cell in cells):
            return None
        if not self._needs_labels(split) and all(is_missing(cell) for cell in cells):
            return None
        return self._read_labels(data, index, described)

    def _read_labels(
        self, data: Dataset, index: Sequence[int], described: str
    ) -> Sequence[int] | Sequence[float] | Sequence[str]:
        """The cells of the column `label` as what a model is to answer. Raises DataError."""
        cells = data[self.label][:]
        names = self._class_names(data, cells, index, described)
        ids = {name: position for position, name in enumerate(self.head.labels)}
        for number, name in zip(index, names, strict=True):
            if name not in ids:
                classes = ", ".join(self.head.labels[:20])
                origin = "'labels' names" if self.labels else "the training rows have"
                self._refuse(
                    described,
                    number,
                    f"has the label '{name}', which is none of those that {origin} ({classes})",
                    "correct it, or add rows with that label to the training data",
                )
        return [ids[name] for name in names]

    def _found_labels(self) -> tuple[str, ...]:
        """Class names of the training data: those its features declare, else those that occur."""
        if "train" not in self.places:
            raise DataError(f"task '{self.name}' has no training rows to find class names in; name them with 'labels'")
        source, inner = self.places["train"].open("train")
        data = source.load(inner)
        check_columns((self.label,), list(data.column_names), source.describe())
        if declared := getattr(data.features[self.label], "names", None):
            return tuple(declared)
        names = set(self._class_names(data, data[self.label][:], range(len(data)), source.describe()))
        if len(names) < 2:
            raise DataError(f"{source.describe()} has the single label '{names.pop()}'; classes must be at least two")
        if len(names) > 1000 and len(names) > len(data) // 2:
            raise DataError(
                f"{source.describe()} has {len(names)} different labels in {len(data)} rows of the column "
                f"'{self.label}'; is it the right column? (for numbers, use 'kind: regression')"
            )
        return tuple(sorted(names, key=natural_order))

    def _class_names(self, data: Dataset, cells: Sequence[object], index: Sequence[int], described: str) -> list[str]:
        declared = getattr(data.features[self.label], "names", None) or self._ids_of_labels(cells)
        names: list[str] = []
        for number, cell in zip(index, cells, strict=True):
            if is_missing(cell):
                self._refuse(described, number, f"has no label in the column '{self.label}'")
            if declared and isinstance(cell, int):
                if not 0 <= cell < len(declared):
                    self._refuse(described, number, f"has the label {cell}, must be one of 0 to {len(declared) - 1}")
                names.append(declared[cell])
                continue
            name = class_name(cell)
            if name is None:
                what = "a number; a class needs a text or a whole number, and numbers need 'kind: regression'"
                what = what if isinstance(cell, float) else "neither a text nor a whole number"
                self._refuse(described, number, f"has the label {str(cell)[:40]!r}, which is {what}")
            names.append(name)
        return names

    def _ids_of_labels(self, cells: Sequence[object]) -> tuple[str, ...] | None:
        """The names in `labels` when the cells are their ids, not names such as `1` and `2` themselves."""
        present = [cell for cell in cells if not is_missing(cell)]
        if not self.labels or not all(isinstance(cell, int) and not isinstance(cell, bool) for cell in present):
            return None
        return None if any(str(cell) in self.labels for cell in set(present)) else self.labels

    def _refuse(self, described: str, number: int, problem: str, remedy: str = "correct or remove the row") -> NoReturn:
        raise DataError(f"{described}, row {number + 1} (the first is 1), {problem}; {remedy}")


def flattened(data: Dataset, columns: Sequence[str]) -> Dataset:
    """The data with the entries of objects as columns of their own where `columns` name such: `translation.en`."""
    return data.flatten() if any("." in name and name not in data.column_names for name in columns) else data


HELD_OUT = "validation"
"""The split that is drawn from train where a task in place names none."""


def inline_places(train: str, validation: str | None, test: str | None, name: str | None) -> dict[str, SplitLocation]:
    """Where the splits of a task described in place lie."""
    given = {"train": train, "validation": validation, "test": test}
    return {split: SplitLocation(path, name, None) for split, path in given.items() if path is not None}


def check_columns_differ(columns: tuple[str, ...], label: str) -> None:
    """Raise ConfigIssues when a column is used twice."""
    if label in columns:
        raise ConfigIssues([(("label",), f"is '{label}', a text column too: the answer would be in the question")])
    if len(set(columns)) < len(columns):
        raise ConfigIssues([(("columns",), f"names '{columns[0]}' twice; give one column, or two different ones")])


def held_out_rows(count: int) -> list[int]:
    """Numbers of the rows that stand in for a missing validation split: 10 %, at most 2,000, by a fixed seed."""
    return sorted(
        Random(HELD_OUT_SEED).sample(range(count), min(HELD_OUT_MOST, count, max(1, round(count * HELD_OUT_SHARE))))
    )


def mixed_rows(count: int) -> list[int]:
    """Numbers of all rows in an order that depends on nothing but their number."""
    return Random(HELD_OUT_SEED).sample(range(count), count)


def column_of(names: Iterable[str], rows: Sequence[JSONObject]) -> str | None:
    """The first of these names that a column has, in any case."""
    lower = {column.strip().lower(): column for column in reversed(list(rows[0]))}
    return next((lower[name] for name in names if name in lower), None)


def holds(rows: Sequence[JSONObject], column: str, fits: Callable[[Any], bool]) -> bool:
    """Whether the cells of a column fit, where there are any; empty ones are told when the rows are read."""
    cells = [row[column] for row in rows if not is_missing(row.get(column))]
    return bool(cells) and all(fits(cell) for cell in cells)


def free_texts(rows: Sequence[JSONObject], column: str) -> bool:
    """Whether a column holds texts that somebody wrote, which are long or most of them occur once; not class names."""
    if not holds(rows, column, lambda cell: isinstance(cell, str)):
        return False
    texts = [row[column] or "" for row in rows]
    return 2 * len(set(texts)) > len(texts) or sum(len(text.split()) for text in texts) > LONG_TEXT * len(texts)


def text_pair(rows: Sequence[JSONObject], pairs: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The first of these pairs of names that two columns of free texts have, beside no other column of long texts."""
    for names in pairs:
        first, second = (column_of((name,), rows) for name in names)
        if first is not None and second is not None and free_texts(rows, first) and free_texts(rows, second):
            others = [str(row[name]).split() for row in rows for name in row if name not in (first, second)]
            return (first, second) if not any(len(words) > LONG_TEXT for words in others) else None
    return None


LONG_TEXT = 20
"""Words above which a cell is no class, title, name or address."""


TaskExample = tuple[dict[str, Any], list[dict[str, Any]]]
"""The keys of a small task beside `kind` and `train`, and its rows."""


PromptForm = Literal["classes", "numbers", "choices", "texts", "answers", "dialogues"]
"""How a row is asked in a prompt: its answer is one of the task's classes, one of the numbers that the prompt names, or
one of the row's own choices; it is a text, any one of several texts, or what a dialogue goes on with."""


class TaskKind(Block):
    """Base of every kind of task: the keys that describe one in a recipe, and what is known of all of them without
    torch.

    `training.py` beside it says how such tasks are learnt, `evaluation.py` how a model is asked and scored.
    """

    head_kind: ClassVar[HeadKind]
    """The head that learns and answers such tasks."""
    smooths_labels: ClassVar[bool] = False
    """Whether training follows `label_smoothing_factor`."""

    labels_texts: ClassVar[bool] = False
    """Whether the answer is one class or number of a text or a pair, which can be written as a text too, and which a
    linear classifier can give from one vector."""
    takes_input_format: ClassVar[bool] = False
    """Whether a stage may give `input_format` beside such a task: one answer a text, a pair or an option."""
    prompt_form: ClassVar[PromptForm | None] = None
    """How its rows are asked in a prompt; None where they cannot be."""
    finds_labels: ClassVar[bool] = False
    """Whether class names are found in the training rows where a task does not give them."""
    uncounted: ClassVar[str | None] = None
    """What an estimate of cost leaves out, where how many sequences a row is cannot be told."""
    stage_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that a stage may give beside such a task, and beside no task of another kind."""
    evaluation_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that an evaluate stage may give for such benchmarks, and for no benchmarks of another kind."""
    outputs: ClassVar[str | None] = None
    """What a model answers with, in words; None where that is one of the task's classes."""
    first_recipe: ClassVar[FirstRecipe] = FirstRecipe()
    """What `finery init` writes around a task of the kind."""
    rows_hold: ClassVar[str] = ""
    """What `finery init` knows rows of the kind by, in words; empty where it knows none."""
    read_as: ClassVar[str | None] = None
    """The kind as which its rows are learnt and evaluated, where that is another one."""
    selects_by_loss: ClassVar[bool] = False
    """Whether rows set aside while a model learns are scored by the loss alone."""
    unnamed_columns: ClassVar[tuple[str, ...] | None] = None
    """The columns that `finery predict` reads where neither the model nor the user names them; None where a model that
    does not say what it learnt cannot be asked."""
    column_counts: ClassVar[tuple[int, ...]] = (1, 2)
    """How many columns a user may name in their place; none where a row needs more than texts."""
    columns_needed: ClassVar[str] = "one, or two of a pair"
    """The same in words."""

    license: License = None
    """The licence of its data as the Hub names it, such as `cc-by-4.0`. Default: what the data set's own card says."""

    def task(self, name: str) -> LabelledTask:
        """The task that the block describes, under that name."""
        raise NotImplementedError

    @classmethod
    def task_class(cls) -> type[LabelledTask]:
        """What holds a task of the kind."""
        return LabelledTask

    @classmethod
    def answers_with(cls, outputs: int) -> bool:
        """Whether a model with the kind's head and so many outputs answers such tasks."""
        return True

    @classmethod
    def sequences(cls, task: LabelledTask) -> int | None:
        """How many sequences of tokens a row is, as far as that can be told without reading it."""
        return 1 if cls.uncounted is None else None

    @classmethod
    def columns_of_a_sequence(cls, task: LabelledTask) -> tuple[str, ...]:
        """The columns whose texts a sequence of tokens is made of; none where it holds more than texts of columns."""
        return task.columns if cls.labels_texts or cls.head_kind in ("seq2seq_lm", "question_answering") else ()

    @classmethod
    def writes(cls) -> bool:
        """Whether the answers are texts that a model writes."""
        return cls.head_kind in ("seq2seq_lm", "causal_lm")

    @classmethod
    def example(cls) -> TaskExample:
        """A small task of the kind, for its documentation and for what every kind must pass."""
        raise NotImplementedError

    @classmethod
    def recognise(cls, rows: Sequence[JSONObject], label: str | None = None) -> JSONObject | None:
        """The keys that describe a file with such rows as a task of the kind; None where they are of another one.

        `label` is the column with the answers, where the user names it. Raises ValueError, with a sentence without its
        subject, for rows of the kind that need a decision.
        """
        return None

    @classmethod
    def training_head(cls, subject: Subject, task: LabelledTask) -> Head:
        """The head that a task is learnt with. May read the training rows to find the class names."""
        return replace(task.head, pooling=subject.pooling)

    @classmethod
    def training_issues(cls, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        """What is wrong with a subject of this kind for the recipe's model, positions relative to the subject."""
        return ()

    @classmethod
    def evaluation_issues(
        cls, stage: EvaluationSettings, choice: BenchmarkChoice, recipe: Recipe
    ) -> Iterable[ConfigIssue]:
        """What is wrong with asking for a benchmark of this kind, positions relative to the stage."""
        return ()

    @classmethod
    def columns_read(cls, task: LabelledTask) -> tuple[str, ...]:
        """Columns to be named in the fingerprint of the training rows."""
        return task.columns

    @classmethod
    def texts(cls, rows: Any) -> Iterator[str]:
        """The texts of `rows`, for a tokenizer: first and second texts, and the labels that are texts."""
        return chain(rows.texts, rows.pairs or (), (label for label in rows.labels or () if isinstance(label, str)))


class _TaskField:
    """Validates a task's name, or a task described in place."""

    pick = Pick(TASK_KINDS, "kind")

    def __call__(self, value: object, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            if value not in TASKS:
                raise ConfigIssues([((), f"is {show(value)}: {TASKS.unknown(value)}")])
            return value
        if not isinstance(value, Block | Mapping):
            example = "{kind: classification, columns: [text], label: label, train: train.csv}"
            raise ConfigIssues([((), f"is {show(value)}, must be a task's name or a task such as {example}")])
        return self.pick(value, info)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self, serialization=core_schema.plain_serializer_function_ser_schema(self.pick._serialize)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = self.pick.__get_pydantic_json_schema__(schema, handler)
        choices = [choice for choice in described["anyOf"] if "properties" in choice or "$ref" in choice]
        return {"anyOf": [{"enum": list(TASKS)}, *choices]}


TaskField = Annotated[Any, _TaskField()]
"""The type of a recipe's key that takes a task's name or a task described in place."""


def resolve(value: str | TaskKind, stage_id: str) -> LabelledTask:
    """The task that a TaskField holds; one described in place is named after its stage."""
    if isinstance(value, str):
        task: LabelledTask = TASKS.load(value)
        return task
    return value.task(stage_id)


Column = Annotated[str, Field(min_length=1)]


def class_names(value: object) -> Any:
    """Class names may be written as numbers or truth values, as they stand in the data."""
    if not isinstance(value, list | tuple):
        return value
    return tuple(name if (name := class_name(entry)) is not None else entry for entry in value)


ClassNames = Annotated[
    tuple[str, ...] | None,
    BeforeValidator(class_names, json_schema_input_type=tuple[str | int | float | bool, ...] | None),
]
"""Names of classes as a recipe writes them."""

"""Token classification: a class for each word of a text, such as entities or parts of speech.

A row holds two lists of one length: words and tags. With `scheme: iob2` tags mark entities as `B-PER I-PER O`, and
whole entities are scored; with `scheme: plain` each word has a class of its own, and words are scored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.core.config import ConfigIssue, ConfigIssues
from pipelines.core.errors import DataError
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import FirstRecipe, Head, HeadKind, Rows
from pipelines.data.references import DataPath
from pipelines.data.sources import check_columns
from pipelines.tasks.base import (
    ClassNames,
    Column,
    LabelledTask,
    TaskExample,
    TaskKind,
    class_name,
    holds,
    inline_places,
    natural_order,
)
from pipelines.tasks.subject import no_auxiliary_lm

if TYPE_CHECKING:
    from datasets import Dataset

    from pipelines.core.recipe import Recipe
    from pipelines.tasks.subject import Subject

IOB2 = re.compile(r"O|[BI]-.+", re.DOTALL)
"""Outside of entities, at the beginning of one, or inside of one. Ratnaparkhi 1998; Tjong Kim Sang & Veenstra 1999."""
METRICS = {"iob2": ("seqeval",), "plain": ("accuracy",)}
"""How tags are scored, by their scheme."""


@dataclass(frozen=True)
class WordRows(Rows):
    """Texts as words, with a class for each word in `labels`. `texts` are the words joined by spaces."""

    words: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class TokenTask(LabelledTask):
    """A task whose rows are lists of words and of tags."""

    scheme: Literal["iob2", "plain"] = "iob2"

    @cached_property
    def head(self) -> Head:
        """The head the task is learnt with. Reads the training rows when the tags are not given."""
        return Head("token_classification", self.labels or self._found_labels())

    def rows(self, split: str, limit: int | None = None) -> WordRows:
        """The rows of a split, the first `limit` of them. Raises DataError."""
        data, index, described = self._first(split, limit)
        words = self._words(data, index, described)
        return WordRows(
            [" ".join(row) for row in words], None, self._tags(data, words, index, split, described), index, words
        )

    def _words(self, data: Dataset, index: Sequence[int], described: str) -> list[list[str]]:
        column = self.columns[0]
        cells: list[list[str]] = data[column][:]
        for number, cell in zip(index, cells, strict=True):
            if not isinstance(cell, list) or not all(isinstance(word, str) for word in cell):
                self._refuse(
                    described, number, f"holds {str(cell)[:40]!r} in the column '{column}', must be a list of words"
                )
            if not cell:
                self._refuse(described, number, f"holds no words in the column '{column}'")
        return cells

    def _tags(
        self, data: Dataset, words: Sequence[Sequence[str]], index: Sequence[int], split: str, described: str
    ) -> list[list[int]] | None:
        if self.label not in data.column_names:
            return None
        cells = data[self.label][:]
        if not self._needs_labels(split) and not any(cells):
            return None
        rows = self._names(data, cells, index, described)
        ids = {name: position for position, name in enumerate(self.head.labels)}
        for number, row, tags in zip(index, words, rows, strict=True):
            if len(row) != len(tags):
                self._refuse(
                    described,
                    number,
                    f"has {len(row)} words in '{self.columns[0]}' but {len(tags)} tags in '{self.label}'; "
                    "each word needs one tag",
                )
            for place, tag in enumerate(tags):
                if tag not in ids:
                    origin = "'labels' names" if self.labels else "the training rows have"
                    self._refuse(
                        described,
                        number,
                        f"has the tag '{tag}' at word {place + 1} ('{row[place]}'), which is none of those "
                        f"that {origin} "
                        f"({', '.join(self.head.labels[:20])})",
                        "correct it, or add rows with that tag to the training data",
                    )
        return [[ids[tag] for tag in tags] for tags in rows]

    def _names(self, data: Dataset, cells: Sequence[object], index: Sequence[int], described: str) -> list[list[str]]:
        """The tags of every row, in words."""
        declared = getattr(getattr(data.features[self.label], "feature", None), "names", None)
        names: list[list[str]] = []
        name_of: dict[tuple[type, str | int], str] = {}  # few tags, many words; 1 and True are different tags
        for number, cell in zip(index, cells, strict=True):
            if not isinstance(cell, list):
                self._refuse(
                    described, number, f"holds {str(cell)[:40]!r} in the column '{self.label}', must be a list of tags"
                )
            names.append([])
            for tag in cell:
                key = (type(tag), tag) if isinstance(tag, str | int) else None
                name = name_of.get(key) if key else None
                if name is None:
                    name = self._name(tag, declared or self.labels, number, described)
                    if key:
                        name_of[key] = name
                names[-1].append(name)
        return names

    def _name(self, tag: object, declared: Sequence[str] | None, number: int, described: str) -> str:
        if declared and isinstance(tag, int) and not isinstance(tag, bool) and str(tag) not in declared:
            if not 0 <= tag < len(declared):
                self._refuse(described, number, f"has the tag {tag}, must be one of 0 to {len(declared) - 1}")
            return declared[tag]
        name = class_name(tag)
        if not name:
            self._refuse(
                described, number, f"has the tag {str(tag)[:40]!r}, which is neither a text nor a whole number"
            )
        if self.scheme == "iob2" and not IOB2.fullmatch(name):
            self._refuse(
                described,
                number,
                f"has the tag '{name}', which is not of the scheme IOB2 (O, B-NAME, I-NAME)",
                "correct it, or write 'scheme: plain' for tags that stand for single words; numbers need 'labels'",
            )
        return name

    def _found_labels(self) -> tuple[str, ...]:
        """The tags of the training data: those its features declare, else those that occur."""
        if "train" not in self.places:
            raise DataError(f"task '{self.name}' has no training rows to find tags in; name them with 'labels'")
        source, inner = self.places["train"].open("train")
        data = source.load(inner)
        check_columns((self.label,), list(data.column_names), source.describe())
        if declared := getattr(getattr(data.features[self.label], "feature", None), "names", None):
            return tuple(declared)
        rows = self._names(data, data[self.label][:], range(len(data)), source.describe())
        tags = {tag for row in rows for tag in row}
        if len(tags) < 2:
            what = f"the single tag '{tags.pop()}'" if tags else "no tags"
            raise DataError(f"{source.describe()} has {what}; there must be at least two to tell apart")
        return tuple(sorted(tags, key=natural_order))


def _as_long(tags: Any, words: Any) -> bool:
    """Whether a list has a text or a whole number for each of the words; empty cells are told when rows are read."""
    return not tags or not words or (len(tags) == len(words) and all(isinstance(tag, str | int) for tag in tags))


class TokenClassification(TaskKind):
    """Which class each word of a text belongs to: entities, parts of speech."""

    head_kind: ClassVar[HeadKind] = "token_classification"
    smooths_labels: ClassVar[bool] = True
    finds_labels: ClassVar[bool] = True
    unnamed_columns: ClassVar[tuple[str, ...] | None] = ("tokens",)
    column_counts: ClassVar[tuple[int, ...]] = (1,)
    columns_needed: ClassVar[str] = "one, with lists of words"
    first_recipe: ClassVar[FirstRecipe] = FirstRecipe(baselines=("majority_by_word",))
    rows_hold: ClassVar[str] = "a list of words and a list of tags as long"
    kind: Literal["token_classification"]
    tokens: Column = "tokens"
    """The column of the words: lists of texts."""
    tags: Column = "tags"
    """The column of the tags: lists of texts or whole numbers, as long as those of the words."""
    scheme: Literal["iob2", "plain"] = "iob2"
    """`iob2`: tags mark entities (`B-PER`, `I-PER`, `O`), which are scored whole. `plain`: each word is scored by
    itself."""
    labels: ClassNames = None
    """Tags in the order of their ids. Default: those in the training rows, in natural order."""
    train: DataPath
    """The training rows: a file, folder or pattern, or a data set's name."""
    validation: DataPath | None = None
    """The rows that scores are measured on. Default: 10 % of `train`, at most 2,000 rows, which are not learnt from."""
    test: DataPath | None = None
    """Rows to predict; they need no tags."""
    name: str | None = Field(None, min_length=1)
    """The configuration, where `train`, `validation` and `test` name a data set that has several."""

    @model_validator(mode="after")
    def _columns_and_labels_fit(self) -> TokenClassification:
        if self.tokens == self.tags:
            raise ConfigIssues(
                [(("tags",), f"is '{self.tags}', the column of the words too: the answer would be in the question")]
            )
        if self.labels is None:
            return self
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise ConfigIssues(
                [(("labels",), f"is [{', '.join(self.labels)}], must name at least two tags, each once")]
            )
        wrong = [label for label in self.labels if self.scheme == "iob2" and not IOB2.fullmatch(label)]
        if wrong:
            sentence = (
                f"names '{wrong[0]}', which is not of the scheme IOB2 (O, B-NAME, I-NAME); write 'scheme: plain' "
                "for other tags"
            )
            raise ConfigIssues([(("labels",), sentence)])
        return self

    def task(self, name: str) -> TokenTask:
        """The task under that name."""
        return TokenTask(
            name=name,
            kind=self.kind,
            columns=(self.tokens,),
            label=self.tags,
            labels=self.labels,
            metrics=METRICS[self.scheme],
            places=inline_places(self.train, self.validation, self.test, self.name),
            scheme=self.scheme,
        )

    @classmethod
    def recognise(cls, rows: Sequence[JSONObject], label: str | None = None) -> JSONObject | None:
        lists = [name for name in rows[0] if holds(rows, name, lambda cell: isinstance(cell, list) and bool(cell))]
        texts = [name for name in lists if holds(rows, name, lambda cell: all(isinstance(word, str) for word in cell))]
        tokens = next((name for name in texts if name.lower() in ("tokens", "words")), texts[0] if texts else None)
        found = [
            name
            for name in lists
            if tokens not in (None, name)
            and label in (None, name)
            and all(_as_long(row[name], row[tokens]) for row in rows)
        ]
        if not found:
            return None
        if len(found) > 1 and "tags" not in found:
            raise ValueError(f"has several lists of tags ({', '.join(found)}); choose one with --label COLUMN")
        tags = found[0] if len(found) == 1 else "tags"
        entities = holds(rows, tags, lambda cell: all(isinstance(tag, str) and IOB2.fullmatch(tag) for tag in cell))
        return {"tokens": tokens, "tags": tags, "scheme": "iob2" if entities else "plain"}

    @classmethod
    def task_class(cls) -> type[LabelledTask]:
        return TokenTask

    @classmethod
    def example(cls) -> TaskExample:
        return {}, [{"tokens": ["sentence", str(n)], "tags": ["O", "B-NUMBER"]} for n in range(10)]

    @classmethod
    def training_issues(cls, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        yield from no_auxiliary_lm(subject, name)

"""Preferring the better of two answers: the task, and the `data` of stages that learn from preferences.

A recipe names preferences to learn from as a task, as a data set (`{path: pairs.jsonl}`), or as what an earlier stage
has written (`{from: STAGE}`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, model_validator

from pipelines.core.config import Block, ConfigIssue, ConfigIssues, show
from pipelines.core.errors import DataError
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import FirstRecipe, Head, HeadKind
from pipelines.core.model_types import looks_back_only
from pipelines.core.recipe import START
from pipelines.core.registry import nearest
from pipelines.data.chat_formats import Unreadable
from pipelines.data.licences import License
from pipelines.data.references import DataPath, resolve_path
from pipelines.data.sources import DataSource, find
from pipelines.tasks.base import HELD_OUT, HELD_OUT_SEED, LabelledTask, TaskExample, TaskKind, inline_places
from pipelines.tasks.preference.rows import (
    COLUMNS,
    LABELLED,
    FormatName,
    LabelledRows,
    PreferenceRows,
    detect,
    read_rows,
    split_in_two,
)

if TYPE_CHECKING:
    from datasets import Dataset

    from pipelines.core.recipe import Recipe
    from pipelines.tasks.evaluation import BenchmarkChoice, EvaluationSettings


METRICS = ("accuracy",)
"""The share of pairs whose chosen answer gets the higher score."""


def _path_or_share(value: object, info: ValidationInfo) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"is {show(value)}, must be a file, a data set's name, or the share of train such as 0.2")
    if isinstance(value, str):
        return resolve_path(value, info)
    if not 0 < value < 1:
        raise ValueError(f"is {value}, must be a share of train between 0 and 1, or a file")
    return float(value)


PathOrShare = Annotated[
    str | float, BeforeValidator(_path_or_share), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]})
]
"""The type of the key `validation`."""


STAGES = ("reward", "dpo", "kto")
"""Stages that learn tasks of the kind `preference`."""


class Preference(TaskKind):
    """Pairs of answers of which one is better; or, for `kto`, single answers that are good or bad."""

    head_kind: ClassVar[HeadKind] = "reward"
    outputs: ClassVar[str | None] = "the better of two answers"
    unnamed_columns: ClassVar[tuple[str, ...] | None] = ()
    column_counts: ClassVar[tuple[int, ...]] = ()
    first_recipe: ClassVar[FirstRecipe] = FirstRecipe(
        stage="reward",
        hint="A model that writes learns from such pairs by `stage: dpo`, behind a `supervised` stage or a checkpoint.",
        baselines=("longer", "shorter"),
    )
    rows_hold: ClassVar[str] = "chosen and rejected answers, with the prompt or beginning with it"
    kind: Literal["preference"]
    format: FormatName | None = None
    """How rows are written: `prompt_chosen_rejected`, `chosen_rejected`, `transcripts`, `openai` or
    `prompt_completion_label`. Default: told by the columns."""
    columns: Mapping[str, str] = Field(default_factory=dict)
    """The columns behind the format's names, where they are called otherwise: `{prompt: question, chosen: better}`."""
    train: DataPath
    """The training rows: a file, folder or pattern, or a data set's name."""
    validation: PathOrShare | None = None
    """The rows that scores are measured on: a file, or the share of `train` that is drawn for it, which is not learnt
    from. Default: 10 % of `train`, at most 2,000 rows."""
    split_seed: int = Field(HELD_OUT_SEED, ge=0, lt=2**32)
    """Draws the rows of `validation` where it is a share: the same for every stage and run."""
    test: DataPath | None = None
    """Further rows to score; they are read as the others."""
    name: str | None = None
    """The configuration, where `train`, `validation` and `test` name a data set that has several."""
    skip_bad_rows: bool = False
    """Leave rows out that cannot be read, and say which, instead of stopping at the first."""

    @model_validator(mode="after")
    def _columns_fit(self) -> Preference:
        chosen = [self.format] if self.format else list(COLUMNS)
        roles = list(dict.fromkeys(role for each in chosen for part in COLUMNS[each] for role in part))
        wrong = [role for role in self.columns if role not in roles]
        if wrong:
            whose = f"of the format {self.format}" if self.format else "of any format"
            raise ConfigIssues(
                [(("columns", wrong[0]), f"is no column {whose}.{nearest(wrong[0], roles)} Known: {', '.join(roles)}")]
            )
        if "split_seed" in self.model_fields_set and not isinstance(self.validation, float):
            raise ConfigIssues(
                [
                    (
                        ("split_seed",),
                        "draws the rows of a 'validation' that is a share such as 0.2, and it is none; leave it out",
                    )
                ]
            )
        return self

    def task(self, name: str) -> LabelledTask:
        """The task under that name."""
        share = self.validation if isinstance(self.validation, float) else None
        file = self.validation if isinstance(self.validation, str) else None
        return PreferenceTask(
            name=name,
            kind=self.kind,
            columns=(),
            label="",
            metrics=METRICS,
            places=inline_places(self.train, file, self.test, self.name),
            format=self.format,
            names=dict(self.columns),
            share=share,
            split_seed=self.split_seed,
            skip_bad_rows=self.skip_bad_rows,
        )

    @classmethod
    def recognise(cls, rows: Sequence[JSONObject], label: str | None = None) -> JSONObject | None:
        pairs = {"chosen", "rejected"} <= rows[0].keys()
        try:
            name = detect(list(rows[0]), rows[0], {})
        except Unreadable:
            if pairs:
                raise
            return None
        if name == LABELLED and not label:
            raise ValueError(
                "has answers that are good or bad (prompt, completion, label): {stage: kto, task: {kind: preference, "
                "train: FILE}} learns from them behind a stage or a checkpoint that writes, and --kind classification "
                "tells good from bad by the text of --text COLUMN"
            )
        return {"format": name} if name != LABELLED else None

    @classmethod
    def task_class(cls) -> type[LabelledTask]:
        return PreferenceTask

    @classmethod
    def example(cls) -> TaskExample:
        return {}, [
            {"prompt": f"Which is number {n}?", "chosen": f"It is {n}.", "rejected": "None is."} for n in range(10)
        ]

    @classmethod
    def training_issues(cls, subject: object, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        """Asked of the subjects of supervised stages alone."""
        yield (
            ("task",),
            f"is of the kind preference, which the stages {', '.join(STAGES)} learn; write one of them instead",
        )

    @classmethod
    def training_head(cls, subject: object, task: LabelledTask) -> Head:
        return Head(cls.head_kind)

    @classmethod
    def columns_read(cls, task: LabelledTask) -> tuple[str, ...]:
        return ()

    @classmethod
    def texts(cls, rows: Any) -> Iterator[str]:
        """Every message of every pair."""
        return (
            str(message["content"])
            for side in (rows.chosen, rows.rejected)
            for each in side
            for message in each.messages
        )

    @classmethod
    def evaluation_issues(
        cls, stage: EvaluationSettings, choice: BenchmarkChoice, recipe: Recipe
    ) -> Iterable[ConfigIssue]:
        if choice.model != START and not recipe.stage(choice.model).scores:
            kind = recipe.stage(choice.model).stage
            yield (
                (),
                f"cannot score '{choice.name}' with the model of '{choice.model}': a '{kind}' stage trains no "
                "reward model",
            )


@dataclass(frozen=True)
class PreferenceTask(LabelledTask):
    """A task whose rows are pairs of answers."""

    format: str | None = None
    """None: told by the columns."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The columns behind the format's names."""
    share: float | None = None
    """The share of train that is drawn as the validation split; None: as for every task."""
    split_seed: int = HELD_OUT_SEED
    """Draws that share."""
    skip_bad_rows: bool = False
    """Whether rows that cannot be read are left out instead of refused."""

    def _needs_labels(self, split: str) -> bool:
        """The columns are known once the format is."""
        return False

    @property
    def head(self) -> Head:
        """The head that gives a number a text."""
        return Head("reward")

    def rows(self, split: str, limit: int | None = None) -> PreferenceRows:
        """The pairs of a split, the first `limit` of them. Raises DataError."""
        rows = self.read(split, limit)
        if isinstance(rows, LabelledRows):
            raise DataError(
                f"task '{self.name}' has single answers (prompt, completion, label), and pairs are needed "
                "(prompt, chosen, rejected); "
                "single answers are learnt by the stage kto"
            )
        return rows

    def labelled(self, split: str, limit: int | None = None) -> LabelledRows:
        """The same as single answers, good ones and bad ones. Of pairs, the first `limit` are split in two. Raises
        DataError."""
        rows = self.read(split, limit)
        return rows if isinstance(rows, LabelledRows) else split_in_two(rows)

    def read(self, split: str, limit: int | None = None) -> PreferenceRows | LabelledRows:
        """The rows of a split as they are written. Raises DataError."""
        data, index, described = self._read(split)
        if limit is not None and not self.skip_bad_rows:
            index = index[:limit]
        if len(index) < len(data):
            data = data.select(index)
        return read_rows(data, index, described, self.format, self.names, self.skip_bad_rows, limit)

    def _read(self, split: str) -> tuple[Dataset, Sequence[int], str]:
        if self.share is None or not self._holds_out or split not in ("train", HELD_OUT):
            return super()._read(split)
        data, index, described = replace(self, share=None, evaluation_splits={})._read("train")
        drawn, rest = drawn_share(len(index), self.share, self.split_seed)
        if not drawn or not rest:
            raise DataError(
                f"{described} has {len(index)} rows, too few to hold {self.share:.0%} out; give a 'validation' file"
            )
        return data, drawn if split == HELD_OUT else rest, described

    def content(self) -> dict[str, str]:
        """Content hash of the training rows and of each split that is evaluated, by split. Raises DataError."""
        hashes = super().content()
        if self.share is not None and self._holds_out:
            rule = f"{self.share} {self.split_seed}"
            hashes = {split: hashlib.sha256(f"{value} {rule}".encode()).hexdigest() for split, value in hashes.items()}
        return hashes


def drawn_share(count: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """(numbers of the rows that are drawn, of the others), both ascending."""
    drawn = set(Random(seed).sample(range(count), round(count * share)))
    return sorted(drawn), [number for number in range(count) if number not in drawn]


WRITTEN = "preferences.jsonl"
"""The file that a stage which compares answers leaves in its folder."""


class PreferenceReference(Block):
    """Preferences to learn from: a data set, or what an earlier feedback stage has written."""

    path: DataPath | None = None
    """A file, folder or pattern (JSONL, JSON, CSV, TSV, Parquet), or a data set's name."""
    source: str | None = Field(None, alias="from")
    """Id of an earlier stage that writes preferences, instead of `path`."""
    name: str | None = None
    """The configuration of a data set that has several."""
    split: str = Field("train", min_length=1)
    """The part that is read."""
    format: FormatName | None = None
    """How rows are written: `prompt_chosen_rejected`, `chosen_rejected`, `transcripts`, `openai` or
    `prompt_completion_label`. Default: told by the columns."""
    columns: Mapping[str, str] = Field(default_factory=dict)
    """The columns behind the format's names, where they are called otherwise: `{prompt: question, chosen: better}`."""
    license: License = None
    """Its licence as the Hub names it, such as `cc-by-4.0`. Default: what the data set's own card says."""

    @model_validator(mode="after")
    def _one_of_both(self) -> PreferenceReference:
        if (self.path is None) == (self.source is None):
            given = "both were given" if self.path else "neither was given"
            raise ConfigIssues(
                [
                    (
                        (),
                        "needs either 'path' (a file or a data set) or 'from' (a stage that writes "
                        f"preferences); {given}",
                    )
                ]
            )
        own = [key for key in ("name", "split", "format", "columns") if key in self.model_fields_set]
        if self.source is not None and own:
            raise ConfigIssues(
                [((own[0],), "says how a 'path' is read, but 'from' reads what a stage has written; leave it out")]
            )
        chosen = [self.format] if self.format else list(COLUMNS)
        roles = list(dict.fromkeys(role for each in chosen for part in COLUMNS[each] for role in part))
        wrong = [role for role in self.columns if role not in roles]
        if wrong:
            raise ConfigIssues(
                [
                    (
                        ("columns", wrong[0]),
                        f"is no column of a known format.{nearest(wrong[0], roles)} Known: {', '.join(roles)}",
                    )
                ]
            )
        return self

    def rows(
        self, folders: Mapping[str, Path], skip_bad_rows: bool = False, limit: int | None = None
    ) -> PreferenceRows | LabelledRows:
        """The rows, the first `limit` of them; `folders` are those of the complete stages. Raises DataError."""
        source, split = self._source(folders)
        described = f"{source.describe()}, split '{split}'" if len(source.splits()) > 1 else source.describe()
        data = source.load(split)
        if limit is not None and not skip_bad_rows:
            data = data.select(range(min(limit, len(data))))
        return read_rows(data, range(len(data)), described, self.format, self.columns, skip_bad_rows, limit)

    def content(self) -> str | None:
        """Content hash of the rows; None for those of a stage, whose own fingerprint says it. Raises DataError."""
        return None if self.path is None else find(self.path, self.name).content_hash(self.split)

    def _source(self, folders: Mapping[str, Path]) -> tuple[DataSource, str]:
        if self.path is not None:
            return find(self.path, self.name), self.split
        return find(str((folders[str(self.source)] / WRITTEN).resolve())), "train"


ONE_TEXT = "joins a prompt and its answer to one text, but this model is no decoder and reads them as two"


def reads_pairs(words: Any) -> bool:
    """Whether a model of this resolved architecture reads a prompt and its answer as two texts: every one but
    decoders."""
    return not looks_back_only(words)

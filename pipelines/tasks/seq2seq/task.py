"""Sequence to sequence: a column of texts, and a column of what they are to become."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from pipelines.core.config import ConfigIssue, ConfigIssues
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import FirstRecipe, Head, HeadKind
from pipelines.core.registry import OBJECTIVES
from pipelines.data.references import DataPath
from pipelines.tasks.base import (
    Column,
    LabelledTask,
    PromptForm,
    TaskExample,
    TaskKind,
    free_texts,
    holds,
    inline_places,
    text_pair,
)

if TYPE_CHECKING:
    from datasets import Dataset

    from pipelines.core.recipe import Recipe
    from pipelines.tasks.subject import Subject


LANGUAGE = re.compile(r"[a-z]{2}([-_][A-Za-z]{2,4})?")
"""What a column of texts in one language is called."""
PAIRS = (
    ("source", "target"), ("src", "tgt"), ("input_text", "target_text"), ("article", "highlights"),
    ("article", "summary"), ("document", "summary"), ("dialogue", "summary"), ("text", "summary"), ("input", "target"),
    ("incorrect", "correct"), ("input", "output"), ("question", "answer"),
)  # fmt: skip
"""What columns of texts and of what they are to become are often called."""


@dataclass(frozen=True)
class Seq2SeqTask(LabelledTask):
    """A task whose labels are texts."""

    @property
    def head(self) -> Head:
        """A head that writes."""
        return Head("seq2seq_lm")

    def _read_labels(self, data: Dataset, index: Sequence[int], described: str) -> Sequence[str]:
        return self._texts(data, self.label, index, described)


class Seq2Seq(TaskKind):
    """What a text is to become: its translation, its summary, its correction."""

    head_kind: ClassVar[HeadKind] = "seq2seq_lm"
    prompt_form: ClassVar[PromptForm | None] = "texts"
    stage_keys: ClassVar[tuple[str, ...]] = ("objective", "max_source_length", "max_target_length")
    outputs: ClassVar[str | None] = "texts"
    selects_by_loss: ClassVar[bool] = True
    unnamed_columns: ClassVar[tuple[str, ...] | None] = ("text",)
    column_counts: ClassVar[tuple[int, ...]] = (1,)
    columns_needed: ClassVar[str] = "one"
    first_recipe: ClassVar[FirstRecipe] = FirstRecipe(
        architecture="{preset: transformer-tiny, norm_position: pre}",
        shape="The original Transformer with 2 + 2 layers of 128, built from scratch. Other presets: t5-tiny, "
        "t5-small, transformer-base.",
        tokenizer="byte_bpe",
        pretrains=False,
        learning_rate="1e-3",
        baselines=("copy_source",),
        evaluate=("max_eval_samples: 200",),
    )
    rows_hold: ClassVar[str] = "a source and a target, or the same in two languages"
    kind: Literal["seq2seq"]
    source: Column
    """The column of the texts. `translation.en` is the entry `en` of a column `translation` that holds objects."""
    target: Column
    """The column of what they are to become."""
    train: DataPath
    """The training rows: a file, folder or pattern, or a data set's name."""
    validation: DataPath | None = None
    """The rows that scores are measured on. Default: 10 % of `train`, at most 2,000 rows, which are not learnt from."""
    test: DataPath | None = None
    """Rows to write targets for; they need none."""
    name: str | None = None
    """The configuration, where `train`, `validation` and `test` name a data set that has several."""

    @model_validator(mode="after")
    def _columns_differ(self) -> Seq2Seq:
        if self.source == self.target:
            raise ConfigIssues(
                [(("target",), f"is '{self.target}', the source too: there would be nothing to learn but to copy")]
            )
        return self

    def task(self, name: str) -> LabelledTask:
        """The task under that name."""
        return Seq2SeqTask(
            name=name,
            kind=self.kind,
            columns=(self.source,),
            label=self.target,
            metrics=("bleu", "chrf"),
            places=inline_places(self.train, self.validation, self.test, self.name),
        )

    @classmethod
    def recognise(cls, rows: Sequence[JSONObject], label: str | None = None) -> JSONObject | None:
        languages = [name for name in rows[0] if LANGUAGE.fullmatch(name.strip())]
        if len(languages) == 2 and all(free_texts(rows, name) for name in languages):
            found: tuple[str, str] | None = (languages[0], languages[1])
        elif holds(rows, "translation", lambda cell: isinstance(cell, Mapping)):
            names = [name for name in rows[0]["translation"] or () if LANGUAGE.fullmatch(name)]
            found = (f"translation.{names[0]}", f"translation.{names[1]}") if len(names) == 2 else None
        else:
            found = text_pair(rows, PAIRS)
        if found is None:
            return None
        source, target = reversed(found) if label == found[0] else found
        return {"source": source, "target": target} if label in (None, target) else None

    @classmethod
    def task_class(cls) -> type[LabelledTask]:
        return Seq2SeqTask

    @classmethod
    def example(cls) -> TaskExample:
        rows = [{"source": f"sentence {n}", "target": f"sentence {n} rewritten"} for n in range(10)]
        return {"source": "source", "target": "target"}, rows

    @classmethod
    def training_issues(cls, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        if subject.auxiliary_lm is not None:
            yield (
                ("auxiliary_lm",),
                "is for tasks with one answer a text, but this task's answers are texts; leave it out",
            )
        objective = objective_of(subject)
        if not objective.pairs:
            fit = ", ".join(name for name in OBJECTIVES if OBJECTIVES.load(name).pairs)
            yield (
                ("objective",),
                f"is {objective.name}, which learns from text alone; a task of pairs takes one of {fit}",
            )
            return
        words, heads = recipe.model.words(), recipe.model.heads()
        if heads is not None and objective.head.kind not in heads:
            yield (
                ("task",),
                f"is a task of pairs, which needs a model that writes ({objective.head.kind}); this "
                f"architecture has {', '.join(heads)}",
            )
            return
        if words is not None and (why := objective.misfit(words)) is not None:
            yield ("objective",), f"is {objective.name}, which {why}"
        for key in ("max_source_length", "max_target_length"):
            if (why := recipe.model.too_long(subject, key)) is not None:
                yield (key,), why

    @classmethod
    def training_head(cls, subject: Subject, task: LabelledTask) -> Head:
        head: Head = objective_of(subject).head
        return head

    @classmethod
    def columns_read(cls, task: LabelledTask) -> tuple[str, ...]:
        return (*task.columns, task.label)  # a tokenizer that learnt from others is another one


def objective_of(subject: Subject) -> Any:
    """What the model is asked to do with a pair: that of the recipe, else teacher forcing."""
    return OBJECTIVES.load("seq2seq")() if subject.objective is None else subject.objective

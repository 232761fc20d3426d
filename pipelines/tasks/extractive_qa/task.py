"""Extractive question answering in the layout of SQuAD, and the sizes of its windows.

Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text", arxiv.org/abs/1606.05250;
questions without an answer: Rajpurkar et al. 2018, "Know What You Don't Know", arxiv.org/abs/1806.03822. A row's
answers are `{text: […], answer_start: […]}`, where `answer_start` counts the characters of the context before the
answer; a list of `{text, answer_start}` says the same.

How many tokens of a window a question may take, and how many neighbouring windows may share, is known before a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.core.config import Block, ConfigIssue, ConfigIssues
from pipelines.core.errors import DataError
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import FirstRecipe, Head, HeadKind, Rows
from pipelines.data.references import DataPath, DatasetReference
from pipelines.tasks.base import (
    Column,
    LabelledTask,
    PromptForm,
    TaskExample,
    TaskKind,
    column_of,
    holds,
    inline_places,
)
from pipelines.tasks.subject import no_auxiliary_lm

if TYPE_CHECKING:
    from datasets import Dataset

    from pipelines.core.recipe import Recipe
    from pipelines.tasks.evaluation import BenchmarkChoice, EvaluationSettings
    from pipelines.tasks.subject import Subject


LONGEST_QUESTION = 64
"""Tokens of a question. Devlin et al. 2019, `run_squad.py`: max_query_length."""
SHORTEST = 16
"""Tokens of a window below which nothing useful fits."""
SPECIAL = 4
"""Special tokens of a pair at most: RoBERTa has `<s> A </s></s> B </s>`."""


def question_room(max_length: int) -> int:
    """Tokens after which a question is cut: a quarter of the window at most."""
    return min(LONGEST_QUESTION, max_length // 4)


def widest_stride(max_length: int) -> int:
    """The most tokens that windows can share whatever the question, so that each window moves on."""
    return max_length - question_room(max_length) - SPECIAL - 1


def stride_of(max_length: int, doc_stride: int | None) -> int:
    """Tokens that neighbouring windows share: what is given, else a third of a window, as 128 of 384 are."""
    return min(max_length // 3 if doc_stride is None else doc_stride, widest_stride(max_length))


class Retrieval(Block):
    """Passages that are searched for instead of given, for benchmarks of the kind `qa`."""

    name: Literal["bm25", "embeddings"] = "bm25"
    """How passages are ranked: BM25 over words, or the cosine of mean embeddings by a model's body."""
    source: str | None = Field(None, alias="from")
    """For `embeddings`: the stage whose model embeds; `model` is the recipe's own. Default: the model that answers."""
    passages: DatasetReference | None = None
    """Text with a passage in each row: `{path: passages.jsonl, text: text}`. Default: the different contexts of the
    split that is scored."""
    k: int = Field(5, ge=1, le=1000)
    """Passages that are read for each question; the best answer of all of them counts."""
    recall_at: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = (1, 5, 20)
    """Depths at which recall is measured."""
    k1: float = Field(1.2, ge=0, le=100)
    """BM25: how soon more of the same word adds nothing."""
    b: float = Field(0.75, ge=0, le=1)
    """BM25: how much long passages are held back."""


@dataclass(frozen=True)
class QuestionRows(Rows):
    """Questions (`texts`) and the contexts (`pairs`) that hold the answers; `labels` are the right answers of each
    question."""

    starts: Sequence[Sequence[int]] | None = None
    """Characters of the context before each of the right answers; None where the answers are not public."""
    ids: Sequence[str] = ()
    """What a prediction file calls each question."""


@dataclass(frozen=True)
class QuestionTask(LabelledTask):
    """A task whose answers are spans of a context."""

    id_column: str | None = None
    """The column of the questions' ids; None: their numbers in the file, from 0."""
    version_2: bool = False
    """Whether some questions have no answer."""

    @cached_property
    def head(self) -> Head:
        """The head the task is learnt with."""
        return Head("question_answering")

    def content(self) -> dict[str, str]:
        """As of every task; training rows that lie elsewhere are left out where another task's model can be asked."""
        try:
            return super().content()
        except DataError:
            if self.trained_by is None or self._has_training_rows():
                raise
        places = {split: place for split, place in self.places.items() if split != "train"}
        return replace(self, places=places).content()

    def _has_training_rows(self) -> bool:
        source, inner = self.places["train"].open("train")
        return inner in source.splits()

    def rows(self, split: str, limit: int | None = None) -> QuestionRows:
        """The rows of a split, the first `limit` of them. Raises DataError."""
        data, index, described = self._first(split, limit)
        question, context = (self._texts(data, column, index, described) for column in self.columns)
        ids = self._ids(data, index, described)
        if self.label not in data.column_names:
            return QuestionRows(question, context, None, index, None, ids)
        cells = data[self.label][:]
        if not self._needs_labels(split) and not any(cells):
            return QuestionRows(question, context, None, index, None, ids)
        read = [self._answers(cell, number, described) for number, cell in zip(index, cells, strict=True)]
        texts, starts = [texts for texts, _ in read], [starts for _, starts in read]
        if split == "train":
            self._check_places(texts, starts, context, index, described)
        return QuestionRows(question, context, texts, index, starts, ids)

    def _ids(self, data: Dataset, index: Sequence[int], described: str) -> list[str]:
        if self.id_column is None:
            return [str(number) for number in index]
        if self.id_column not in data.column_names:
            columns = ", ".join(data.column_names)
            raise DataError(
                f"{described} has no column '{self.id_column}' for the questions' ids; columns found: {columns}"
            )
        ids = [str(cell) for cell in data[self.id_column][:]]
        if len(set(ids)) < len(ids):
            first = dict(zip(reversed(ids), reversed(range(len(ids))), strict=True))
            again = next(row for row, name in enumerate(ids) if first[name] < row)
            self._refuse(
                described,
                index[again],
                f"has the id '{ids[again]}' of an earlier row",
                "give every question an id of its own",
            )
        return ids

    def _answers(self, cell: object, number: int, described: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """(texts, characters before them) of one row."""
        if isinstance(cell, list) and all(
            isinstance(each, Mapping) and {"text", "answer_start"} <= set(each) for each in cell
        ):
            cell = {name: [each[name] for each in cell] for name in ("text", "answer_start")}
        if not isinstance(cell, Mapping) or not {"text", "answer_start"} <= set(cell):
            self._refuse(
                described,
                number,
                f"holds {str(cell)[:40]!r} in the column '{self.label}', must be "
                '{"text": ["the answer"], "answer_start": [17]}',
            )
        texts, starts = cell["text"] or [], cell["answer_start"] or []
        if len(texts) != len(starts):
            self._refuse(described, number, f"has {len(texts)} answers but {len(starts)} places of answers")
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(start, int) for start in starts):
            self._refuse(
                described,
                number,
                f"has answers that are no texts, or places that are no whole numbers: {str(cell)[:60]}",
            )
        if any(not text.strip() for text in texts):
            self._refuse(described, number, "has an answer that is empty")
        if not texts and not self.version_2:
            self._refuse(
                described,
                number,
                "has no answer",
                "add one, or write 'version_2_with_negative: true' where questions may have none",
            )
        return tuple(texts), tuple(starts)

    def _check_places(
        self,
        texts: Sequence[Sequence[str]],
        starts: Sequence[Sequence[int]],
        contexts: Sequence[str],
        index: Sequence[int],
        described: str,
    ) -> None:
        """Refuse training rows whose answers do not stand where they are said to."""
        wrong = [
            row
            for row, context in enumerate(contexts)
            if any(
                start < 0 or not context.startswith(text, start)
                for text, start in zip(texts[row], starts[row], strict=True)
            )
        ]
        if not wrong:
            return
        row = wrong[0]
        text, start = next(
            pair
            for pair in zip(texts[row], starts[row], strict=True)
            if pair[1] < 0 or not contexts[row].startswith(*pair)
        )
        there = contexts[row][max(start, 0) : max(start, 0) + len(text)]
        numbers = ", ".join(str(index[row] + 1) for row in wrong[:5]) + (", …" if len(wrong) > 5 else "")
        raise DataError(
            f"{described}: in {len(wrong)} of {len(contexts)} rows an answer does not stand in "
            f"'{self.columns[1]}' at its answer_start "
            f"(rows {numbers}; the first is 1): row {index[row] + 1} says '{text[:40]}' at character {start}, "
            f"where '{there[:40]}' stands; "
            "answer_start counts characters, from 0"
        )


QUESTIONS, CONTEXTS = ("question", "query"), ("context", "passage", "paragraph", "document", "article", "text")
"""What columns of questions and of the texts about which they are asked are often called."""


def _spans(cell: Any) -> bool:
    """Whether a cell holds answers with their places, in either of the two ways."""
    each = cell if isinstance(cell, list) else [cell]
    return all(isinstance(one, Mapping) and {"text", "answer_start"} <= set(one) for one in each)


def _texts_of(cell: Any) -> list[str]:
    """The texts of a cell's answers."""
    return [one["text"] for one in cell] if isinstance(cell, list) else list(cell["text"])


class ExtractiveQA(TaskKind):
    """Which words of a text answer a question."""

    head_kind: ClassVar[HeadKind] = "question_answering"
    prompt_form: ClassVar[PromptForm | None] = "answers"
    stage_keys: ClassVar[tuple[str, ...]] = ("doc_stride",)
    evaluation_keys: ClassVar[tuple[str, ...]] = ("spans", "retrieval")
    outputs: ClassVar[str | None] = "spans of a text"
    selects_by_loss: ClassVar[bool] = True
    unnamed_columns: ClassVar[tuple[str, ...] | None] = ("question", "context")
    column_counts: ClassVar[tuple[int, ...]] = (2,)
    columns_needed: ClassVar[str] = "two: the question's and the context's"
    uncounted: ClassVar[str | None] = "a context longer than max_length takes several windows, which are not counted"
    first_recipe: ClassVar[FirstRecipe] = FirstRecipe(evaluate=("max_eval_samples: 500",))
    rows_hold: ClassVar[str] = "a question, a context, and answers as {text: […], answer_start: […]}"
    kind: Literal["qa"]
    question: Column = "question"
    """The column of the questions."""
    context: Column = "context"
    """The column of the texts that hold the answers."""
    answers: Column = "answers"
    """The column of the answers: `{text: […], answer_start: […]}`, characters counted from 0."""
    id: Column | None = None
    """The column of the ids that a file of predictions goes by. Default: the numbers of the rows, from 0."""
    version_2_with_negative: bool = False
    """Whether some questions have no answer in their text, as in SQuAD 2.0: their lists of answers are empty."""
    train: DataPath
    """The training rows: a file, folder or pattern, or a data set's name."""
    validation: DataPath | None = None
    """The rows that scores are measured on. Default: 10 % of `train`, at most 2,000 rows, which are not learnt from."""
    test: DataPath | None = None
    """Rows to predict; they need no answers."""
    name: str | None = Field(None, min_length=1)
    """The configuration, where `train`, `validation` and `test` name a data set that has several."""

    @model_validator(mode="after")
    def _columns_differ(self) -> ExtractiveQA:
        named = [("question", self.question), ("context", self.context), ("answers", self.answers)]
        for place, (key, column) in enumerate(named):
            if column in (earlier for _, earlier in named[:place]):
                raise ConfigIssues(
                    [((key,), f"is '{column}', which is named twice; question, context and answers are three columns")]
                )
        return self

    def task(self, name: str) -> QuestionTask:
        """The task under that name."""
        return QuestionTask(
            name=name,
            kind=self.kind,
            columns=(self.question, self.context),
            label=self.answers,
            metrics=("squad_v2" if self.version_2_with_negative else "squad",),
            places=inline_places(self.train, self.validation, self.test, self.name),
            id_column=self.id,
            version_2=self.version_2_with_negative,
        )

    @classmethod
    def recognise(cls, rows: Sequence[JSONObject], label: str | None = None) -> JSONObject | None:
        answers = next((name for name in rows[0] if label in (None, name) and holds(rows, name, _spans)), None)
        question, context = column_of(QUESTIONS, rows), column_of(CONTEXTS, rows)
        if answers is None or question is None or context is None:
            return None
        keys: dict[str, Any] = {"question": question, "context": context, "answers": answers}
        if (name := column_of(("id",), rows)) is not None and len({row[name] for row in rows}) == len(rows):
            keys["id"] = name
        if any(not row[answers] or not _texts_of(row[answers]) for row in rows):
            keys["version_2_with_negative"] = True
        return keys

    @classmethod
    def task_class(cls) -> type[LabelledTask]:
        return QuestionTask

    @classmethod
    def example(cls) -> TaskExample:
        answers = [{"text": [str(n)], "answer_start": [9]} for n in range(10)]
        return {}, [
            {"question": f"Which is number {n}?", "context": f"sentence {n} of ten", "answers": each}
            for n, each in enumerate(answers)
        ]

    @classmethod
    def training_issues(cls, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        yield from no_auxiliary_lm(subject, name)
        if subject.max_length < SHORTEST:
            yield (
                ("max_length",),
                f"is {subject.max_length}, must be at least {SHORTEST} for a question and a part of its context",
            )
        elif subject.doc_stride is not None and subject.doc_stride > widest_stride(subject.max_length):
            yield (
                ("doc_stride",),
                (
                    f"is {subject.doc_stride}, must be at most {widest_stride(subject.max_length)} with "
                    f"max_length {subject.max_length}, "
                    "so that every window moves on beside the longest question"
                ),
            )

    @classmethod
    def evaluation_issues(
        cls, stage: EvaluationSettings, choice: BenchmarkChoice, recipe: Recipe
    ) -> Iterable[ConfigIssue]:
        length = stage.max_length or choice.trained_length(recipe)
        stride = stage.spans.doc_stride
        if length is not None and length < SHORTEST:
            yield ("max_length",), f"is {length}, must be at least {SHORTEST} for a question and a part of its context"
        elif length is not None and stride is not None and stride > widest_stride(length):
            yield (
                ("spans", "doc_stride"),
                f"is {stride}, must be at most {widest_stride(length)} with windows of {length} tokens",
            )

"""Answers in words: prompts and completions, instructions, or whole dialogues."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from pipelines.core.config import ConfigIssue, ConfigIssues
from pipelines.core.errors import DataError
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import FirstRecipe, Head, HeadKind, Rows
from pipelines.core.model_types import sees_ahead, takes_masks
from pipelines.core.registry import nearest
from pipelines.data import chat_formats
from pipelines.data.chat_formats import COLUMNS, Dialogue, FormatName, Unreadable
from pipelines.data.references import DataPath
from pipelines.data.stage_files import PathOrStage
from pipelines.tasks.base import (
    LabelledTask,
    PromptForm,
    TaskExample,
    TaskKind,
    free_texts,
    inline_places,
    text_pair,
)

if TYPE_CHECKING:
    from datasets import Dataset

    from pipelines.core.recipe import Recipe
    from pipelines.tasks.evaluation import BenchmarkChoice, EvaluationSettings
    from pipelines.tasks.subject import Subject

TEXT_METRICS = ("rouge1", "rouge2", "rougeL")
"""How answers in words are compared with others."""
PATTERN_METRICS = ("exact_match",)
"""How answers are compared of which a pattern takes the decisive part."""
LIKELIHOOD = ("perplexity", "bits_per_byte", "mean_token_accuracy")
"""What is measured of every task of this kind, whatever it writes."""


def _pattern(value: str) -> str:
    try:
        groups = re.compile(value).groups
    except re.error as error:
        raise ValueError(f"'{value}' is no regular expression: {error}") from None
    if groups != 1:
        raise ValueError(
            f"'{value}' has {groups} groups, must have one, such as '####\\s*(.+)': what stands in it is compared"
        )
    return value


PAIRS = (
    ("prompt", "response"), ("prompt", "answer"), ("instruction", "response"), ("instruction", "answer"),
    ("query", "response"), ("question", "response"), ("input", "output"), ("question", "answer"),
)  # fmt: skip
"""What columns of prompts and their answers are often called, beside the names of the formats."""


class Causal(TaskKind):
    """Answers in words, for decoders: a prompt and its completion, an instruction, or a dialogue."""

    head_kind: ClassVar[HeadKind] = "causal_lm"
    prompt_form: ClassVar[PromptForm | None] = "dialogues"
    stage_keys: ClassVar[tuple[str, ...]] = ("chat_template", "train_on", "packing")
    evaluation_keys: ClassVar[tuple[str, ...]] = ("chat_template",)
    outputs: ClassVar[str | None] = "texts"
    selects_by_loss: ClassVar[bool] = True
    unnamed_columns: ClassVar[tuple[str, ...] | None] = ("prompt",)
    smooths_labels: ClassVar[bool] = True
    first_recipe: ClassVar[FirstRecipe] = FirstRecipe(
        architecture="{preset: gpt-tiny}",
        shape="GPT-2's shape with 4 layers of 128, built from scratch. Other presets: llama-tiny, gpt2, llama-1b.",
        tokenizer="byte_bpe",
        pretrains=False,
        learning_rate="1e-3",
        hint="`chat_template: chatml` marks who speaks; `packing: true` fills each block with several rows.",
        evaluate=("max_eval_samples: 100", "generation: {max_new_tokens: 64}"),
    )
    rows_hold: ClassVar[str] = "messages, conversations, an instruction and its output, or a prompt and its completion"
    kind: Literal["causal"]
    format: FormatName | None = None
    """How rows are written: `messages`, `sharegpt`, `alpaca`, `prompt_completion` or `text`. Default: told by the
    columns."""
    columns: Mapping[str, str] = Field(default_factory=dict)
    """The columns behind the format's names, where they are called otherwise: `{prompt: question, completion:
    answer}`."""
    answer_pattern: Annotated[str, AfterValidator(_pattern)] | None = None
    """What of an answer is compared: the group of a regular expression, such as `####\\s*(.+)`. Default: all of
    it, by ROUGE."""
    train: PathOrStage
    """The training rows: a file, folder or pattern, a data set's name, or `{from: ID}` for what a feedback stage
    has revised."""
    validation: DataPath | None = None
    """The rows that scores are measured on. Default: 10 % of `train`, at most 2,000 rows, which are not learnt from."""
    test: DataPath | None = None
    """Rows to answer; they are read as the others."""
    name: str | None = None
    """The configuration, where `train`, `validation` and `test` name a data set that has several."""

    @model_validator(mode="after")
    def _columns_fit(self) -> Causal:
        formats = [self.format] if self.format else list(COLUMNS)
        roles = list(dict.fromkeys(role for each in formats for part in COLUMNS[each] for role in part))
        wrong = [role for role in self.columns if role not in roles]
        if wrong:
            whose = f"of the format {self.format}" if self.format else "of any format"
            raise ConfigIssues(
                [(("columns", wrong[0]), f"is no column {whose}.{nearest(wrong[0], roles)} Known: {', '.join(roles)}")]
            )
        if self.format == "text" and self.answer_pattern:
            raise ConfigIssues(
                [
                    (
                        ("answer_pattern",),
                        "takes the decisive part of an answer, but plain texts answer nothing; leave it out",
                    )
                ]
            )
        return self

    def task(self, name: str) -> LabelledTask:
        """The task under that name."""
        return CausalTask(
            name=name,
            kind=self.kind,
            columns=(),
            label="",
            metrics=PATTERN_METRICS if self.answer_pattern else () if self.format == "text" else TEXT_METRICS,
            places=inline_places(self.train, self.validation, self.test, self.name),
            format=self.format,
            names=dict(self.columns),
            answer_pattern=self.answer_pattern,
        )

    @classmethod
    def recognise(cls, rows: Sequence[JSONObject], label: str | None = None) -> JSONObject | None:
        pair = text_pair(rows, PAIRS)
        try:
            name = chat_formats.detect(list(rows[0]), rows[0], {})
            columns = chat_formats.columns_of(name, list(rows[0]), {})
            chat_formats.read(name, {role: rows[0][column] for role, column in columns.items()})
        except Unreadable:
            return None if pair is None else {"columns": dict(zip(("prompt", "completion"), pair, strict=True))}
        written = [column for column in columns.values() if isinstance(rows[0][column], str)][:2]
        asks = name != "text" and "label" not in rows[0]
        return {"format": name} if asks and all(free_texts(rows, column) for column in written) else None

    @classmethod
    def task_class(cls) -> type[LabelledTask]:
        return CausalTask

    @classmethod
    def example(cls) -> TaskExample:
        return {}, [{"prompt": f"Which is number {n}?", "completion": f"It is {n}."} for n in range(10)]

    @classmethod
    def training_issues(cls, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        task: Any = subject.resolved(name)
        if subject.auxiliary_lm is not None:
            yield (
                ("auxiliary_lm",),
                "is for tasks with one answer a text, but here the answers are words already; leave it out",
            )
        if subject.chat_template is not None and task.format == "text":
            yield ("chat_template",), "joins messages, but the task's format is text, which has none; leave it out"
        tuner = getattr(subject, "tuner", None)
        if subject.packing and tuner is not None and not tuner.takes_masks:
            yield (
                ("packing",),
                f"gives each block a mask of its own, which the virtual tokens of {tuner.name} have no place "
                "in; leave it out",
            )
        words = recipe.model.words()
        if words is None:
            return
        if (why := unfit(words, recipe.model.heads() or ())) is not None:
            yield ("task",), why
        elif subject.packing and (why := takes_masks(words)) is not None:
            yield ("packing",), why

    @classmethod
    def columns_read(cls, task: LabelledTask) -> tuple[str, ...]:
        causal: Any = task
        return (
            causal.format or "told by the columns",
            *(f"{role}={column}" for role, column in sorted(causal.names.items())),
        )

    @classmethod
    def texts(cls, rows: Any) -> Iterator[str]:
        """Every message of every dialogue."""
        return (str(message["content"]) for each in rows.dialogues for message in each.messages)

    @classmethod
    def evaluation_issues(
        cls, stage: EvaluationSettings, choice: BenchmarkChoice, recipe: Recipe
    ) -> Iterable[ConfigIssue]:
        if stage.generation.model_fields_set & {"iterations", "length_beam"}:
            yield (
                ("generation",),
                "sets iterations or length_beam, which are for mask-predict; a decoder writes one token after another",
            )


@dataclass(frozen=True)
class Dialogues(Rows):
    """Rows of dialogues: `texts` are what is asked and `labels` the last answers, as people read them."""

    dialogues: Sequence[Dialogue] = ()
    """What is rendered and learnt, one a row."""
    format: str = ""
    """The format the rows were read in."""


@dataclass(frozen=True)
class CausalTask(LabelledTask):
    """A task whose rows are dialogues."""

    format: str | None = None
    """None: told by the columns."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The columns behind the format's names."""
    answer_pattern: str | None = None
    """What of an answer is compared; None: all of it."""
    skip_empty: bool = False
    """Whether rows with an empty answer are left out instead of refused."""

    def _needs_labels(self, split: str) -> bool:
        """The columns are known once the format is."""
        return False

    @property
    def head(self) -> Head:
        """The head that names the next token."""
        return Head("causal_lm")

    @property
    def scores(self) -> tuple[str, ...]:
        """Every score that an evaluation may give."""
        return (*self.metrics, *LIKELIHOOD)

    def rows(self, split: str, limit: int | None = None) -> Dialogues:
        """The dialogues of a split, the first `limit` of them. Raises DataError."""
        data, index, described = self._read(split)
        if limit is not None:
            index = index[: limit if not self.skip_empty else len(index)]
        if len(index) < len(data):
            data = data.select(index)
        name, columns = self._format_of(data, described)
        dialogues: list[Dialogue] = []
        positions: list[int] = []
        for number, cells in zip(index, _rows(data, columns), strict=True):
            if limit is not None and len(dialogues) == limit:
                break
            try:
                dialogue = chat_formats.read(name, cells)
            except Unreadable as problem:
                self._refuse(described, number, str(problem))
            if empty := _emptiness(dialogue):
                if self.skip_empty:
                    continue
                self._refuse(described, number, empty)
            dialogues.append(dialogue)
            positions.append(number)
        prompts, answers = [each.prompt for each in dialogues], [each.completion for each in dialogues]
        return Dialogues(prompts, None, answers, positions, dialogues, name)

    def _format_of(self, data: Dataset, described: str) -> tuple[str, dict[str, str]]:
        """The format of the rows, and the column behind each of its names."""
        columns = list(data.column_names)
        try:
            name = self.format or chat_formats.detect(columns, data[0] if len(data) else {}, self.names)
            return name, chat_formats.columns_of(name, columns, self.names)
        except Unreadable as problem:
            raise DataError(f"{described} {problem}") from None

    def graded(self, texts: Sequence[str]) -> list[str]:
        """What of each answer is compared: the first match of `answer_pattern`, thousands separators and spaces left
        out.

        An answer without a match is compared as nothing, which no reference is.
        """
        if self.answer_pattern is None:
            return list(texts)
        matches = (re.search(self.answer_pattern, text) for text in texts)
        return [
            "" if match is None else re.sub(r"(?<=\d),(?=\d)", "", match.group(1)).strip().rstrip(".")
            for match in matches
        ]


def _emptiness(dialogue: Dialogue) -> str | None:
    """What is missing from a dialogue, as a sentence without its subject."""
    wanted = [each for each, learnt in zip(dialogue.messages, dialogue.learnt, strict=True) if learnt]
    if not wanted:
        return "has no answer that is to be learnt: every message of the assistant has weight 0"
    if all(str(each["content"]).strip() or each.get("tool_calls") for each in wanted):
        return None
    return "has an empty answer"


def _rows(data: Dataset, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """The cells of every row, by the format's names."""
    cells = [data[column][:] for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)]


def unfit(words: Any, heads: Iterable[str]) -> str | None:
    """Why a model of this resolved architecture cannot continue texts, as a sentence without its subject."""
    if "causal_lm" not in heads and "seq2seq_lm" in heads:
        return (
            "is of the kind causal, which decoders learn; an encoder-decoder learns the same rows as pairs: "
            "{kind: instruction_pairs, train: …}"
        )
    why = sees_ahead(words)
    return None if why is None else f"is of the kind causal, which {why}"

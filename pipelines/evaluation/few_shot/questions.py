"""From the rows of a task to prompts: questions, examples drawn by seed, and as much as the model can read.

Examples come from a task's training rows, never from the rows that are scored. The first k of a draw are the same
however many more are asked for, so that one-shot and eight-shot prompts share their first example. A training row that
asks just what the question asks is passed over. Where the examples and the question do not fit into the model, examples
are dropped, the first one first. Where not even the question fits, it loses its beginning; both are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from pipelines.core.errors import DataError
from pipelines.core.interfaces import Rows
from pipelines.evaluation.few_shot.likelihood import Continuation, Encoded, LikelihoodReader
from pipelines.evaluation.few_shot.prompts import OPTIONS, PromptTemplate, form_of, lettered
from pipelines.tasks.base import PromptForm
from pipelines.tasks.multiple_choice.task import LETTERS, ChoiceTask

CONTENT_FREE = ("N/A", "", "[MASK]")
"""What stands for a question without content. Zhao et al. 2021, section 5, arxiv.org/abs/2102.09690."""


@dataclass(frozen=True)
class FewShotQuestion:
    """One row."""

    fields: Mapping[str, str]
    """What the prompt's placeholders stand for."""
    options: tuple[str, ...]
    """The possible answers; empty where answers are texts."""
    answer: str | None
    """The right answer, as an example would give it; None where it is not public."""
    group: int | None
    """The class, for drawing as many of each; None where there are no classes."""

    def without_content(self, words: str) -> FewShotQuestion:
        """The same question with nothing in it."""
        return replace(self, fields={name: text if name == OPTIONS else words for name, text in self.fields.items()})


@dataclass(frozen=True)
class FewShotQuestions:
    """The questions of one split, in the order of the rows."""

    rows: Rows
    each: Sequence[FewShotQuestion]

    def __len__(self) -> int:
        return len(self.each)


def questions_of(task: Any, prompt: PromptTemplate, split: str, limit: int | None = None) -> FewShotQuestions:
    """The first `limit` rows of a split as questions. Raises DataError."""
    makers: dict[PromptForm, Callable[[Any, PromptTemplate, str, int | None, Rows], list[FewShotQuestion]]] = {
        "classes": _classes,
        "numbers": _numbers,
        "choices": _choices,
        "answers": _spans,
        "texts": _texts,
        "dialogues": _dialogues,
    }
    form = form_of(task)
    if form is None:
        raise DataError(
            f"'{task.name}' is of the kind {task.kind}, whose answers cannot be asked for in a prompt; train "
            "a head for it instead"
        )
    rows = task.rows(split, limit)
    return FewShotQuestions(rows, makers[form](task, prompt, split, limit, rows))


def _fields(task: Any, rows: Rows) -> list[dict[str, str]]:
    """The texts of each row by column."""
    columns = [rows.texts] if rows.pairs is None else [rows.texts, rows.pairs]
    return [dict(zip(task.columns, texts, strict=True)) for texts in zip(*columns, strict=True)]


def _classes(task: Any, prompt: PromptTemplate, split: str, limit: int | None, rows: Rows) -> list[FewShotQuestion]:
    names = task.head.labels
    words = prompt.answers if isinstance(prompt.answers, tuple) else names
    if len(words) != len(names):
        raise DataError(
            f"the prompt of '{task.name}' has {len(words)} answers, but its classes are {', '.join(names)}; "
            "write a word for each"
        )
    labels: Sequence[Any] = [None] * len(rows) if rows.labels is None else rows.labels
    return [
        FewShotQuestion(fields, words, None if label is None else words[label], label)
        for fields, label in zip(_fields(task, rows), labels, strict=True)
    ]


def _numbers(task: Any, prompt: PromptTemplate, split: str, limit: int | None, rows: Rows) -> list[FewShotQuestion]:
    if not isinstance(prompt.answers, tuple):
        raise DataError(
            f"the answers of '{task.name}' are numbers: name those that may be given in its prompt, 'answers: "
            '["0", "1", …]\''
        )
    values = [float(each) for each in prompt.answers]
    labels: Sequence[Any] = [None] * len(rows) if rows.labels is None else rows.labels
    nearest = [
        None if label is None else min(range(len(values)), key=lambda at: abs(values[at] - label)) for label in labels
    ]
    return [
        FewShotQuestion(fields, prompt.answers, None if at is None else prompt.answers[at], at)
        for fields, at in zip(_fields(task, rows), nearest, strict=True)
    ]


def _choices(
    task: ChoiceTask, prompt: PromptTemplate, split: str, limit: int | None, rows: Rows
) -> list[FewShotQuestion]:
    """Question and options apart, which the task joins for models with a head."""
    columns = tuple(name for name in task.columns if name != task.context)
    bare: Any = replace(task, context=None, columns=columns, blank=None).rows(split, limit)
    [name] = [column for column in columns if column not in task.option_columns]
    labels: Sequence[Any] = [None] * len(rows) if rows.labels is None else rows.labels
    questions = []
    for at, (question, options, label) in enumerate(zip(bare.texts, bare.options, labels, strict=True)):
        words = tuple(LETTERS[: len(options)]) if prompt.answers == "letters" else tuple(options)
        context = {} if task.context is None else {task.context: rows.texts[at]}
        fields = {**context, name: question, OPTIONS: lettered(options)}
        questions.append(FewShotQuestion(fields, words, None if label is None else words[label], label))
    return questions


def _spans(task: Any, prompt: PromptTemplate, split: str, limit: int | None, rows: Rows) -> list[FewShotQuestion]:
    references: Sequence[Any] = [None] * len(rows) if rows.labels is None else rows.labels
    return [
        FewShotQuestion(fields, (), None if answers is None else next(iter(answers), prompt.no_answer), None)
        for fields, answers in zip(_fields(task, rows), references, strict=True)
    ]


def _texts(task: Any, prompt: PromptTemplate, split: str, limit: int | None, rows: Rows) -> list[FewShotQuestion]:
    references: Sequence[Any] = [None] * len(rows) if rows.labels is None else rows.labels
    return [
        FewShotQuestion(fields, (), answer, None)
        for fields, answer in zip(_fields(task, rows), references, strict=True)
    ]


def _dialogues(task: Any, prompt: PromptTemplate, split: str, limit: int | None, rows: Rows) -> list[FewShotQuestion]:
    questions = []
    for number, dialogue in zip(rows.index, rows.dialogues, strict=True):  # type: ignore[attr-defined]
        if len(dialogue.messages) < 2:
            raise DataError(
                f"row {number + 1} of '{task.name}' (the first is 1) asks nothing, it is a text without a "
                "prompt; measure it with 'datasets'"
            )
        questions.append(FewShotQuestion({"prompt": dialogue.prompt}, (), dialogue.completion, None))
    return questions


class Demonstrations:
    """The training rows, ready to be drawn from."""

    def __init__(self, name: str, train: FewShotQuestions, seed: int, per_question: bool, stratified: bool) -> None:
        self.name = name
        self.train = train
        self.seed = seed
        self.per_question = per_question
        self.stratified = stratified
        groups: dict[int | None, list[int]] = {}
        for place, question in enumerate(train.each):
            groups.setdefault(question.group if stratified else None, []).append(place)
        self._groups = groups

    def draw(self, count: int, draw: int, row: int, question: FewShotQuestion) -> list[int]:
        """Places in `train` of `count` examples for a question that stands in `row` of its file. Raises DataError."""
        if count == 0:
            return []
        random = Random(f"{self.seed} {draw} {row}" if self.per_question else f"{self.seed} {draw}")
        places: list[int] = []
        for place in self._order(random):
            if self.train.each[place].fields != question.fields:
                places.append(place)
            if len(places) == count:
                return places
        raise DataError(
            f"'{self.name}' has {len(self.train)} training rows, too few to show {count} examples; lower few_shot.shots"
        )

    def _order(self, random: Random) -> Iterator[int]:
        """All places in random order; with classes, one of each in turn."""
        keys: list[int | None] = sorted(self._groups, key=lambda key: -1 if key is None else key)
        random.shuffle(keys)
        parts = [_shuffled(self._groups[key], random) for key in keys]
        while parts:
            for part in list(parts):
                try:
                    yield next(part)
                except StopIteration:
                    parts.remove(part)


def _shuffled(places: Sequence[int], random: Random) -> Iterator[int]:
    """The places one by one in random order, without making all of it (Fisher and Yates, with a map of what moved)."""
    moved: dict[int, int] = {}
    for first in range(len(places)):
        other = random.randrange(first, len(places))
        yield places[moved.get(other, other)]
        moved[other] = moved.get(first, first)


@dataclass(frozen=True)
class AskedPrompt:
    """A question with the examples that stand before it."""

    question: FewShotQuestion
    prompt: PromptTemplate
    examples: tuple[FewShotQuestion, ...]
    dropped: int = 0
    """Examples that found no room."""
    cut: bool = False
    """Whether the question itself loses its beginning."""

    def text(self, question: FewShotQuestion | None = None) -> tuple[str, str]:
        """(what stands before the answer, what stands behind it), of this question or of another in its place."""
        shown = [self.prompt.answered(each.fields, each.answer or "") for each in self.examples]
        before, after = self.prompt.asked((question or self.question).fields)
        return self.prompt.description + self.prompt.separator.join([*shown, before]), after

    def continuations(self, question: FewShotQuestion | None = None) -> list[Continuation]:
        """The text with each of the possible answers."""
        before, after = self.text(question)
        return [Continuation(before, option, after) for option in self.question.options]


def asked(
    reader: LikelihoodReader,
    prompt: PromptTemplate,
    question: FewShotQuestion,
    examples: Sequence[FewShotQuestion],
    room: int | None = None,
) -> AskedPrompt:
    """The question with as many of the examples as fit, the last ones. `room` are the tokens of an answer that is
    written."""
    for dropped in range(len(examples) + 1):
        asked_prompt = AskedPrompt(question, prompt, tuple(examples[dropped:]), dropped)
        if not reader.excess(_longest(reader, asked_prompt, room)):
            return asked_prompt
    return AskedPrompt(question, prompt, (), len(examples), cut=True)


def _longest(reader: LikelihoodReader, asked_prompt: AskedPrompt, room: int | None) -> Encoded:
    if room is not None:
        return Encoded(reader.context(asked_prompt.text()[0]), (0,) * room)
    return reader.encode(max(asked_prompt.continuations(), key=lambda each: len(each.answer)))


def counts(prompts: Sequence[AskedPrompt]) -> dict[str, int]:
    """What found no room."""
    return {
        "examples_dropped": sum(each.dropped for each in prompts),
        "questions_with_fewer_examples": sum(each.dropped > 0 for each in prompts),
        "questions_cut": sum(each.cut for each in prompts),
    }

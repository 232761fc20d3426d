"""Prompts with answers that nobody has judged: the rows of a user's own file, and what a reward model says of them.

A row has a prompt and `completions` (a list of answers), one `completion`, or two answers that are called `chosen` and
`rejected` in any of the formats of `rows`. A score has no scale of its own: between answers to one prompt the
difference is what counts, and by Bradley and Terry's model (Luce's, where there are more than two) the softmax of the
scores is how likely each answer is preferred to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import DataError
from pipelines.core.interfaces import Head, Rows, Task
from pipelines.core.presentation import FormField, Number, Part, Sentence, bars, field_of
from pipelines.data.chat_formats import Dialogue, Unreadable
from pipelines.metrics.calibration import softmax
from pipelines.tasks.base import LabelledTask
from pipelines.tasks.predictions import SplitPredictions
from pipelines.tasks.preference.rows import ComparedAnswers, answered, columns_of, detect, read, refuse_empty
from pipelines.tasks.scored_examples import Columns

if TYPE_CHECKING:
    from datasets import Dataset

Way = Literal["completions", "completion", "pair"]
"""How the answers of a file's rows are written."""
WAYS: tuple[tuple[str, ...], ...] = (
    ("prompt", "completions"),
    ("prompt", "completion"),
    ("prompt", "chosen", "rejected"),
)
"""The columns of a row, in each way, what a form asks for first."""
SIDES = ("chosen", "rejected")
FORM: tuple[FormField, ...] = (
    field_of("prompt"),
    field_of("completions", "Two to four; those that stay empty are left out.", control="texts", low=2, high=4),
)
EXAMPLES: tuple[tuple[str, list[str]], ...] = (
    ("How long do I boil an egg?", ["Seven minutes for a firm white and a soft yolk.", "Eggs are eggs."]),
    ("Name a city in Italy.", ["Turin.", "Italy is a country in the south of Europe.", "I do not know."]),
)
MEANING = (
    "A score has no scale of its own: only differences between answers to the same prompt mean something. The "
    "percentages are how likely each answer is preferred to the others, by the model of Bradley and Terry."
)


@dataclass(frozen=True)
class CandidateRows(Rows):
    """Prompts with answers: `texts` are the prompts as people read them, `pairs` and `labels` are None."""

    answers: Sequence[Sequence[Dialogue]] = ()
    """The answers to each prompt, each behind it; at least one."""
    way: Way = "completions"
    truncated: int = 0
    """Answers of which the model did not read all, or not all of their prompt."""

    def in_turns(self) -> Self:
        """The same for a chat template, where they were single texts."""
        return replace(self, answers=[[each.in_turns() for each in row] for row in self.answers])


@dataclass(frozen=True)
class CandidateTask(LabelledTask):
    """A task whose rows are such."""

    @classmethod
    def of(cls, task: LabelledTask) -> CandidateTask:
        """The same data as that of `task`, without what was judged."""
        return cls(**{each.name: getattr(task, each.name) for each in fields(LabelledTask)})

    def _needs_labels(self, split: str) -> bool:
        """The columns are known once the way is."""
        return False

    @property
    def head(self) -> Head:
        """The head that gives a number a text."""
        return Head("reward")

    def rows(self, split: str, limit: int | None = None) -> CandidateRows:
        """The prompts of a split with their answers, the first `limit` of them. Raises DataError."""
        data, index, described = self._read(split)
        index = index[:limit]
        return read_candidates(data.select(index) if len(index) < len(data) else data, index, described)


def read_candidates(data: Dataset, index: Sequence[int], described: str) -> CandidateRows:
    """The rows of `data`, whose numbers in the file are `index`. Raises DataError."""
    names = list(data.column_names)
    try:
        way, format, columns = _way(names, data[0] if len(data) else {})
    except Unreadable as problem:
        raise DataError(f"{described} {problem}") from None
    cells = [data[column][:] for column in columns.values()]
    rows: list[list[Dialogue]] = []
    for number, row in zip(index, zip(*cells, strict=True), strict=True):
        try:
            rows.append(_answers(way, format, dict(zip(columns, row, strict=True))))
        except Unreadable as problem:
            raise DataError(
                f"{described}, row {number + 1} (the first is 1), {problem}; correct or remove the row"
            ) from None
    return CandidateRows([row[0].prompt for row in rows], None, None, list(index), rows, way)


def _way(names: Sequence[str], first: Mapping[str, object]) -> tuple[Way, str, dict[str, str]]:
    """How the answers are written, the format of pairs, and the column behind each name. Raises Unreadable."""
    ways: tuple[Way, ...] = ("completions", "completion")
    if not set(SIDES) <= set(names) and "prompt" in names:
        for way in ways:
            if way in names:
                return way, "", {name: name for name in ("prompt", way, "system") if name in names}
    try:
        format = detect(names, first, {})
        return "pair", format, columns_of(format, names, {})
    except Unreadable:
        known = "; or ".join(", ".join(each) for each in WAYS)
        raise Unreadable(f"has the columns {', '.join(names)}, and a reward model reads {known}") from None


def _answers(way: Way, format: str, cells: Mapping[str, Any]) -> list[Dialogue]:
    if way == "pair":
        pair = read(format, cells)
        assert isinstance(pair, ComparedAnswers)
        return [pair.chosen, pair.rejected]
    if way == "completions":
        given = cells["completions"]
        if not isinstance(given, list) or not given:
            raise Unreadable(f"holds {str(given)[:40]!r} in the column 'completions', must be a list of answers")
        found = [answered(cells, cells["prompt"], each, "completions") for each in given]
    else:
        found = [answered(cells, cells["prompt"], cells["completion"], "completion")]
    for each in found:
        refuse_empty(each, way)
    return found


@dataclass(frozen=True)
class CandidatePredictions(SplitPredictions):
    """The score of each answer."""

    scores: Sequence[NDArray[np.float32]]
    """Of each row's answers (answers,), in their order."""

    @property
    def labels(self) -> None:
        """Nobody has judged them."""
        return None

    @property
    def answers(self) -> NDArray[np.int64]:
        """The number of the best answer of each row, from 0."""
        return np.asarray([int(each.argmax()) for each in self.scores], dtype=np.int64)

    def columns(self, task: Task) -> Columns:
        rows: Any = self.rows
        texts = [[each.completion for each in row] for row in rows.answers]
        if rows.way == "completion":
            return self.inputs() | {
                "completion": [row[0] for row in texts],
                "prediction": [float(each[0]) for each in self.scores],
            }
        chances = [softmax(each) for each in self.scores]
        if rows.way == "completions":
            return self.inputs() | {
                "completions": texts,
                "prediction": self.answers.tolist(),
                "scores": [each.tolist() for each in self.scores],
                "probabilities": [each.tolist() for each in chances],
            }
        columns: Columns = {side: [row[at] for row in texts] for at, side in enumerate(SIDES)}
        columns |= {
            "prediction": [SIDES[at] for at in self.answers],
            "probability": [float(each.max()) for each in chances],
        }
        columns |= {f"score_{side}": [float(each[at]) for each in self.scores] for at, side in enumerate(SIDES)}
        return self.inputs() | columns

    def shown(self, task: Task, place: int = 0) -> tuple[Part, ...]:
        rows: Any = self.rows
        scores, texts = self.scores[place], [each.completion for each in rows.answers[place]]
        if len(scores) == 1:
            return (Number(title="Score", value=float(scores[0])), Sentence(text=MEANING))
        names = [f"score {score:.3g}" for score in scores]
        return (bars(names, softmax(scores).tolist(), "Which answer is preferred", texts), Sentence(text=MEANING))

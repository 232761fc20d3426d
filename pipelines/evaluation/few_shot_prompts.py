"""Prompts made of examples and a question, as long as the model can read.

Where the examples and the question do not fit, examples are dropped, the first one first. Where not even the question fits,
it loses its beginning; both are counted and told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.evaluation.few_shot_likelihood import Continuation, Encoded, Reader
from pipelines.evaluation.few_shot_questions import Question
from pipelines.evaluation.prompts import Prompt


@dataclass(frozen=True)
class Asked:
    """A question with the examples that stand before it."""

    question: Question
    prompt: Prompt
    examples: tuple[Question, ...]
    dropped: int = 0
    """Examples that found no room."""
    cut: bool = False
    """Whether the question itself loses its beginning."""

    def text(self, question: Question | None = None) -> tuple[str, str]:
        """(what stands before the answer, what stands behind it), of this question or of another in its place."""
        shown = [self.prompt.answered(each.fields, each.answer or "") for each in self.examples]
        before, after = self.prompt.asked((question or self.question).fields)
        return self.prompt.description + self.prompt.separator.join([*shown, before]), after

    def continuations(self, question: Question | None = None) -> list[Continuation]:
        """The text with each of the possible answers."""
        before, after = self.text(question)
        return [Continuation(before, option, after) for option in self.question.options]


def asked(reader: Reader, prompt: Prompt, question: Question, examples: Sequence[Question], room: int | None = None) -> Asked:
    """The question with as many of the examples as fit, the last ones. `room` are the tokens of an answer that is written."""
    for dropped in range(len(examples) + 1):
        found = Asked(question, prompt, tuple(examples[dropped:]), dropped)
        if not reader.excess(_longest(reader, found, room)):
            return found
    return Asked(question, prompt, (), len(examples), cut=True)


def _longest(reader: Reader, found: Asked, room: int | None) -> Encoded:
    if room is not None:
        return Encoded(reader.context(found.text()[0]), (0,) * room)
    return reader.encode(max(found.continuations(), key=lambda each: len(each.answer)))


def counts(prompts: Sequence[Asked]) -> dict[str, int]:
    """What found no room."""
    return {
        "examples_dropped": sum(each.dropped for each in prompts),
        "questions_with_fewer_examples": sum(each.dropped > 0 for each in prompts),
        "questions_cut": sum(each.cut for each in prompts),
    }

"""Examples for prompts, drawn by seed from a task's training rows, never from the rows that are scored.

The first k of a draw are the same however many more are asked for, so that one-shot and eight-shot prompts share their
first example. A training row that asks just what the question asks is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from pipelines.errors import DataError
from pipelines.evaluation.few_shot_questions import Question, Questions


class Examples:
    """The training rows, ready to be drawn from."""

    def __init__(self, name: str, train: Questions, seed: int, per_question: bool, stratified: bool) -> None:
        self.name = name
        self.train = train
        self.seed = seed
        self.per_question = per_question
        self.stratified = stratified
        groups: dict[int | None, list[int]] = {}
        for place, question in enumerate(train.each):
            groups.setdefault(question.group if stratified else None, []).append(place)
        self._groups = groups

    def draw(self, count: int, draw: int, row: int, question: Question) -> list[int]:
        """Places in `train` of `count` examples for a question that stands in `row` of its file. Raises DataError."""
        if count == 0:
            return []
        random = Random(f"{self.seed} {draw} {row}" if self.per_question else f"{self.seed} {draw}")
        found: list[int] = []
        for place in self._order(random):
            if self.train.each[place].fields != question.fields or not self.per_question:
                found.append(place)
            if len(found) == count:
                return found
        raise DataError(f"'{self.name}' has {len(self.train)} training rows, too few to show {count} examples; lower few_shot.shots")

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

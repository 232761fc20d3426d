"""Overlap of what is evaluated with what was trained on: exact duplicates, and runs of words that both have.

Brown et al. 2020, "Language Models are Few-Shot Learners", appendix C, arxiv.org/abs/2005.14165: an example counts as seen
when a run of N of its words stands in the training text, where N is the 5th percentile of the examples' lengths, but at
least 8 and at most 13 words. Shorter examples are compared as wholes only. Texts are compared by their words alone, in lower
case and without punctuation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.word_hashes import Hashes, batched, words_of

SHORTEST, LONGEST = 8, 13
"""Words of a run. GPT-3's bounds."""
PERCENTILE = 5
SIEVE_BITS = 24
"""Of the table that lets most runs pass by without a search: 16 MB."""


def run_length(words: NDArray[np.int64]) -> int:
    """N, from the lengths of the examples in words (examples,)."""
    return int(np.clip(np.floor(np.percentile(words, PERCENTILE)), SHORTEST, LONGEST)) if len(words) else LONGEST


@dataclass
class Seen:
    """A set of hashes that is looked for, and where each was found first."""

    wanted: Hashes
    """Sorted, each once."""
    where: NDArray[np.int16] = field(init=False)
    """For each: the number of the source that has it, -1 while none has."""
    sieve: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.where = np.full(len(self.wanted), -1, dtype=np.int16)
        self.sieve = np.zeros(1 << SIEVE_BITS, dtype=bool)
        self.sieve[self.wanted >> np.uint64(64 - SIEVE_BITS)] = True

    def look(self, hashes: Hashes, source: int) -> None:
        """Mark those of the wanted hashes that are among `hashes`."""
        if not len(self.wanted):
            return
        likely = hashes[self.sieve[hashes >> np.uint64(64 - SIEVE_BITS)]]
        place = np.minimum(np.searchsorted(self.wanted, likely), len(self.wanted) - 1)
        found = place[self.wanted[place] == likely]
        self.where[found[self.where[found] < 0]] = source

    def of(self, hashes: Hashes) -> NDArray[np.int16]:
        """Where each of these wanted hashes was found, -1 where nowhere."""
        found: NDArray[np.int16] = self.where[np.searchsorted(self.wanted, hashes)]
        return found


class Examined:
    """The examples that are evaluated, and which of them the training text holds.

    An example is a list of fields, such as the two texts of a pair: no run of words goes over from one to the next. `answers`
    that are texts are looked for in runs too, but do not make the whole another one.
    """

    def __init__(self, questions: Sequence[Sequence[str]], answers: Sequence[str] | None = None) -> None:
        self.whole = words_of([" ".join(fields) for fields in questions]).whole()
        examples = questions if answers is None else [[*fields, answer] for fields, answer in zip(questions, answers, strict=True)]
        self.examples = examples
        self.owner = np.repeat(np.arange(len(examples)), [len(fields) for fields in examples])
        words = words_of([field for fields in examples for field in fields])
        lengths = np.bincount(self.owner, weights=np.diff(words.starts), minlength=len(examples)).astype(np.int64)
        self.run = run_length(lengths)
        self.short = lengths < self.run
        self.hashes, first = words.runs(self.run)
        """Of every run of words."""
        self.of_example = self.owner[np.searchsorted(words.starts, first, side="right") - 1]
        """The example of every run."""
        self.wholes, self.runs = Seen(np.unique(self.whole)), Seen(np.unique(self.hashes))
        self.empty = lengths == 0

    def look(self, texts: Iterable[str], source: int) -> tuple[int, int]:
        """Look for the examples in training texts. Returns how many (texts, words) there were."""
        count = read = 0
        for batch in batched(texts):
            words = words_of(batch)
            self.wholes.look(words.whole(), source)
            self.runs.look(words.runs(self.run)[0], source)
            count, read = count + len(batch), read + len(words.hashes)
        return count, read

    @property
    def exact(self) -> NDArray[np.int16]:
        """The source that holds each example as a whole (examples,), -1 where none does."""
        return np.where(self.empty, -1, self.wholes.of(self.whole)).astype(np.int16)

    @property
    def partly(self) -> NDArray[np.int16]:
        """The source that holds a run of each example (examples,), -1 where none does."""
        found = np.full(len(self.examples), -1, dtype=np.int16)
        where = self.runs.of(self.hashes)
        seen = np.flatnonzero(where >= 0)[::-1]  # the first run of an example comes last, and stays
        found[self.of_example[seen]] = where[seen]
        return found

    def share(self) -> float:
        """Of all runs of all examples, the share that was found."""
        return float((self.runs.of(self.hashes) >= 0).mean()) if len(self.hashes) else 0.0

    def run_of(self, example: int) -> str:
        """The first run of an example that was found, as its words; empty where none was."""
        mine = np.flatnonzero(self.of_example == example)
        found = mine[self.runs.of(self.hashes[mine]) >= 0]
        if not len(found):
            return ""
        return _nth_run(self.examples[example], int(found[0] - mine[0]), self.run)


def _nth_run(fields: Sequence[str], number: int, length: int) -> str:
    """The words of the run with that number, over all fields."""
    for text in fields:
        words = _split(text)
        count = max(0, len(words) - length + 1)
        if number < count:
            return " ".join(words[number : number + length])
        number -= count
    return ""


def _split(text: str) -> list[str]:
    """The words of a text, as `word_hashes` tells them apart."""
    kept = "".join(letter if ord(letter) > 127 or letter.isalnum() else " " for letter in text.lower())
    return [word for word in kept.split(" ") if word]


def fields_of(rows: Any) -> list[list[str]]:
    """What is asked in each row: its texts and its options."""
    pairs, options = getattr(rows, "pairs", None), getattr(rows, "options", None)
    columns: list[Sequence[Any]] = [[[text] for text in rows.texts]]
    columns += [[[text] for text in pairs]] if pairs is not None else []
    columns += [options] if options else []
    return [[text for part in parts for text in part] for parts in zip(*columns, strict=True)]


def answers_of(rows: Any) -> list[str] | None:
    """The answers, where they are texts."""
    labels = rows.labels
    return [str(each) for each in labels] if labels is not None and len(labels) and isinstance(labels[0], str) else None

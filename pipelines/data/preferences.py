"""Rows of preferences: two answers to a prompt of which one is better, or single answers that are good or bad.

Bad rows (empty texts, the same answer twice, no common prompt, …) stop everything with the row's number and what to do,
unless the recipe says `skip_bad_rows: true`: then they are counted and named with their reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from pipelines.data import preference_formats as formats
from pipelines.data.chat_formats import Dialogue, Unreadable
from pipelines.data.preference_formats import LABELLED, Comparison, Judged
from pipelines.errors import DataError
from pipelines.protocols import Rows

if TYPE_CHECKING:
    from datasets import Dataset

NAMED = 5
"""Rows that a warning about skipped rows names."""


@dataclass(frozen=True)
class PreferenceRows(Rows):
    """Pairs of answers: `texts` are the prompts as people read them, `pairs` is None, `labels` are 0: the first of the two is better."""

    chosen: Sequence[Dialogue] = ()
    """The better answers, each behind its prompt."""
    rejected: Sequence[Dialogue] = ()
    """The worse answers behind the same prompts: all messages but the last are those of `chosen`."""
    margins: Sequence[float] | None = None
    """By how much each chosen answer is better; None where the data does not say."""
    probabilities: Sequence[float] | None = None
    """How likely each chosen answer is the better one; None where the data does not say."""
    skipped: Mapping[int, str] = field(default_factory=dict)
    """Why a row was left out, by its number in the file, from 0."""
    format: str = ""
    """The format the rows were read in."""

    def in_turns(self) -> Self:
        """The same for a chat template, where they were single texts."""
        chosen, rejected = ([each.in_turns() for each in side] for side in (self.chosen, self.rejected))
        return replace(self, chosen=chosen, rejected=rejected)


@dataclass(frozen=True)
class LabelledRows(Rows):
    """Single answers: `texts` are the prompts, `labels` are 1 for a good answer and 0 for a bad one."""

    dialogues: Sequence[Dialogue] = ()
    """What is judged, one a row."""
    skipped: Mapping[int, str] = field(default_factory=dict)
    """Why a row was left out, by its number in the file, from 0."""
    format: str = LABELLED
    """The format the rows were read in."""

    def in_turns(self) -> Self:
        """The same for a chat template, where they were single texts."""
        return replace(self, dialogues=[each.in_turns() for each in self.dialogues])


def read_rows(
    data: Dataset, index: Sequence[int], described: str, format: str | None = None, names: Mapping[str, str] | None = None,
    skip_bad_rows: bool = False, limit: int | None = None,
) -> PreferenceRows | LabelledRows:  # fmt: skip
    """The rows of `data`, whose numbers in the file are `index`; the first `limit` that can be read. Raises DataError."""
    names = names or {}
    columns = list(data.column_names)
    try:
        name = format or formats.detect(columns, data[0] if len(data) else {}, names)
        wanted = formats.columns_of(name, columns, names)
    except Unreadable as problem:
        raise DataError(f"{described} {problem}") from None
    kept: list[int] = []
    found: list[Comparison | Judged] = []
    skipped: dict[int, str] = {}
    for number, cells in zip(index, _cells(data, wanted), strict=True):
        if limit is not None and len(found) == limit:
            break
        try:
            found.append(formats.read(name, cells))
            kept.append(number)
        except Unreadable as problem:
            if not skip_bad_rows:
                raise DataError(
                    f"{described}, row {number + 1} (the first is 1), {problem}; correct or remove the row, or leave all such rows "
                    "out with skip_bad_rows: true"
                ) from None
            skipped[number] = str(problem)
    if skipped and not found:
        raise DataError(f"{described} has no row that can be read: {told(skipped, len(data))}")
    if name == LABELLED:
        return labelled([each for each in found if isinstance(each, Judged)], kept, skipped)
    return compared([each for each in found if isinstance(each, Comparison)], kept, skipped, name)


def compared(found: Sequence[Comparison], index: Sequence[int], skipped: Mapping[int, str], name: str) -> PreferenceRows:
    """Comparisons as rows."""
    margins = [each.margin for each in found if each.margin is not None]
    chances = [each.probability for each in found if each.probability is not None]
    return PreferenceRows(
        [each.chosen.prompt for each in found], None, [0] * len(found), list(index), [each.chosen for each in found],
        [each.rejected for each in found], margins if margins and len(margins) == len(found) else None,
        chances if chances and len(chances) == len(found) else None, dict(skipped), name,
    )  # fmt: skip


def labelled(found: Sequence[Judged], index: Sequence[int], skipped: Mapping[int, str]) -> LabelledRows:
    """Judged answers as rows."""
    return LabelledRows(
        [each.dialogue.prompt for each in found], None, [int(each.good) for each in found], list(index),
        [each.dialogue for each in found], dict(skipped),
    )  # fmt: skip


def split_in_two(rows: PreferenceRows) -> LabelledRows:
    """Each pair as a good and a bad answer, one behind the other: what losses on single answers learn from pairs."""
    both = [each for pair in zip(rows.chosen, rows.rejected, strict=True) for each in pair]
    return LabelledRows(
        [text for text in rows.texts for _ in range(2)], None, [1, 0] * len(rows), [number for number in rows.index for _ in range(2)],
        both, rows.skipped, rows.format,
    )  # fmt: skip


def joined(parts: Sequence[PreferenceRows]) -> PreferenceRows:
    """Rows of several files, one after another, numbered on. Margins and probabilities stay only where every part has them."""
    if len(parts) == 1:
        return parts[0]
    numbers: list[int] = []
    skipped: dict[int, str] = {}
    past = 0
    for part in parts:
        numbers += [past + number for number in part.index]
        skipped |= {past + number: why for number, why in part.skipped.items()}
        past += max([*part.index, *part.skipped, -1]) + 1
    margins = None if any(part.margins is None for part in parts) else [margin for part in parts for margin in part.margins or ()]
    chances = None if any(part.probabilities is None for part in parts) else [chance for part in parts for chance in part.probabilities or ()]
    return PreferenceRows(
        [text for part in parts for text in part.texts], None, [0] * len(numbers), numbers, [each for part in parts for each in part.chosen],
        [each for part in parts for each in part.rejected], margins, chances, skipped,
        "+".join(dict.fromkeys(part.format for part in parts)),
    )  # fmt: skip


def told(skipped: Mapping[int, str], of: int) -> str:
    """The sentence about rows that were left out: how many, and the first of them by number and reason."""
    first = "; ".join(f"row {number + 1} {why}" for number, why in islice(skipped.items(), NAMED))
    more = f"; and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
    return f"{len(skipped)} of {of} rows are left out (the first row is 1): {first}{more}"


def _cells(data: Dataset, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """The cells of every row, by the format's names."""
    cells = [data[column][:] for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)]

r"""Preferences as rows: how data sets write down which of two answers is better, and one form for all.

Known formats: `prompt_chosen_rejected` (TRL's explicit prompt, of texts or of lists of messages), `chosen_rejected`
(TRL's implicit prompt: two lists of messages that begin alike), `transcripts` (Bai et al. 2022, "Training a Helpful
and Harmless Assistant", arxiv.org/abs/2204.05862: two texts of `\n\nHuman: … \n\nAssistant: …` turns that begin
alike) and, for single answers that are good or bad, `prompt_completion_label` (TRL's unpaired form); `openai` is what
OpenAI's API fine-tunes by dpo on: `input` with `messages`, `preferred_output` and `non_preferred_output`, a message
each. The format is told by the columns, and by the first row where columns leave it open.

Bad rows (empty texts, the same answer twice, no common prompt, …) stop everything with the row's number and what to do,
unless the recipe says `skip_bad_rows: true`: then they are counted and named with their reasons.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from pipelines.core.errors import DataError
from pipelines.core.interfaces import Rows
from pipelines.data.chat_formats import Dialogue, Unreadable, columns_behind, messages_of, no_format

if TYPE_CHECKING:
    from datasets import Dataset


FormatName = Literal["prompt_chosen_rejected", "chosen_rejected", "transcripts", "openai", "prompt_completion_label"]
FORMATS: tuple[str, ...] = get_args(FormatName)
LABELLED = "prompt_completion_label"
"""The format whose rows are single answers."""
EXTRAS = ("margin", "score_chosen", "score_rejected", "probability", "ended_chosen", "ended_rejected")
"""Columns that tell by how much an answer is better, how sure a judge was that it is, and whether the writer came
to an end."""
COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "prompt_chosen_rejected": (("prompt", "chosen", "rejected"), ("system", *EXTRAS)),
    "chosen_rejected": (("chosen", "rejected"), ("system", *EXTRAS)),
    "transcripts": (("chosen", "rejected"), EXTRAS),
    "openai": (("input", "preferred_output", "non_preferred_output"), ()),
    LABELLED: (("prompt", "completion", "label"), ("system",)),
}
"""By format: the columns that it must have, and those that it may have."""

TURN = re.compile(r"\n\n(Human|Assistant):")
"""What begins a turn of a transcript."""
SPEAKERS = {"Human": "user", "Assistant": "assistant"}
GOOD, BAD = ("true", "1", "good", "yes", "desirable", "chosen"), ("false", "0", "bad", "no", "undesirable", "rejected")
"""What labels of files without types may say."""


@dataclass(frozen=True)
class ComparedAnswers:
    """Two answers to the same prompt; the messages before the last are the same."""

    chosen: Dialogue
    rejected: Dialogue
    margin: float | None = None
    """By how much the chosen answer is better; None where the row does not say."""
    probability: float | None = None
    """How likely the chosen answer is the better one; None where the row does not say."""


@dataclass(frozen=True)
class LabelledAnswer:
    """One answer that is good or bad."""

    dialogue: Dialogue
    good: bool


def detect(columns: Sequence[str], first: Mapping[str, object], given: Mapping[str, str]) -> str:
    """The format of rows with these columns. `given` are the format's names for them. Raises Unreadable."""
    names = {*columns, *given}
    if {"chosen", "rejected"} <= names:
        if "prompt" in names:
            return "prompt_chosen_rejected"
        cell = first.get(given.get("chosen", "chosen"))
        if isinstance(cell, list):
            return "chosen_rejected"
        if isinstance(cell, str) and TURN.search(cell):
            return "transcripts"
        raise Unreadable(
            "has the columns chosen and rejected but no prompt, and the first row is neither a list of "
            "messages nor a transcript of "
            "'\\n\\nHuman:' and '\\n\\nAssistant:' turns; name the column of the prompt: columns: {prompt: question}"
        )
    for name in ("openai", LABELLED):
        if set(COLUMNS[name][0]) <= names:
            return name
    raise Unreadable(no_format(columns, COLUMNS, "{prompt: question, chosen: better, rejected: worse}"))


def columns_of(name: str, columns: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """The column behind each of the format's names. Raises Unreadable where one is missing."""
    return columns_behind(name, COLUMNS[name], columns, given)


def read(name: str, cells: Mapping[str, object]) -> ComparedAnswers | LabelledAnswer:
    """One row. `cells` are by the format's own names. Raises Unreadable."""
    return READERS[name](cells)


def _explicit(cells: Mapping[str, object]) -> ComparedAnswers:
    prompt, chosen, rejected = cells.get("prompt"), cells.get("chosen"), cells.get("rejected")
    if isinstance(chosen, list) and isinstance(rejected, list) and _includes_prompt(prompt, chosen, rejected):
        return _implicit(cells)
    pair = [answered(cells, prompt, answer, column) for column, answer in (("chosen", chosen), ("rejected", rejected))]
    return _compared(pair[0], pair[1], cells)


def _includes_prompt(prompt: object, chosen: list[object], rejected: list[object]) -> bool:
    """Whether the lists of messages begin with the prompt again, as UltraFeedback's do."""
    if not chosen or not rejected or chosen[0] != rejected[0] or not isinstance(chosen[0], Mapping):
        return False
    return isinstance(prompt, str) or (isinstance(prompt, list) and bool(prompt) and chosen[: len(prompt)] == prompt)


def _implicit(cells: Mapping[str, object]) -> ComparedAnswers:
    chosen, rejected = (messages_of(column, cells.get(column)) for column in ("chosen", "rejected"))
    common = sum(1 for _ in _alike(chosen, rejected))
    if common == 0:
        raise Unreadable("has answers to different prompts: the messages of chosen and rejected do not begin alike")
    if chosen == rejected:
        raise Unreadable("has the same text as chosen and as rejected")
    if len(chosen) != common + 1 or len(rejected) != common + 1:
        raise Unreadable(
            "has no common prompt: chosen and rejected must be the same messages but for the last, the answer"
        )
    return _compared(_dialogue(cells, chosen), _dialogue(cells, rejected), cells)


def _alike(chosen: Sequence[object], rejected: Sequence[object]) -> Any:
    for one, other in zip(chosen, rejected, strict=False):
        if one != other:
            return
        yield one


def _transcripts(cells: Mapping[str, object]) -> ComparedAnswers:
    """Split where the last shared `Assistant:` ends. A chosen and a rejected text may go on with further turns:
    they are part of the answer."""
    chosen, rejected = _text(cells, "chosen"), _text(cells, "rejected")
    if chosen == rejected:
        raise Unreadable("has the same text as chosen and as rejected")
    shared = chosen[: sum(1 for _ in _alike(chosen, rejected))]
    turns = list(TURN.finditer(shared))
    last = next((turn for turn in reversed(turns) if turn[1] == "Assistant"), None)
    if last is None or not turns or chosen[: turns[0].start()].strip():
        raise Unreadable(
            "has no common prompt: chosen and rejected must begin alike, up to and with an '\\n\\nAssistant:'"
        )
    before = [turn for turn in turns if turn.start() < last.start()]
    ends = [*(turn.start() for turn in before[1:]), last.start()]
    messages = tuple(
        {"role": SPEAKERS[turn[1]], "content": shared[turn.end() : end].strip()}
        for turn, end in zip(before, ends, strict=True)
    )
    if not any(each["content"] for each in messages):
        raise Unreadable("has an empty prompt")
    pair = [
        Dialogue(
            (*messages, {"role": "assistant", "content": text[last.end() :].strip()}), (*[False] * len(messages), True)
        )
        for text in (chosen, rejected)
    ]
    return _compared(pair[0], pair[1], cells)


def _openai(cells: Mapping[str, object]) -> ComparedAnswers:
    cell = cells.get("input")
    prompt = messages_of("input.messages", cell.get("messages") if isinstance(cell, Mapping) else cell)
    chosen, rejected = (
        answered(cells, prompt, messages_of(column, cells.get(column)), column)
        for column in ("preferred_output", "non_preferred_output")
    )
    return _compared(chosen, rejected, cells)


def _labelled(cells: Mapping[str, object]) -> LabelledAnswer:
    dialogue = answered(cells, cells.get("prompt"), cells.get("completion"), "completion")
    label = cells.get("label")
    good = (
        label
        if isinstance(label, bool)
        else {**dict.fromkeys(GOOD, True), **dict.fromkeys(BAD, False)}.get(str(label).strip().lower())
    )
    if good is None:
        raise Unreadable(f"has the label {str(label)[:40]!r}, must be true (a good answer) or false (a bad one)")
    refuse_empty(dialogue, "completion")
    return LabelledAnswer(dialogue, good)


def answered(cells: Mapping[str, object], prompt: object, answer: object, column: str) -> Dialogue:
    """A prompt and one answer, each a text or a list of messages. Two texts are joined as they are, without a
    template."""
    if isinstance(prompt, list) or isinstance(answer, list):
        before = messages_of("prompt", prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}])
        after = messages_of(column, answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}])
        if len(after) != 1 or after[0]["role"] != "assistant":
            raise Unreadable(f"has {len(after)} messages in the column '{column}', must be one, of the assistant")
        return _dialogue(cells, [*before, *after])
    messages = [
        {"role": "user", "content": _text(cells, "prompt")},
        {"role": "assistant", "content": _text({column: answer}, column)},
    ]
    opened = _opened(cells, messages)
    return Dialogue(tuple(opened), (*[False] * (len(opened) - 1), True), templated=len(opened) > 2)


def _dialogue(cells: Mapping[str, object], messages: Sequence[Mapping[str, object]]) -> Dialogue:
    if messages[-1]["role"] != "assistant":
        raise Unreadable(f"ends with a message of the {messages[-1]['role']}, must end with the assistant's answer")
    opened = _opened(cells, messages)
    return Dialogue(tuple(opened), (*[False] * (len(opened) - 1), True))


def _opened(cells: Mapping[str, object], messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, Any]]:
    """The messages behind what the column `system` says, where there is one."""
    system = cells.get("system")
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        return [{"role": "system", "content": system}, *messages]
    return list(messages)


def _compared(chosen: Dialogue, rejected: Dialogue, cells: Mapping[str, object]) -> ComparedAnswers:
    refuse_empty(chosen, "chosen")
    refuse_empty(rejected, "rejected")
    if chosen.completion == rejected.completion:
        raise Unreadable("has the same text as chosen and as rejected")
    chosen, rejected = (
        replace(dialogue, cut=cells.get(f"ended_{side}") is False)
        for side, dialogue in (("chosen", chosen), ("rejected", rejected))
    )
    return ComparedAnswers(chosen, rejected, _margin(cells), _probability(cells))


def refuse_empty(dialogue: Dialogue, column: str) -> None:
    """Raise Unreadable where the prompt or the answer says nothing."""
    if not dialogue.completion.strip():
        raise Unreadable(f"has an empty answer in the column '{column}'")
    if not any(str(each["content"]).strip() for each in dialogue.messages[:-1]):
        raise Unreadable("has an empty prompt")


def _margin(cells: Mapping[str, object]) -> float | None:
    """The column `margin`, else what the two scores differ by."""
    if cells.get("margin") is not None:
        return _number(cells, "margin")
    if cells.get("score_chosen") is not None and cells.get("score_rejected") is not None:
        return _number(cells, "score_chosen") - _number(cells, "score_rejected")
    return None


def _probability(cells: Mapping[str, object]) -> float | None:
    if cells.get("probability") is None:
        return None
    value = _number(cells, "probability")
    if not 0 <= value <= 1:
        raise Unreadable(f"holds {value:g} in the column 'probability', must be from 0 to 1")
    return value


def _number(cells: Mapping[str, Any], column: str) -> float:
    try:
        value = float(cells[column])
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise Unreadable(f"holds {str(cells[column])[:40]!r} in the column '{column}', must be a finite number")
    return value


def _text(cells: Mapping[str, object], column: str) -> str:
    value = cells.get(column)
    if not isinstance(value, str):
        given = "nothing" if value is None else f"{str(value)[:40]!r} ({type(value).__name__})"
        raise Unreadable(f"holds {given} in the column '{column}', must be a text")
    return value


READERS: dict[str, Callable[[Mapping[str, Any]], ComparedAnswers | LabelledAnswer]] = {
    "prompt_chosen_rejected": _explicit,
    "chosen_rejected": _implicit,
    "transcripts": _transcripts,
    "openai": _openai,
    LABELLED: _labelled,
}
"""How each format is read."""


NAMED = 5
"""Rows that a warning about skipped rows names."""


@dataclass(frozen=True)
class PreferenceRows(Rows):
    """Pairs of answers: `texts` are the prompts as people read them, `pairs` is None, `labels` are 0: the first of
    the two is better."""

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
    data: Dataset,
    index: Sequence[int],
    described: str,
    format: str | None = None,
    names: Mapping[str, str] | None = None,
    skip_bad_rows: bool = False,
    limit: int | None = None,
) -> PreferenceRows | LabelledRows:
    """The rows of `data`, whose numbers in the file are `index`; the first `limit` that can be read. Raises
    DataError."""
    names = names or {}
    columns = list(data.column_names)
    try:
        name = format or detect(columns, data[0] if len(data) else {}, names)
        wanted = columns_of(name, columns, names)
    except Unreadable as problem:
        raise DataError(f"{described} {problem}") from None
    row_numbers: list[int] = []
    examples: list[ComparedAnswers | LabelledAnswer] = []
    skipped: dict[int, str] = {}
    for number, cells in zip(index, _cells(data, wanted), strict=True):
        if limit is not None and len(examples) == limit:
            break
        try:
            examples.append(read(name, cells))
            row_numbers.append(number)
        except Unreadable as problem:
            if not skip_bad_rows:
                raise DataError(
                    f"{described}, row {number + 1} (the first is 1), {problem}; correct or remove the row, "
                    "or leave all such rows "
                    "out with skip_bad_rows: true"
                ) from None
            skipped[number] = str(problem)
    if skipped and not examples:
        raise DataError(f"{described} has no row that can be read: {told(skipped, len(data))}")
    if name == LABELLED:
        return labelled([each for each in examples if isinstance(each, LabelledAnswer)], row_numbers, skipped)
    return compared([each for each in examples if isinstance(each, ComparedAnswers)], row_numbers, skipped, name)


def compared(
    comparisons: Sequence[ComparedAnswers], index: Sequence[int], skipped: Mapping[int, str], name: str
) -> PreferenceRows:
    """Comparisons as rows."""
    margins = [each.margin for each in comparisons if each.margin is not None]
    chances = [each.probability for each in comparisons if each.probability is not None]
    return PreferenceRows(
        [each.chosen.prompt for each in comparisons],
        None,
        [0] * len(comparisons),
        list(index),
        [each.chosen for each in comparisons],
        [each.rejected for each in comparisons],
        margins if margins and len(margins) == len(comparisons) else None,
        chances if chances and len(chances) == len(comparisons) else None,
        dict(skipped),
        name,
    )


def labelled(answers: Sequence[LabelledAnswer], index: Sequence[int], skipped: Mapping[int, str]) -> LabelledRows:
    """Judged answers as rows."""
    return LabelledRows(
        [each.dialogue.prompt for each in answers],
        None,
        [int(each.good) for each in answers],
        list(index),
        [each.dialogue for each in answers],
        dict(skipped),
    )


def split_in_two(rows: PreferenceRows) -> LabelledRows:
    """Each pair as a good and a bad answer, one behind the other: what losses on single answers learn from pairs."""
    both = [each for pair in zip(rows.chosen, rows.rejected, strict=True) for each in pair]
    return LabelledRows(
        [text for text in rows.texts for _ in range(2)],
        None,
        [1, 0] * len(rows),
        [number for number in rows.index for _ in range(2)],
        both,
        rows.skipped,
        rows.format,
    )


def joined(parts: Sequence[PreferenceRows]) -> PreferenceRows:
    """Rows of several files, one after another, numbered on. Margins and probabilities stay only where every part
    has them."""
    if len(parts) == 1:
        return parts[0]
    numbers: list[int] = []
    skipped: dict[int, str] = {}
    past = 0
    for part in parts:
        numbers += [past + number for number in part.index]
        skipped |= {past + number: why for number, why in part.skipped.items()}
        past += max([*part.index, *part.skipped, -1]) + 1
    margins = (
        None
        if any(part.margins is None for part in parts)
        else [margin for part in parts for margin in part.margins or ()]
    )
    chances = (
        None
        if any(part.probabilities is None for part in parts)
        else [chance for part in parts for chance in part.probabilities or ()]
    )
    return PreferenceRows(
        [text for part in parts for text in part.texts],
        None,
        [0] * len(numbers),
        numbers,
        [each for part in parts for each in part.chosen],
        [each for part in parts for each in part.rejected],
        margins,
        chances,
        skipped,
        "+".join(dict.fromkeys(part.format for part in parts)),
    )


def told(skipped: Mapping[int, str], of: int) -> str:
    """The sentence about rows that were left out: how many, and the first of them by number and reason."""
    first = "; ".join(f"row {number + 1} {why}" for number, why in islice(skipped.items(), NAMED))
    more = f"; and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
    return f"{len(skipped)} of {of} rows are left out (the first row is 1): {first}{more}"


def _cells(data: Dataset, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """The cells of every row, by the format's names."""
    cells = [data[column][:] for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)]

"""Prompts: what a policy is asked to go on from, as token ids and as people read it.

A plain text is cut to its first tokens, so that the model goes on in the middle of it. Messages are joined by a chat
template and are never cut, for the answer to half a question is worth nothing: those that are too long are left out
and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pipelines.core.config import Block
from pipelines.core.errors import DataError
from pipelines.data import chat_formats, chat_templates
from pipelines.data.chat_formats import Dialogue, Unreadable
from pipelines.data.chat_templates import TemplateName, prompt_of
from pipelines.data.licences import License
from pipelines.data.references import DataPath
from pipelines.data.sources import DataSource, check_columns, find

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from pipelines.core.interfaces import Context

OF_MESSAGES = ("messages", "conversations", "prompt")
"""Columns of questions, in the order in which they are looked for."""
PLAIN = 64
"""Tokens that a plain text is cut to where the recipe does not say."""
ASKED = 512
"""Tokens that a question may have where the recipe does not say."""
REACH = 12
"""Characters of a long text that are read for each token that is kept: a whole review need not be split for its
first words."""
SPARE = 16
"""Tokens that must follow the last one that is kept, so that what was not read cannot change it."""


class _WholeRows:
    """The rows of prompts with all their columns; where another process encoded the prompts, read when one is asked
    for."""

    def __init__(self, prompts: Prompts, data: Dataset | None) -> None:
        self.prompts, self.data = prompts, data

    def __reduce__(self) -> tuple[Any, ...]:
        return _WholeRows, (self.prompts, None)

    def __getitem__(self, place: int) -> Mapping[str, Any]:
        if self.data is None:
            self.data = self.prompts._rows()[3]
        row: Mapping[str, Any] = self.data[place]
        return row


class PromptText(str):
    """A prompt as people read it, that knows its messages, because another tokenizer may have another chat template,
    and its row, which graders read."""

    messages: tuple[Mapping[str, Any], ...]
    """What was said before the answer, each with `role` and `content`; empty for a plain text."""
    number: int | None
    """Of its row in the file, from 0."""
    _row: Callable[[], Mapping[str, Any]]

    def __new__(
        cls,
        text: str,
        messages: Sequence[Mapping[str, object]] = (),
        number: int | None = None,
        row: Callable[[], Mapping[str, Any]] = dict,
    ) -> PromptText:
        made = super().__new__(cls, text)
        made.messages = tuple(messages)
        made.number, made._row = number, row
        return made

    @property
    def row(self) -> Mapping[str, Any]:
        """The whole row that it stands in, every column; read when it is asked for."""
        return self._row()


@dataclass(frozen=True)
class PromptRows:
    """Prompts in the order of the file."""

    ids: Sequence[list[int]]
    """Token ids of each prompt, with what the tokenizer puts before a text (and behind it, for an encoder)."""
    texts: list[PromptText]
    index: list[int]
    """Row numbers in the file."""
    truncated: int = 0
    """Plain texts that were longer than the limit and lost their end."""
    left_out: tuple[int, ...] = ()
    """Row numbers of the questions that are longer than the limit, and of texts of which it leaves no token."""

    def __len__(self) -> int:
        return len(self.ids)


class Prompts(Block):
    """What is gone on from: `{path: reviews.jsonl, text: text, max_length: 16}`, or rows with `prompt` or
    `messages`."""

    path: DataPath
    """A file, folder or pattern (JSONL, JSON, CSV, TSV, Parquet, text), or a data set's name."""
    name: str | None = None
    """The configuration of a data set that has several."""
    split: str = Field("train", min_length=1)
    """The part that is read."""
    text: str | None = Field(None, min_length=1)
    """The column of plain texts, of which the first tokens are kept. Default: the messages in `messages`,
    `conversations` or `prompt` where there is such a column, else the column `text`."""
    max_length: int | None = Field(None, ge=1)
    """Tokens of a prompt, special ones included. Plain texts are cut there (default 64), longer questions left out
    (default 512)."""
    max_samples: int | None = Field(None, ge=1)
    """Take only so many rows, evenly spread over the file. Default: all."""
    chat_template: TemplateName | None = None
    """What joins messages. Default: the tokenizer's own; without one a `prompt` stays plain and messages are
    joined by `simple`."""
    license: License = None
    """Its licence as the Hub names it, for the cards of models that learnt from it. Default: what its own card says."""

    def content(self) -> str:
        """Content hash of what is read. Raises DataError."""
        parts = [self._source().content_hash(self.split)]
        if self.chat_template is not None:
            parts.append(chat_templates.content_of(self.chat_template))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def plain_texts(self) -> list[str]:
        """The whole texts, uncut, for a tokenizer to learn from. Raises DataError."""
        column, rows, described, _ = self._rows()
        return [_words(cell, described, number, column, system) for number, cell, system in rows if not _empty(cell)]

    def read_once(
        self, context: Context, tokenizer: PreTrainedTokenizerBase, encoder_decoder: bool = False
    ) -> PromptRows:
        """As `read`, for the processes of a stage: the main one encodes, and all map what came out. Called on every
        process."""
        from pipelines.data.ragged import made_once

        rows, tokenizer.chat_template = made_once(
            context, "prompts", lambda: (self.read(tokenizer, encoder_decoder), tokenizer.chat_template)
        )
        return rows

    def read(self, tokenizer: PreTrainedTokenizerBase, encoder_decoder: bool = False) -> PromptRows:
        """The prompts as `tokenizer` has them. For an encoder-decoder the prompt is the source. Raises DataError.

        A template that is asked for, or that messages need, becomes the tokenizer's own.
        """
        column, rows, described, data = self._rows()
        whole = _WholeRows(self, data)
        if self.chat_template is not None:
            chat_templates.adopt(tokenizer, self.chat_template)
        plain = column in (self.text, "text")
        index: list[int] = []
        dialogues: list[Dialogue | None] = []
        texts: list[str] = []
        sources: list[Callable[[], Mapping[str, Any]]] = []
        for place, (number, cell, system) in enumerate(rows):
            if _empty(cell):
                continue
            sources.append(partial(whole.__getitem__, place))
            dialogue = None if plain and isinstance(cell, str) else _dialogue(cell, described, number, column, system)
            if dialogue is not None and dialogue.templated and not tokenizer.chat_template:
                chat_templates.adopt(tokenizer, None)
            index.append(number)
            if dialogue is not None and tokenizer.chat_template:
                dialogue = dialogue.in_turns()
            dialogues.append(dialogue)
            texts.append(cell if dialogue is None else prompt_of(tokenizer, dialogue))
        if not texts:
            raise DataError(f"{described} has no prompt in the column '{column}': all its cells are empty")
        return self._encoded(tokenizer, index, dialogues, texts, sources, encoder_decoder, described)

    def _encoded(
        self,
        tokenizer: PreTrainedTokenizerBase,
        index: list[int],
        dialogues: list[Dialogue | None],
        texts: list[str],
        sources: list[Callable[[], Mapping[str, Any]]],
        encoder_decoder: bool,
        described: str,
    ) -> PromptRows:
        """Ids and readable texts, within the limits."""
        from pipelines.data.ragged import Ragged

        ids: list[list[int]] = []
        shown: list[PromptText] = []
        row_numbers: list[int] = []
        left_out: list[int] = []
        truncated = 0
        for place, (tokens, end, cut) in enumerate(
            _tokens(tokenizer, texts, dialogues, self.max_length, encoder_decoder)
        ):
            dialogue = dialogues[place]
            if dialogue is None and tokens:
                truncated += cut
                prompt = PromptText(texts[place][:end], (), index[place], sources[place])
            elif dialogue is None or cut:
                left_out.append(index[place])
                continue
            else:
                messages = dialogue.messages[:-1] if dialogue.templated else ()
                prompt = PromptText(dialogue.prompt, messages, index[place], sources[place])
            ids.append(tokens)
            shown.append(prompt)
            row_numbers.append(index[place])
        if not ids:
            raise DataError(
                f"{described} has {len(index)} prompts, all longer than {self.max_length or ASKED} tokens; "
                "raise max_length"
            )
        return PromptRows(Ragged.of(ids), shown, row_numbers, truncated, tuple(left_out))

    def _source(self) -> DataSource:
        return find(self.path, self.name)

    def _rows(self) -> tuple[str, list[tuple[int, Any, Any]], str, Dataset]:
        """(the column that is read, (row number, cell, system prompt) of each row, what the data is called in
        messages, the rows themselves)."""
        source = self._source()
        described = f"{source.describe()}, split '{self.split}',"
        data: Dataset = source.load(self.split)
        columns = list(data.column_names)
        column = self.text or next((each for each in OF_MESSAGES if each in columns), "text")
        check_columns((column,), columns, described)
        count = len(data)
        wanted = min(count, self.max_samples or count)
        index = [at * count // wanted for at in range(wanted)] if wanted else []
        if wanted < count:
            data = data.select(index)
        systems = data["system"][:] if self.text is None and "system" in columns else [None] * wanted
        return column, list(zip(index, data[column][:], systems, strict=True)), described, data


def _tokens(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    dialogues: Sequence[Dialogue | None],
    limit: int | None,
    encoder_decoder: bool,
) -> list[tuple[list[int], int, bool]]:
    """(ids within the limit, characters of the text that they cover, whether it was longer) of each prompt."""
    from pipelines.data.completions import opening_of
    from pipelines.data.encoding import CHUNK, settings_kept

    opening = [] if encoder_decoder else opening_of(tokenizer)
    encoded: list[tuple[list[int], int, bool]] = []
    with settings_kept(tokenizer):
        for start in range(0, len(texts), CHUNK):
            chunk = dialogues[start : start + CHUNK]
            limits = [limit or (PLAIN if dialogue is None else ASKED) for dialogue in chunk]
            for row, (ids, places) in enumerate(_ids(tokenizer, texts[start : start + CHUNK], limits, encoder_decoder)):
                dialogue = chunk[row]
                lead = opening if dialogue is None or not dialogue.templated else []
                behind = _closing(places) if encoder_decoder else 0
                room = max(0, limits[row] - len(lead) - behind)
                body = len(ids) - behind
                cut = body > room
                tokens = [*ids[:room], *ids[body:]] if cut else ids
                encoded.append(([*lead, *tokens], max((end for _, end in places[: min(room, body)]), default=0), cut))
    return encoded


def _ids(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], limits: list[int], special: bool
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """(ids, their places in the text) of each text; of much longer ones than its limit, only of a beginning that
    exceeds it."""
    heads = [text[: REACH * limit + REACH * SPARE] for text, limit in zip(texts, limits, strict=True)]
    encoded = _whole(tokenizer, heads, special)
    short = [
        at for at, (ids, _) in enumerate(encoded) if len(heads[at]) < len(texts[at]) and len(ids) < limits[at] + SPARE
    ]
    for at, whole in zip(short, _whole(tokenizer, [texts[at] for at in short], special), strict=True):
        encoded[at] = whole
    return encoded


def _whole(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], special: bool
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    if not texts:
        return []
    batch = tokenizer(
        texts,
        add_special_tokens=special,
        truncation=False,
        padding=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    return list(zip(batch["input_ids"], batch["offset_mapping"], strict=True))


def _closing(places: Sequence[tuple[int, int]]) -> int:
    """How many tokens at the end stand for no characters: what the tokenizer puts behind a text."""
    count = 0
    while count < len(places) and places[-1 - count][0] == places[-1 - count][1]:
        count += 1
    return count


def _dialogue(cell: object, described: str, number: int, column: str, system: object) -> Dialogue:
    """What is asked, with an empty answer behind it. Raises DataError."""
    cells = {"prompt": cell, "completion": "", "system": system}
    try:
        dialogue = chat_formats.read("prompt_completion", cells)
        before = list(dialogue.messages[:-1])
        while before and before[-1]["role"] == "assistant":  # the answer of the data set
            before.pop()
        if not before:
            raise Unreadable("asks nothing: no message is the user's")
    except Unreadable as problem:
        sentence = str(problem).replace("the column 'prompt'", f"the column '{column}'")
        raise DataError(f"{described} row {number + 1}, {sentence}") from None
    return Dialogue((*before, dialogue.messages[-1]), (*[False] * len(before), True), dialogue.templated)


def _words(cell: object, described: str, number: int, column: str, system: object) -> str:
    return cell if isinstance(cell, str) else _dialogue(cell, described, number, column, system).prompt


def _empty(cell: object) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())

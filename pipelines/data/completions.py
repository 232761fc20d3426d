"""Prompts and answers as token ids, of which the answers are learnt.

The model must meet at training what it meets when it is asked. A prompt is therefore split into tokens as it would be
alone: where a token of the whole text would reach from the prompt into the answer, the text is cut there first. The
end of a text is always learnt behind a last answer, and added where the template leaves it out; what only fills a
batch is told from it by its place, so that a tokenizer whose padding is its end of text loses neither.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import DataError, ModelError
from pipelines.core.interfaces import IGNORED
from pipelines.data.chat_formats import Dialogue
from pipelines.data.chat_templates import Rendered, TrainOn, render
from pipelines.data.encoding import CHUNK
from pipelines.data.packing import end_of_text
from pipelines.data.ragged import Ragged, padded

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Completions:
    """Tokenised dialogues, as columns. Those of which nothing is left to be learnt are not among them."""

    input_ids: Ragged
    labels: Ragged
    """The same ids, -100 where a token is not learnt."""
    index: list[int]
    """Row numbers in the file."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each row."""
    sizes: npt.NDArray[np.int64]
    """Bytes of the answers that are learnt (rows,)."""
    truncated: int
    """Rows that were longer than the limit and lost their end."""
    left_out: tuple[int, ...]
    """Row numbers of those of which no answer is left within the limit."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return {"input_ids": self.input_ids[position], "labels": self.labels[position], "index": self.index[position]}

    def select(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> Completions:
        """The rows at `positions`, in that order. `truncated` and `left_out` stay those of the whole."""
        chosen = np.asarray(positions, dtype=np.int64)
        places = chosen.tolist()
        return Completions(
            self.input_ids.take(chosen),
            self.labels.take(chosen),
            [self.index[place] for place in places],
            self.lengths[chosen],
            self.sizes[chosen],
            self.truncated,
            self.left_out,
        )


def encode_completions(
    tokenizer: PreTrainedTokenizerBase,
    dialogues: Sequence[Dialogue],
    index: Sequence[int],
    max_length: int,
    train_on: TrainOn = "completions",
    stops: Sequence[int] = (),
) -> Completions:
    """Tokens of every dialogue, cut behind `max_length`. `stops` end an answer beside the tokenizer's own end of text.

    Raises DataError where no row has anything left to learn.
    """
    end, opening = end_of_text(tokenizer), opening_of(tokenizer)
    parts: list[tuple[Ragged, Ragged]] = []
    row_numbers: list[int] = []
    sizes: list[int] = []
    left_out: list[int] = []
    truncated = 0
    for start in range(0, len(dialogues), CHUNK):
        ids: list[list[int]] = []
        labels: list[list[int]] = []
        texts = [render(tokenizer, each, train_on) for each in dialogues[start : start + CHUNK]]
        for place, row in enumerate(tokenised(tokenizer, texts, opening), start=start):
            tokens, wanted = ended(row.ids, row.learnt, row.text.answered, end, stops)
            truncated += len(tokens) > max_length
            tokens, wanted = tokens[:max_length], wanted[:max_length]
            row_labels = [token if learnt else IGNORED for token, learnt in zip(tokens, wanted, strict=True)]
            if not any(wanted[1:]):  # nothing stands before a first token that could name it
                left_out.append(index[place])
                continue
            ids.append(tokens)
            labels.append(row_labels)
            row_numbers.append(index[place])
            sizes.append(row.size_within(max_length))
        parts.append((Ragged.of(ids), Ragged.of(labels)))
    if not row_numbers and len(dialogues):
        raise DataError(
            f"no answer is left of any of the {len(dialogues)} rows: within {max_length} tokens there is only "
            "the prompt; raise max_length"
        )
    every_id, every_label = (Ragged.joined([part[column] for part in parts]) for column in range(2))
    return Completions(
        every_id,
        every_label,
        row_numbers,
        every_id.lengths,
        np.asarray(sizes, dtype=np.int64),
        truncated,
        tuple(left_out),
    )


def ended(
    ids: Sequence[int], learnt: Sequence[bool], answered: bool, end: int, stops: Sequence[int] = ()
) -> tuple[list[int], list[bool]]:
    """The tokens with the end of a text learnt behind every answer that it follows, and added behind the last if
    it is missing."""
    tokens, wanted = list(ids), list(learnt)
    for place in range(1, len(tokens)):
        if tokens[place] == end and wanted[place - 1]:
            wanted[place] = True
    if not answered:
        return tokens, wanted
    last = max((place for place, each in enumerate(wanted) if each), default=-1)
    ends = {end, *stops}
    if last >= 0 and tokens[last] in ends:
        return tokens, wanted
    recent = next((place for place in range(last, max(last - 3, -1), -1) if tokens[place] in ends), None)
    if recent is not None:  # only the line break behind it is left, which nobody will ever wait for
        return tokens[: recent + 1], wanted[: recent + 1]
    return [*tokens, end], [*wanted, True]


def opening_of(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What a tokenizer made for decoders puts before a text; one made for encoders, which also closes it, puts
    nothing."""
    whole, plain = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
    place = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
    return [] if whole[place + len(plain) :] else list(whole[:place])


@dataclass(frozen=True)
class TokenisedText:
    """A text as tokens."""

    text: Rendered
    ids: list[int]
    learnt: list[bool]
    """Which tokens belong to answers."""
    ends: list[int]
    """Characters after each token, 0 for those that stand before the text."""

    def size_within(self, max_length: int) -> int:
        """Bytes of the answers within the first `max_length` tokens."""
        if len(self.ids) <= max_length:
            return self.text.size
        seen = self.ends[max_length - 1]
        return sum(
            len(self.text.text[begin : min(end, seen)].encode()) for begin, end in self.text.spans if begin < seen
        )


def tokenised(tokenizer: PreTrainedTokenizerBase, texts: Sequence[Rendered], opening: list[int]) -> list[TokenisedText]:
    """The texts as tokens, prompts split as they would be alone; `opening` stands before those that no template
    made."""
    whole = _encoded(tokenizer, [each.text for each in texts])
    before = iter(_encoded(tokenizer, [each.text[:begin] for each in texts for begin, _ in each.spans])[0])
    rows = []
    for text, ids, offsets in zip(texts, *whole, strict=True):
        firsts: list[int | None] = []
        for _ in text.spans:
            prompt = next(before)
            firsts.append(len(prompt) if ids[: len(prompt)] == prompt else None)
        if None in firsts:
            ids, offsets, cut = _cut_first(tokenizer, text)
            firsts = list(cut)
        lead = opening if text.bare else []
        learnt = [False] * len(ids)
        for (_, end), first in zip(text.spans, firsts, strict=True):
            for place in range(first or 0, len(ids)):
                if offsets[place][0] >= end:
                    break
                learnt[place] = True
        rows.append(
            TokenisedText(
                text, [*lead, *ids], [False] * len(lead) + learnt, [0] * len(lead) + [each[1] for each in offsets]
            )
        )
    return rows


def _cut_first(
    tokenizer: PreTrainedTokenizerBase, text: Rendered
) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """The tokens of a text that is cut where answers begin, their places in the text, and the first token of each
    answer."""
    cuts = [0, *(begin for begin, _ in text.spans), len(text.text)]
    parts, places = _encoded(tokenizer, [text.text[low:high] for low, high in pairwise(cuts)])
    ids = [token for part in parts for token in part]
    offsets = [(low + begin, low + end) for low, part in zip(cuts, places, strict=False) for begin, end in part]
    counts = np.cumsum([len(part) for part in parts])
    return ids, offsets, [int(count) for count in counts[: len(text.spans)]]


def _encoded(
    tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    if not texts:
        return [], []
    batch = tokenizer(
        texts,
        add_special_tokens=False,
        truncation=False,
        padding=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    return batch["input_ids"], batch["offset_mapping"]


def padding_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """What fills a batch: padding, or, as it is told by its place, the end of texts. Raises ModelError."""
    token = next(
        (each for each in (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.sep_token_id) if each is not None),
        None,
    )
    if token is None:
        raise ModelError(
            "the tokenizer has neither a padding nor an eos token, which batches of unequal length need; set pad_token"
        )
    return int(token)


@dataclass(frozen=True)
class CompletionCollator:
    """The collator: rows filled up on the right, each label at the place from which it is named."""

    pad_id: int

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask`, and `labels`, -100 where the next token is not learnt, all (batch, length)."""
        import torch

        ids, real = padded((each["input_ids"] for each in examples), self.pad_id)
        labels, _ = padded((each["labels"] for each in examples), IGNORED)
        named = np.concatenate([labels[:, 1:], np.full((len(labels), 1), IGNORED, dtype=np.int64)], axis=1)
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(real),
            "labels": torch.from_numpy(named),
        }


def parted(
    tokenizer: PreTrainedTokenizerBase,
    dialogues: Sequence[Dialogue],
    stops: Sequence[int] = (),
    always_ended: bool = False,
) -> list[tuple[list[int], list[int]]]:
    """(tokens of the prompt, tokens of the last answer with the end of the text behind it) of each dialogue.

    An answer that stopped before its end has none behind it, unless `always_ended`.
    """
    end, opening = end_of_text(tokenizer), opening_of(tokenizer)
    pairs = []
    for start in range(0, len(dialogues), CHUNK):
        part = dialogues[start : start + CHUNK]
        texts = [render(tokenizer, each) for each in part]
        for dialogue, row in zip(part, tokenised(tokenizer, texts, opening), strict=True):
            tokens, wanted = ended(row.ids, row.learnt, row.text.answered, end, stops)
            first = next((at for at, learnt in enumerate(wanted) if learnt), len(tokens))
            past = next((at for at in range(len(tokens), first, -1) if wanted[at - 1]), first)
            answer = tokens[first:past]
            pairs.append((tokens[:first], answer if always_ended else unended(answer, dialogue, (end, *stops))))
    return pairs


def unended(answer: list[int], dialogue: Dialogue, ends: Collection[int]) -> list[int]:
    """The tokens of the last answer of `dialogue`, without the end of a text behind them where the answer stopped
    before its own."""
    return answer[:-1] if dialogue.cut and answer and answer[-1] in ends else answer


def prompt_room(answer: int, max_length: int, max_prompt_length: int | None) -> int:
    """Tokens that a prompt may have before an answer of `answer` tokens: all that are left, and never less than
    half for its sake."""
    room = max(max_length - answer, max_length // 2)
    return room if max_prompt_length is None else min(room, max_prompt_length)


def shortened(prompt: list[int], room: int, opening: Sequence[int] = ()) -> list[int]:
    """The end of a prompt that fits into `room`, behind what opens every text."""
    if len(prompt) <= room:
        return prompt
    lead = list(opening) if opening and prompt[: len(opening)] == list(opening) and len(opening) < room else []
    return [*lead, *prompt[len(prompt) - (room - len(lead)) :]]


def stops_of(model: PreTrainedModel) -> tuple[int, ...]:
    """The tokens at which the model's own generation ends."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return () if own is None else tuple(own) if isinstance(own, list | tuple) else (int(own),)

"""Pairs of answers as token ids: the chosen rows of a batch, then the rejected rows.

For decoders a row is the prompt and one answer, of which the answer is named token by token; for encoder-decoders the
prompt is the source and the two answers are two targets of it. Both answers of a pair always stand behind the same
prompt: what is cut from it for room is cut from its beginning, where the least recent words stand, and for both
alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import DataError
from pipelines.core.interfaces import IGNORED
from pipelines.data.completions import opening_of, parted, prompt_room, shortened, unended
from pipelines.data.encoding import encode_texts
from pipelines.data.packing import end_of_text
from pipelines.data.ragged import Ragged, padded
from pipelines.tasks.preference.rows import PreferenceRows

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

SIDES = ("chosen", "rejected")


@dataclass(frozen=True, kw_only=True)
class PreferencePairs:
    """Tokenised pairs, as columns. Those of which no answer is left are not among them."""

    chosen: Ragged
    """Tokens of the prompt and the better answer; for encoder-decoders of the answer alone."""
    rejected: Ragged
    """The same for the worse answer."""
    chosen_labels: Ragged
    """The same ids, -100 where a token is not learnt."""
    rejected_labels: Ragged
    """The same for the worse answer."""
    sources: Ragged | None
    """Tokens of the prompts for encoder-decoders; None for decoders."""
    margins: list[float] | None
    """By how much each chosen answer is better; None where the data does not say."""
    index: list[int]
    """Row numbers in the file."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each pair: of its longer row, or of the source and the longer target."""
    truncated: int
    """Pairs that lost a part of the prompt or the end of an answer."""
    left_out: tuple[int, ...]
    """Row numbers of those whose answers are empty, or no longer differ, within the limit."""

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, position: int) -> dict[str, Any]:
        example: dict[str, Any] = {side: getattr(self, side)[position] for side in SIDES}
        example |= {f"{side}_labels": getattr(self, f"{side}_labels")[position] for side in SIDES}
        example["index"] = self.index[position]
        if self.sources is not None:
            example["source"] = self.sources[position]
        if self.margins is not None:
            example["margin"] = self.margins[position]
        return example

    def select(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> PreferencePairs:
        """The pairs at `positions`, in that order. `truncated` and `left_out` stay those of the whole."""
        places = np.asarray(positions, dtype=np.int64)
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        picked: dict[str, Any] = {
            name: [column[at] for at in places.tolist()] for name, column in columns.items() if isinstance(column, list)
        }
        picked |= {name: column.take(places) for name, column in columns.items() if isinstance(column, Ragged)}
        return replace(self, **picked, lengths=self.lengths[places])


def encode_preferences(
    tokenizer: PreTrainedTokenizerBase,
    rows: PreferenceRows,
    max_length: int,
    max_prompt_length: int | None = None,
    encoder_decoder: bool = False,
    stops: Sequence[int] = (),
) -> PreferencePairs:
    """Tokens of every pair, none longer than `max_length`. `stops` end an answer beside the tokenizer's own end of
    text.

    A prompt is cut from its beginning to `max_prompt_length` (default: to what its longer answer leaves, but at least
    to half of `max_length`), an answer from its end. For encoder-decoders `max_length` bounds the answers, and
    `max_prompt_length` (default: `max_length`) the prompts. Raises DataError where no pair is left.
    """
    encoded = _as_targets if encoder_decoder else _as_continuations
    pairs = encoded(tokenizer, rows, max_length, max_prompt_length, stops)
    if not len(pairs) and len(rows):
        raise DataError(
            f"no pair of the {len(rows)} rows is left: within {max_length} tokens their answers do not "
            "differ; raise max_length"
        )
    return pairs


def _as_continuations(
    tokenizer: PreTrainedTokenizerBase,
    rows: PreferenceRows,
    max_length: int,
    max_prompt_length: int | None,
    stops: Sequence[int],
) -> PreferencePairs:
    columns: dict[str, list[Any]] = {name: [] for name in ("chosen", "rejected", "chosen_labels", "rejected_labels")}
    places: list[int] = []
    left_out: list[int] = []
    truncated = 0
    opening = opening_of(tokenizer)
    sides = (parted(tokenizer, rows.chosen, stops), parted(tokenizer, rows.rejected, stops))
    for place, pair in enumerate(zip(*sides, strict=True)):
        longest = max(len(answer) for _, answer in pair)
        room = prompt_room(longest, max_length, max_prompt_length)
        cut = [(shortened(prompt, room, opening), answer) for prompt, answer in pair]
        cut = [(prompt, answer[: max_length - len(prompt)]) for prompt, answer in cut]
        if not all(answer for _, answer in cut) or cut[0] == cut[1]:
            left_out.append(place)
            continue
        truncated += any(
            len(before[0]) + len(before[1]) > len(after[0]) + len(after[1])
            for before, after in zip(pair, cut, strict=True)
        )
        for side, (prompt, answer) in zip(SIDES, cut, strict=True):
            columns[side].append([*prompt, *answer])
            columns[f"{side}_labels"].append([IGNORED] * len(prompt) + answer)
        places.append(place)
    lengths = [max(len(one), len(other)) for one, other in zip(columns["chosen"], columns["rejected"], strict=True)]
    return _pairs(rows, columns, None, places, left_out, lengths, truncated)


def _as_targets(
    tokenizer: PreTrainedTokenizerBase,
    rows: PreferenceRows,
    max_length: int,
    max_prompt_length: int | None,
    stops: Sequence[int],
) -> PreferencePairs:
    """Prompts and answers as an encoder-decoder is fine-tuned on them: as people read them, special tokens included."""
    sources, cut = encode_texts(tokenizer, rows.texts, max_prompt_length or max_length, "text")
    columns: dict[str, list[Any]] = {}
    ends = (end_of_text(tokenizer), *stops)
    for side, dialogues in zip(SIDES, (rows.chosen, rows.rejected), strict=True):
        targets, more = encode_texts(tokenizer, [each.completion for each in dialogues], max_length, "text_target")
        columns[side] = [unended(ids, dialogue, ends) for ids, dialogue in zip(targets, dialogues, strict=True)]
        cut = cut | more
    places = [
        at
        for at, (one, other) in enumerate(zip(columns["chosen"], columns["rejected"], strict=True))
        if one and other and one != other
    ]
    left_out = sorted(set(range(len(rows))) - set(places))
    columns = {side: [column[at] for at in places] for side, column in columns.items()}
    columns |= {f"{side}_labels": columns[side] for side in SIDES}
    sources = sources.take(np.asarray(places, dtype=np.int64))
    longest = map(max, map(len, columns["chosen"]), map(len, columns["rejected"]))
    lengths = [source + target for source, target in zip(sources.lengths.tolist(), longest, strict=True)]
    return _pairs(rows, columns, sources, places, left_out, lengths, int(np.count_nonzero(cut[places])))


def _pairs(
    rows: PreferenceRows,
    columns: dict[str, list[Any]],
    sources: Ragged | None,
    places: list[int],
    left_out: list[int],
    lengths: list[int],
    truncated: int,
) -> PreferencePairs:
    margins = None if rows.margins is None else [float(rows.margins[at]) for at in places]
    return PreferencePairs(
        **{name: Ragged.of(column) for name, column in columns.items()},
        sources=sources,
        margins=margins,
        index=[rows.index[at] for at in places],
        lengths=np.asarray(lengths, dtype=np.int64),
        truncated=truncated,
        left_out=tuple(rows.index[at] for at in left_out),
    )


@dataclass(frozen=True)
class PreferenceCollator:
    """The collator: of B pairs 2B rows, first the chosen ones, then the rejected ones, filled up on the right."""

    pad_id: int
    start: int | None = None
    """The token that the decoder of an encoder-decoder begins with; None for decoders."""
    pad_to_multiple_of: int | None = None
    """Rows of decoders are filled up to such a length, or to `at_most`: `data.encoding.few_lengths`."""
    at_most: int | None = None

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and `labels` (2B, length), `pairs` (B,) of ones, and `margin` (B,) where
        there are margins.

        For decoders each label stands at the place from which it is named. For encoder-decoders the source of each
        pair stands there twice, `labels` are the targets and `decoder_input_ids` the same, one to the right.
        """
        import torch

        labels = [example[f"{side}_labels"] for side in SIDES for example in examples]
        if self.start is None:
            few: dict[str, Any] = {"pad_to_multiple_of": self.pad_to_multiple_of, "at_most": self.at_most}
            ids, real = padded([example[side] for side in SIDES for example in examples], self.pad_id, **few)
            targets, _ = padded(labels, IGNORED, **few)
            named = np.concatenate([targets[:, 1:], np.full((len(targets), 1), IGNORED, dtype=np.int64)], axis=1)
            arrays = {"input_ids": ids, "attention_mask": real, "labels": named}
        else:
            ids, real = padded([example["source"] for _ in SIDES for example in examples], self.pad_id)
            targets, _ = padded([self._after_start(each) for each in labels], IGNORED)
            written = np.where(targets == IGNORED, self.pad_id, targets)
            moved = np.concatenate([np.full((len(written), 1), self.start, dtype=np.int64), written[:, :-1]], axis=1)
            arrays = {
                "input_ids": ids,
                "attention_mask": real,
                "decoder_input_ids": moved,
                "labels": targets,
            }
        batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return batch | beside_pairs(examples)

    def _after_start(self, target: list[int]) -> list[int]:
        """A target that begins with the very token that the decoder begins with is not asked for it."""
        return target[1:] if len(target) > 1 and target[0] == self.start else target


def beside_pairs(examples: Sequence[dict[str, object]]) -> dict[str, Tensor]:
    """What a batch says of its B pairs: `pairs` (B,), one for each pair that counts, and `margin` (B,) where there
    are margins."""
    import torch

    batch = {"pairs": torch.ones(len(examples), dtype=torch.int64)}
    if "margin" in examples[0]:
        batch["margin"] = torch.tensor([example["margin"] for example in examples], dtype=torch.float32)
    return batch

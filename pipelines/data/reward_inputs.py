"""What a reward model reads: a prompt and an answer as token ids, when it learns and when it scores.

Decoders read the prompt and the answer as one text whose end is told (Stiennon et al. 2020, "Learning to summarize
from human feedback", section 3.4, arxiv.org/abs/2009.01325); encoders and encoder-decoders read them as a pair of
texts, as they do in every task on pairs. A prompt that is too long loses its beginning, an answer its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import ModelError
from pipelines.core.files import write_json
from pipelines.core.model_abilities import REWARD
from pipelines.data.chat_formats import Dialogue
from pipelines.data.completions import opening_of, padding_token, parted, prompt_room, shortened
from pipelines.data.encoding import CHUNK, Columns
from pipelines.data.ragged import Ragged, padded_tensors

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

FILE = REWARD
"""Beside the weights of a reward model: how it reads, and what its scores are like."""


@dataclass(frozen=True)
class RewardInputFormat:
    """How a reward model reads a prompt and an answer."""

    reads: Literal["text", "pair"]
    """`text`: one text, for decoders; `pair`: two texts, for encoders and encoder-decoders."""
    max_length: int
    """Tokens of both together, special tokens included."""
    max_prompt_length: int | None = None
    """Tokens of the prompt. None: what the answer leaves, but at least half of `max_length`."""
    templated: bool = False
    """Whether a chat template joins the two, for a model that reads one text."""

    def dialogues(self, prompts: Sequence[str], completions: Sequence[str]) -> list[Dialogue]:
        """Texts in the form in which the model learnt them."""
        return [
            Dialogue(
                ({"role": "user", "content": prompt}, {"role": "assistant", "content": completion}),
                (False, True),
                self.templated,
            )
            for prompt, completion in zip(prompts, completions, strict=True)
        ]


@dataclass(frozen=True)
class RewardSettings:
    """What stands in `reward.json`."""

    reading: RewardInputFormat
    mean: float = 0.0
    """Of the scores of training answers."""
    std: float = 1.0
    """Their standard deviation."""

    def write(self, folder: Path, more: Mapping[str, object]) -> None:
        """Put the file into the folder of the model; `more` is told beside."""
        write_json(folder / FILE, {**asdict(self), **more})


def settings_in(folder: Path | str) -> RewardSettings | None:
    """What the file beside a reward model says; None where there is none, as beside models from elsewhere. Raises
    ModelError."""
    path = Path(folder) / FILE
    if not Path(folder).is_dir():
        path = _on_the_hub(str(folder)) or path
    if not path.is_file():
        return None
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        return RewardSettings(RewardInputFormat(**settings["reading"]), float(settings["mean"]), float(settings["std"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"'{path}' is not what a reward stage writes ({error}); train the reward model again, or remove the file"
        ) from error


def _on_the_hub(name: str) -> Path | None:
    """The file of a repository on the Hub; None where there is none, or no such repository, or no way to it."""
    from transformers.utils import cached_file

    try:
        found = cached_file(
            name,
            FILE,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except (OSError, ValueError):
        return None
    return None if found is None else Path(found)


def encode_scored(
    tokenizer: PreTrainedTokenizerBase,
    dialogues: Sequence[Dialogue],
    reading: RewardInputFormat,
    stops: Sequence[int] = (),
) -> Columns:
    """Tokens of every prompt with its last answer, none longer than `reading.max_length`."""
    return encoded(tokenizer, dialogues, reading, stops)[0]


def encoded(
    tokenizer: PreTrainedTokenizerBase,
    dialogues: Sequence[Dialogue],
    reading: RewardInputFormat,
    stops: Sequence[int] = (),
) -> tuple[Columns, npt.NDArray[np.bool_]]:
    """The same, and which of the texts lost a part (texts,)."""
    ids, types, cut = (_as_text if reading.reads == "text" else _as_pair)(tokenizer, dialogues, reading, stops)
    flags, tokens = np.asarray(cut, dtype=np.bool_), Ragged.of(ids)
    segments = None if types is None else Ragged.of(types)
    columns = Columns(input_ids=tokens, token_type_ids=segments, lengths=tokens.lengths, truncated=int(flags.sum()))
    return columns, flags


Encoded = tuple[list[list[int]], list[list[int]] | None, list[bool]]


def _as_text(
    tokenizer: PreTrainedTokenizerBase, dialogues: Sequence[Dialogue], reading: RewardInputFormat, stops: Sequence[int]
) -> Encoded:
    opening = opening_of(tokenizer)
    ids: list[list[int]] = []
    cut: list[bool] = []
    for prompt, answer in parted(tokenizer, dialogues, stops, always_ended=True):
        prompt_ids = shortened(prompt, prompt_room(len(answer), reading.max_length, reading.max_prompt_length), opening)
        ids.append([*prompt_ids, *answer[: reading.max_length - len(prompt_ids)]])
        cut.append(len(ids[-1]) < len(prompt) + len(answer))
    return ids, None, cut


def _as_pair(
    tokenizer: PreTrainedTokenizerBase, dialogues: Sequence[Dialogue], reading: RewardInputFormat, stops: Sequence[int]
) -> Encoded:
    frame = Frame.of(tokenizer)
    room = reading.max_length - frame.size
    prompts, answers = (
        _plain(tokenizer, texts)
        for texts in ([each.prompt for each in dialogues], [each.completion for each in dialogues])
    )
    ids: list[list[int]] = []
    types: list[list[int]] = []
    cut: list[bool] = []
    for prompt, answer in zip(prompts, answers, strict=True):
        prompt_ids = shortened(prompt, prompt_room(len(answer), room, reading.max_prompt_length))
        answer_ids = answer[: room - len(prompt_ids)]
        cut.append(len(prompt_ids) + len(answer_ids) < len(prompt) + len(answer))
        ids.append([*frame.before, *prompt_ids, *frame.between, *answer_ids, *frame.after])
        types.append(frame.types(len(prompt_ids), len(answer_ids)))
    return ids, types if frame.segments else None, cut


def _plain(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    ids: list[list[int]] = []
    for start in range(0, len(texts), CHUNK):
        ids += tokenizer(
            list(texts[start : start + CHUNK]),
            add_special_tokens=False,
            truncation=False,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
    return ids


@dataclass(frozen=True)
class Frame:
    """What a tokenizer puts before, between and behind two texts."""

    before: list[int]
    between: list[int]
    after: list[int]
    segments: bool
    """Whether the model is told which token is of which text."""
    second: int = 0
    """The segment of the second text and of what follows it."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Frame:
        """The frame, seen on two letters. Raises ModelError for a tokenizer that hides it."""
        one, other = _plain(tokenizer, ["a", "b"])
        segments = "token_type_ids" in tokenizer.model_input_names
        seen = tokenizer("a", "b", return_token_type_ids=segments)
        whole = seen["input_ids"]
        at = _place(whole, one, 0)
        then = None if at is None else _place(whole, other, at + len(one))
        if at is None or then is None:
            raise ModelError(
                "the tokenizer writes a pair of texts in a way that cannot be cut to length; use another tokenizer"
            )
        second = int(seen["token_type_ids"][then]) if segments else 0
        return cls(whole[:at], whole[at + len(one) : then], whole[then + len(other) :], segments, second)

    @property
    def size(self) -> int:
        """Tokens of the frame."""
        return len(self.before) + len(self.between) + len(self.after)

    def types(self, first: int, second: int) -> list[int]:
        """The segments of a framed pair with so many tokens in its texts."""
        return [0] * (len(self.before) + first + len(self.between)) + [self.second] * (second + len(self.after))


def _place(whole: list[int], part: list[int], start: int) -> int | None:
    return next((at for at in range(start, len(whole) - len(part) + 1) if whole[at : at + len(part)] == part), None)


@dataclass(frozen=True)
class RewardCollator:
    """The collator of single texts: rows filled up on the right."""

    pad_id: int
    pad_to_multiple_of: int | None = None
    """Rows are filled up to such a length, or to `at_most`: `data.encoding.few_lengths`."""
    at_most: int | None = None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, **few: int) -> RewardCollator:
        """The collator for a tokenizer. Raises ModelError."""
        return cls(padding_token(tokenizer), **few)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and, where the model has segments, `token_type_ids`, all (batch, length)."""
        few: dict[str, Any] = {"pad_to_multiple_of": self.pad_to_multiple_of, "at_most": self.at_most}
        ids, real = padded_tensors((each["input_ids"] for each in examples), self.pad_id, **few)
        batch = {"input_ids": ids, "attention_mask": real}
        if "token_type_ids" in examples[0]:
            batch["token_type_ids"], _ = padded_tensors((each["token_type_ids"] for each in examples), 0, **few)
        return batch

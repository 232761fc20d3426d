"""Learning a class for each word: the first token of a word carries its class, the others none.

Devlin et al. 2019, "BERT", section 5.3: "we use the representation of the first sub-token as the input to the
token-level classifier". A text is tokenised as what it reads like, its words joined by spaces, so that its tokens are
those that the model was pretrained on whatever the tokenizer does with spaces. A text longer than the limit is read
in several parts: no word is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import DataError
from pipelines.core.interfaces import IGNORED
from pipelines.core.scores import score_names
from pipelines.data.encoding import CHUNK, PartedColumns, check_offsets, collate, few_lengths, settings_kept
from pipelines.data.ragged import Ragged, made_once
from pipelines.tasks.first_batch import token_pieces
from pipelines.tasks.scoring import score
from pipelines.tasks.token_classification.task import WordRows
from pipelines.tasks.training import LABELS, PreparedTask, TaskTraining, training_rows

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.files import JSONObject
    from pipelines.core.interfaces import Context
    from pipelines.tasks.base import LabelledTask
    from pipelines.tasks.subject import Subject


@dataclass(frozen=True, kw_only=True)
class EncodedWords(PartedColumns):
    """Parts of tokenised texts, as columns. `truncated` counts the texts that are read in several parts."""

    words: Ragged
    """For each token the number of the word that it begins, from 0; -1 for all other tokens."""
    labels: Ragged | None
    """For each token the class of the word that it begins, else -100."""

    def __getitem__(self, position: int) -> dict[str, Any]:
        example = super().__getitem__(position)
        return example if self.labels is None else example | {"token_labels": self.labels[position]}


def encode_words(tokenizer: PreTrainedTokenizerBase, rows: WordRows, max_length: int) -> EncodedWords:
    """Tokenise the words of `rows`, special tokens included, in parts of at most `max_length` tokens. Raises
    ModelError."""
    check_offsets(tokenizer)
    segments = "token_type_ids" in tokenizer.model_input_names
    ids: list[npt.NDArray[np.int32]] = []
    types: list[npt.NDArray[np.int32]] = []
    firsts: list[npt.NDArray[np.int32]] = []
    owners: list[int] = []
    with settings_kept(tokenizer):
        for start in range(0, len(rows), CHUNK):
            batch = tokenizer(
                list(rows.texts[start : start + CHUNK]),
                truncation=True,
                max_length=max_length,
                padding=False,
                stride=0,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
                return_token_type_ids=segments,
                return_attention_mask=False,
                verbose=False,
            )
            rows_of_parts = [start + int(row) for row in batch["overflow_to_sample_mapping"]]
            parts = [np.asarray(part, dtype=np.int32) for part in batch["input_ids"]]
            word_starts = _word_starts(rows.words, rows_of_parts, batch["offset_mapping"], batch["special_tokens_mask"])
            ids, firsts, owners = ids + parts, firsts + word_starts, owners + rows_of_parts
            if segments:
                types += [np.asarray(part, dtype=np.int32) for part in batch["token_type_ids"]]
    place = np.asarray(owners, dtype=np.int64)
    labels = (
        None
        if rows.labels is None
        else [_labelled(words, rows.labels[row]) for words, row in zip(firsts, owners, strict=True)]
    )
    tokens = Ragged.of(ids)
    return EncodedWords(
        input_ids=tokens,
        token_type_ids=Ragged.of(types) if segments else None,
        words=Ragged.of(firsts),
        labels=None if labels is None else Ragged.of(labels),
        rows=place,
        lengths=tokens.lengths,
        truncated=int(np.count_nonzero(np.bincount(place) > 1)) if len(place) else 0,
    )


def _word_starts(
    words: Sequence[Sequence[str]], rows: Sequence[int], offsets: Sequence[Any], special: Sequence[Any]
) -> list[npt.NDArray[np.int32]]:
    """For each part (tokens,) the number of the word that each token begins, or -1."""
    numbers = [np.full(len(part), -1, dtype=np.int32) for part in offsets]
    part = 0
    while part < len(rows):
        last = part
        while last < len(rows) and rows[last] == rows[part]:
            last += 1
        _mark_row(words[rows[part]], offsets[part:last], special[part:last], numbers[part:last])
        part = last
    return numbers


def _mark_row(
    words: Sequence[str], offsets: Sequence[object], special: Sequence[object], numbers: Sequence[npt.NDArray[np.int32]]
) -> None:
    """Write the numbers of one row's words to the tokens that begin them; a word without a token of its own gets
    none."""
    real = [np.flatnonzero(np.asarray(mask) == 0) for mask in special]  # places of the text's own tokens in each part
    part_of = np.repeat(np.arange(len(real)), [len(places) for places in real])
    place = np.concatenate(real)
    if not len(place):
        return
    spans = np.concatenate(
        [np.asarray(part, dtype=np.int64)[places] for part, places in zip(offsets, real, strict=True)]
    )
    lengths = np.fromiter((len(word) for word in words), dtype=np.int64, count=len(words))
    begin = np.cumsum(lengths + 1) - lengths - 1  # where each word stands in the joined text
    token = np.searchsorted(
        np.maximum.accumulate(spans[:, 1]), begin, side="right"
    )  # the first that ends after it begins
    inside = np.minimum(token, len(spans) - 1)
    starts = (token < len(spans)) & (spans[inside, 0] < begin + lengths) & (lengths > 0)
    for number in np.flatnonzero(starts)[::-1]:  # the first of several words that one token stands for
        numbers[part_of[token[number]]][place[token[number]]] = number


def _labelled(words: npt.NDArray[np.int32], labels: object) -> npt.NDArray[np.int32]:
    classes = np.asarray(labels, dtype=np.int32)
    return np.where(words >= 0, classes[np.maximum(words, 0)], IGNORED).astype(np.int32)


def collate_words(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[dict[str, object]], **lengths: int
) -> dict[str, Tensor]:
    """A batch as long as its longest part; `labels` (batch, length), where there are some, are -100 on padding."""
    import torch

    batch = collate(tokenizer, examples, **lengths)
    if "token_labels" in examples[0]:
        labels = np.full(batch["input_ids"].shape, IGNORED, dtype=np.int64)
        labels[batch["attention_mask"].numpy() == 1] = np.concatenate([example["token_labels"] for example in examples])
        batch["labels"] = torch.from_numpy(labels)
    return batch


class TokenClassificationTraining(TaskTraining):
    """Cross-entropy over the tokens that begin a word. Devlin et al. 2019, "BERT", section 5.3."""

    def prepare(
        self,
        subject: Subject,
        task: LabelledTask,
        context: Context,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        longest: int | None,
    ) -> PreparedTask:
        from pipelines.objectives.losses import classification_loss
        from pipelines.tasks.token_classification.task import WordRows

        limit = subject.max_length if longest is None else min(subject.max_length, longest)

        def read() -> tuple[EncodedWords, int, int]:
            rows = training_rows(subject, task)
            assert isinstance(rows, WordRows)
            return encode_words(tokenizer, rows, limit), len(rows), sum(len(row) for row in rows.words)

        examples, texts, words = made_once(context, subject.id, read)
        labelled = int((examples.words.values >= 0).sum())
        if labelled == 0:
            raise DataError(
                f"task '{task.name}': the tokenizer makes no token of any word, so there is nothing to learn"
            )
        if context.world.is_main:
            if examples.truncated:
                what = (
                    f"{examples.truncated} of {texts} texts are longer than {limit} tokens and are read in "
                    "several parts"
                )
                context.events.emit("progress", message=what)
            if labelled < words:
                level = "warning" if words - labelled > 0.05 * words else "progress"
                context.events.emit(
                    level,
                    message=f"{words - labelled} of {words} words have no token of their own and are not learnt from",
                )
        loss: Any = partial(classification_loss, smoothing=subject.label_smoothing_factor)
        metric = score_names(task.metrics)[0]
        return PreparedTask(
            examples,
            partial(collate_words, tokenizer, **few_lengths(limit)),
            loss,
            LABELS,
            score=score(task),
            metric=metric,
        )

    def show(self, tokenizer: PreTrainedTokenizerBase, task: LabelledTask, batch: Mapping[str, Tensor]) -> JSONObject:
        """Words; those tokens that carry a tag are learnt."""
        ids, labels = batch["input_ids"][0], batch["labels"][0]
        tags = [
            f"{tokenizer.decode([int(token)])}/{task.head.labels[int(label)]}"
            for token, label in zip(ids, labels, strict=True)
            if label != IGNORED
        ]
        shown = token_pieces(tokenizer, ids, labels != IGNORED)
        return {"pieces": shown, "answer": " ".join(tags), "tokens": len(ids)}

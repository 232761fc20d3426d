"""Learning where an answer starts and ends: long contexts are read in windows that overlap.

Devlin et al. 2019, "BERT", section 4.2, and its `run_squad.py`: a window is the question and as much of the context
as fits; the next one begins so far on that both share `doc_stride` tokens, as `--doc_stride` of transformers'
`run_qa.py` has it. The loss is the mean of the cross-entropies of the first and of the last token of the answer. A
window that does not hold the whole answer points twice to its blank, a token that stands for "no answer here", as
questions without an answer do (section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import DataError, ModelError
from pipelines.core.model_types import looks_back_only
from pipelines.data.encoding import PartedColumns, check_offsets, collate, few_lengths, settings_kept
from pipelines.data.ragged import Ragged, made_once
from pipelines.tasks.extractive_qa.task import QuestionRows, question_room
from pipelines.tasks.first_batch import token_pieces
from pipelines.tasks.training import LABELS, PreparedTask, TaskTraining, training_rows

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.files import JSONObject
    from pipelines.core.interfaces import Context
    from pipelines.tasks.base import LabelledTask
    from pipelines.tasks.subject import Subject


CHUNK = 1_000
"""Questions that are tokenised at a time: offsets take far more memory than ids."""


@dataclass(frozen=True, kw_only=True)
class ContextWindows(PartedColumns):
    """Windows of tokenised contexts, as columns. `truncated` counts the rows whose context takes several windows."""

    blanks: npt.NDArray[np.int64]
    """The place of the token that stands for "no answer here" (windows,)."""
    labels: npt.NDArray[np.int64] | None
    """Places of the first and last token of the answer (windows, 2); twice the blank where the window does not
    hold it."""
    contexts: list[npt.NDArray[np.int32]] | None
    """For each window the places of the context's tokens and the characters they stand for: (tokens, 3) of place,
    begin, end. Only kept for evaluation."""
    cut: int
    """Rows whose question lost its end."""
    unanswered: int
    """Rows with an answer that no window holds: it is cut by the border between two."""

    def __getitem__(self, position: int) -> dict[str, Any]:
        example = super().__getitem__(position)
        return example if self.labels is None else example | {"labels": self.labels[position].tolist()}


def questions_in(tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], max_length: int) -> list[str]:
    """The questions, those that would leave no room for a context without their end."""
    limit = question_room(max_length)
    texts = [
        question.strip() for question in questions
    ]  # some of SQuAD's have a space before them, which some models would see
    with settings_kept(tokenizer):
        for start in range(0, len(texts), CHUNK):
            batch = tokenizer(
                texts[start : start + CHUNK],
                add_special_tokens=False,
                truncation=False,
                padding=False,
                return_offsets_mapping=True,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )
            for place, offsets in enumerate(batch["offset_mapping"]):
                if len(offsets) > limit:
                    texts[start + place] = texts[start + place][: offsets[limit - 1][1]]
    return texts


def encode_questions(
    tokenizer: PreTrainedTokenizerBase,
    rows: QuestionRows,
    max_length: int,
    doc_stride: int,
    *,
    last_blank: bool = False,
    keep_contexts: bool = False,
) -> ContextWindows:
    """Tokenise question and context of `rows`, special tokens included, in windows of at most `max_length` tokens.

    `last_blank` is for models that see only what comes before a token: their blank is the last token, where it is a
    special one. Raises ModelError for a tokenizer without offsets.
    """
    check_offsets(tokenizer)
    segments = "token_type_ids" in tokenizer.model_input_names
    questions = questions_in(tokenizer, rows.texts, max_length)
    ids: list[npt.NDArray[np.int32]] = []
    types: list[npt.NDArray[np.int32]] = []
    contexts: list[npt.NDArray[np.int32]] = []
    owners: list[int] = []
    blanks: list[int] = []
    labels: list[tuple[int, int]] = []
    answered: set[int] = set()
    assert rows.pairs is not None
    with settings_kept(tokenizer):
        for start in range(0, len(rows), CHUNK):
            batch = tokenizer(
                questions[start : start + CHUNK],
                list(rows.pairs[start : start + CHUNK]),
                truncation="only_second",
                max_length=max_length,
                stride=doc_stride,
                padding=False,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_token_type_ids=segments,
                return_attention_mask=False,
                verbose=False,
            )
            for window, owner in enumerate(batch["overflow_to_sample_mapping"]):
                row = start + int(owner)
                tokens = np.asarray(batch["input_ids"][window], dtype=np.int32)
                sequence = batch.encodings[window].sequence_ids
                context = _context(sequence, batch["offset_mapping"][window])
                blank = blank_of(tokenizer, tokens, sequence, last_blank)
                if rows.starts is not None:
                    assert rows.labels is not None
                    span = _span(context, rows.labels[row], rows.starts[row])
                    answered.update([row] if span or not rows.starts[row] else [])
                    labels.append(span or (blank, blank))
                ids.append(tokens)
                owners.append(row)
                blanks.append(blank)
                if segments:
                    types.append(np.asarray(batch["token_type_ids"][window], dtype=np.int32))
                if keep_contexts:
                    contexts.append(context)
    place, windows = np.asarray(owners, dtype=np.int64), Ragged.of(ids)
    return ContextWindows(
        input_ids=windows,
        token_type_ids=Ragged.of(types) if segments else None,
        blanks=np.asarray(blanks, dtype=np.int64),
        labels=None if rows.starts is None else np.asarray(labels, dtype=np.int64).reshape(-1, 2),
        contexts=contexts if keep_contexts else None,
        rows=place,
        lengths=windows.lengths,
        truncated=int(np.count_nonzero(np.bincount(place) > 1)) if len(place) else 0,
        cut=sum(short != whole.strip() for short, whole in zip(questions, rows.texts, strict=True)),
        unanswered=0 if rows.starts is None else len(rows) - len(answered),
    )


def _context(sequence: Sequence[int | None], offsets: object) -> npt.NDArray[np.int32]:
    """(tokens, 3): place in the window, first character, character behind the last, of the context's own tokens."""
    places = np.flatnonzero(np.array([part == 1 for part in sequence]))
    return np.concatenate([places[:, None], np.asarray(offsets, dtype=np.int64)[places].reshape(-1, 2)], axis=1).astype(
        np.int32
    )


def _span(context: npt.NDArray[np.int32], texts: Any, starts: Any) -> tuple[int, int] | None:
    """Places of the first and last token of the first answer, if all of it stands in this window."""
    if not len(starts) or not len(context):
        return None
    begin, end = starts[0], starts[0] + len(texts[0])
    if context[0, 1] > begin or context[-1, 2] < end:
        return None
    first = int(np.searchsorted(context[:, 1], begin, side="right")) - 1
    last = int(np.searchsorted(np.maximum.accumulate(context[:, 2]), end, side="left"))
    return int(context[first, 0]), int(context[max(first, last), 0])


def blank_of(
    tokenizer: PreTrainedTokenizerBase, ids: npt.NDArray[np.int32], sequence: Sequence[int | None], last: bool
) -> int:
    """The place that stands for "no answer here": [CLS], else the beginning of the text, else the first token.

    With `last`, the last token where it is a special one: what only looks back knows nothing of the text any earlier.
    """
    if last and sequence[-1] is None:
        return len(ids) - 1
    for token in (tokenizer.cls_token_id, tokenizer.bos_token_id):
        if token is not None and len(places := np.flatnonzero(ids == token)):
            return int(places[0])
    return 0


def collate_questions(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[dict[str, object]], **lengths: int
) -> dict[str, Tensor]:
    """A batch as long as its longest window; `labels` (batch, 2) count from the first column, padding on the left
    included."""
    batch = collate(tokenizer, examples, **lengths)
    if tokenizer.padding_side == "left" and "labels" in batch:
        batch["labels"] = batch["labels"] + (batch["attention_mask"] == 0).sum(-1, keepdim=True)
    return batch


class ExtractiveQATraining(TaskTraining):
    """Cross-entropy over the tokens of a window, for the first and the last token of the answer."""

    def prepare(
        self,
        subject: Subject,
        task: LabelledTask,
        context: Context,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        longest: int | None,
    ) -> PreparedTask:
        from pipelines.objectives.losses import span_loss
        from pipelines.tasks.extractive_qa.task import SHORTEST, QuestionRows, stride_of

        limit = subject.max_length if longest is None else min(subject.max_length, longest)
        if limit < SHORTEST:
            raise ModelError(
                f"the model reads {limit} tokens at once, too few for a question and a part of its context ({SHORTEST})"
            )
        back = looks_back_only({"model_type": model.config.model_type, **model.config.to_dict()})

        def read() -> tuple[ContextWindows, int]:
            rows = training_rows(subject, task)
            assert isinstance(rows, QuestionRows)
            stride = stride_of(limit, subject.doc_stride)
            return encode_questions(tokenizer, rows, limit, stride, last_blank=back), len(rows)

        windows, count = made_once(context, subject.id, read)
        if windows.unanswered == count:
            raise DataError(
                f"task '{task.name}': no window of {limit} tokens holds a whole answer, so there is nothing "
                "to learn; raise max_length"
            )
        self._tell(context, windows, count, limit)
        return PreparedTask(windows, partial(collate_questions, tokenizer, **few_lengths(limit)), span_loss, LABELS)

    def _tell(self, context: Context, windows: Any, rows: int, limit: int) -> None:
        """Events about what long contexts and questions come to."""
        if not context.world.is_main:
            return
        if windows.truncated:
            what = (
                f"{windows.truncated} of {rows} contexts are read in several windows of {limit} tokens, "
                f"{len(windows)} in all"
            )
            context.events.emit("progress", message=what)
        lost = {"questions lost their end": windows.cut, "answers stand whole in no window": windows.unanswered}
        for what, count in lost.items():
            if count:
                level = "warning" if count > 0.05 * rows else "progress"
                context.events.emit(
                    level,
                    message=f"{count} of {rows} {what} ({count / rows:.1%}); max_length and doc_stride set the limits",
                )

    def show(self, tokenizer: PreTrainedTokenizerBase, task: LabelledTask, batch: Mapping[str, Tensor]) -> JSONObject:
        """A window of a text; the answer in it is learnt, or the blank where there is none."""
        ids, (first, last) = batch["input_ids"][0], batch["labels"][0].tolist()
        inside = [first <= place <= last for place in range(len(ids))]
        answer = tokenizer.decode(ids[first : last + 1])
        return {"pieces": token_pieces(tokenizer, ids, inside), "answer": answer, "tokens": len(ids)}

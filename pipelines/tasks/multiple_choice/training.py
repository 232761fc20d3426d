"""Learning to choose the best of several options: one sequence an option, tokenised once, padded in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.core.interfaces import Rows
from pipelines.data.encoding import CHUNK, EncodedRows, collate, encode
from pipelines.tasks.multiple_choice.task import ChoiceRows
from pipelines.tasks.scoring import score
from pipelines.tasks.training import LABELS, PreparedTask, TaskTraining, tell_truncated, training_rows

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.interfaces import Context
    from pipelines.tasks.base import LabelledTask
    from pipelines.tasks.subject import Subject


@dataclass(frozen=True, kw_only=True)
class EncodedChoices(EncodedRows):
    """Tokenised questions, each with its options as columns: `input_ids` and `token_type_ids` hold a list of
    sequences a question.

    `lengths` are the tokens of each question's longest sequence, `truncated` counts sequences.
    """


def encode_choices(tokenizer: PreTrainedTokenizerBase, rows: ChoiceRows, max_length: int) -> EncodedChoices:
    """Tokenise each option of `rows` beside the text that all of them share, special tokens included.

    Sequences longer than `max_length` lose tokens from the end of their longer text, which is the context.
    """
    ids: list[list[npt.NDArray[np.int32]]] = []
    types: list[list[npt.NDArray[np.int32]]] = []
    truncated = 0
    choices = rows.choices
    at_once = max(1, CHUNK // max(choices, 1))
    for start in range(0, len(rows), at_once):
        shared = [text for text in rows.texts[start : start + at_once] for _ in range(choices)]
        beside = [option for row in rows.options[start : start + at_once] for option in row]
        encoded = encode(tokenizer, Rows(shared, beside, None, range(len(shared))), max_length)
        ids += _grouped(encoded.input_ids, choices)
        if encoded.token_type_ids is not None:
            types += _grouped(encoded.token_type_ids, choices)
        truncated += encoded.truncated
    longest = (max(len(sequence) for sequence in question) for question in ids)
    return EncodedChoices(
        input_ids=ids,
        token_type_ids=types or None,
        labels=None if rows.labels is None else list(rows.labels),
        index=list(rows.index),
        lengths=np.fromiter(longest, dtype=np.int64, count=len(ids)),
        truncated=truncated,
    )


def _grouped(sequences: list[list[int]], choices: int) -> list[list[npt.NDArray[np.int32]]]:
    arrays = [np.asarray(sequence, dtype=np.int32) for sequence in sequences]
    return [arrays[start : start + choices] for start in range(0, len(arrays), choices)]


def collate_choices(tokenizer: PreTrainedTokenizerBase, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch as long as its longest sequence: `input_ids` and the like (batch, choices, length), `labels` (batch,)."""
    import torch

    keys = [key for key in ("input_ids", "token_type_ids") if key in examples[0]]
    choices = len(examples[0]["input_ids"])
    flat: list[dict[str, Any]] = [
        {key: example[key][choice] for key in keys} for example in examples for choice in range(choices)
    ]
    batch = {key: value.reshape(len(examples), choices, -1) for key, value in collate(tokenizer, flat).items()}
    if "labels" in examples[0]:
        batch["labels"] = torch.tensor([example["labels"] for example in examples])
    return batch


class MultipleChoiceTraining(TaskTraining):
    """Cross-entropy over the options, each of which is scored beside the context. Devlin et al. 2019, "BERT",
    section 4.4."""

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
        from pipelines.tasks.multiple_choice.task import ChoiceRows

        rows = training_rows(subject, task)
        assert isinstance(rows, ChoiceRows)
        limit = subject.max_length if longest is None else min(subject.max_length, longest)
        examples = encode_choices(tokenizer, rows, limit)
        sequences = len(examples) * rows.choices
        tell_truncated(
            context, examples.truncated, sequences, f"sequences are cut to {limit} tokens", "max_length sets the limit"
        )
        loss: Any = partial(classification_loss, smoothing=subject.label_smoothing_factor, head_alone=True)
        together: Any = partial(collate_choices, tokenizer)
        return PreparedTask(examples, together, loss, LABELS, score=score(task), metric=task.metrics[0])

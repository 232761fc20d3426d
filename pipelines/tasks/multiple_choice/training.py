"""Learning to choose the best of several options: one sequence an option, tokenised once, padded in the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pipelines.core.interfaces import Rows
from pipelines.data.encoding import CHUNK, EncodedRows, collate, encode, few_lengths
from pipelines.data.ragged import Ragged, made_once
from pipelines.tasks.first_batch import token_pieces
from pipelines.tasks.multiple_choice.task import ChoiceRows
from pipelines.tasks.scoring import score
from pipelines.tasks.training import LABELS, PreparedTask, TaskTraining, tell_truncated, training_rows

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.files import JSONObject
    from pipelines.core.interfaces import Context
    from pipelines.tasks.base import LabelledTask
    from pipelines.tasks.subject import Subject


class Options(Ragged):
    """Questions of as many sequences each, a list of arrays when it is looked at; starts and ends are (questions,
    choices)."""

    @classmethod
    def grouped(cls, sequences: Ragged, choices: int) -> Options:
        """The sequences one after another, `choices` of them a question."""
        shape = (len(sequences) // max(choices, 1), choices)
        return cls(sequences.values, sequences.starts.reshape(shape), sequences.ends.reshape(shape))

    def __getitem__(self, position: Any) -> Any:
        return [self.values[start:end] for start, end in zip(self.starts[position], self.ends[position], strict=True)]


@dataclass(frozen=True, kw_only=True)
class EncodedChoices(EncodedRows):
    """Tokenised questions, each with its options as columns: `input_ids` and `token_type_ids` hold a list of
    sequences a question.

    `lengths` are the tokens of each question's longest sequence, `truncated` counts sequences.
    """

    input_ids: Options
    token_type_ids: Options | None

    @property
    def sequences(self) -> int:
        """Sequences of each question."""
        return max(1, int(self.input_ids.starts.shape[-1]))


def encode_choices(tokenizer: PreTrainedTokenizerBase, rows: ChoiceRows, max_length: int) -> EncodedChoices:
    """Tokenise each option of `rows` beside the text that all of them share, special tokens included.

    Sequences longer than `max_length` lose tokens from the end of their longer text, which is the context.
    """
    ids: list[Ragged] = []
    types: list[Ragged] = []
    truncated = 0
    choices = rows.choices
    at_once = max(1, CHUNK // max(choices, 1))
    for start in range(0, len(rows), at_once):
        shared = [text for text in rows.texts[start : start + at_once] for _ in range(choices)]
        beside = [option for row in rows.options[start : start + at_once] for option in row]
        encoded = encode(tokenizer, Rows(shared, beside, None, range(len(shared))), max_length)
        ids.append(encoded.input_ids)
        if encoded.token_type_ids is not None:
            types.append(encoded.token_type_ids)
        truncated += encoded.truncated
    options = Options.grouped(Ragged.joined(ids), choices)
    return EncodedChoices(
        input_ids=options,
        token_type_ids=Options.grouped(Ragged.joined(types), choices) if types else None,
        labels=None if rows.labels is None else list(rows.labels),
        index=list(rows.index),
        lengths=options.lengths.max(axis=1, initial=0),
        truncated=truncated,
    )


def collate_choices(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[dict[str, Any]], **lengths: int
) -> dict[str, Tensor]:
    """A batch as long as its longest sequence: `input_ids` and the like (batch, choices, length), `labels` (batch,)."""
    import torch

    keys = [key for key in ("input_ids", "token_type_ids") if key in examples[0]]
    choices = len(examples[0]["input_ids"])
    flat: list[dict[str, Any]] = [
        {key: example[key][choice] for key in keys} for example in examples for choice in range(choices)
    ]
    batch = {
        key: value.reshape(len(examples), choices, -1) for key, value in collate(tokenizer, flat, **lengths).items()
    }
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

        limit = subject.max_length if longest is None else min(subject.max_length, longest)

        def read() -> EncodedChoices:
            rows = training_rows(subject, task)
            assert isinstance(rows, ChoiceRows)
            return encode_choices(tokenizer, rows, limit)

        examples = made_once(context, subject.id, read)
        sequences = examples.input_ids.starts.size
        tell_truncated(
            context, examples.truncated, sequences, f"sequences are cut to {limit} tokens", "max_length sets the limit"
        )
        loss: Any = partial(classification_loss, smoothing=subject.label_smoothing_factor, head_alone=True)
        together: Any = partial(collate_choices, tokenizer, **few_lengths(limit))
        return PreparedTask(examples, together, loss, LABELS, score=score(task), metric=task.metrics[0])

    def show(self, tokenizer: PreTrainedTokenizerBase, task: LabelledTask, batch: Mapping[str, Tensor]) -> JSONObject:
        """Every option with what it answers; the right one is learnt."""
        right, masks = int(batch["labels"][0]), batch["attention_mask"][0].bool()
        rows = [ids[mask] for ids, mask in zip(batch["input_ids"][0], masks, strict=True)]
        shown = [piece for at, ids in enumerate(rows) for piece in token_pieces(tokenizer, ids, at == right)]
        return {"pieces": shown, "answer": f"option {right + 1} of {len(rows)}", "tokens": sum(map(len, rows))}

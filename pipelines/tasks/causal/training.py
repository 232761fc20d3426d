"""Learning to answer: prompts and their completions, several in one block where they are packed.

Blocks are filled by best fit: the longest first, each into the fullest block that has room for it (Ding et al. 2024,
"Fewer Truncations Improve Language Modeling", section 3.2, arxiv.org/abs/2404.10830). No dialogue is cut for it, and
none sees another: positions start again with each, and the mask keeps them apart.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import IncompatibleError, ModelError
from pipelines.core.interfaces import IGNORED
from pipelines.core.model_types import loses_window, sees_ahead, takes_masks
from pipelines.core.recipe import START
from pipelines.data import chat_templates
from pipelines.data.completions import Completions, stops_of
from pipelines.data.ragged import padded
from pipelines.objectives.attention_masks import additive, earlier, restarted
from pipelines.tasks.first_batch import token_pieces
from pipelines.tasks.training import PreparedTask, TaskTraining, training_rows

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.files import JSONObject
    from pipelines.core.interfaces import Context
    from pipelines.tasks.base import LabelledTask
    from pipelines.tasks.subject import Subject


@dataclass(frozen=True)
class Packs:
    """Blocks of dialogues."""

    examples: Completions
    members: list[list[int]]
    """Positions of the dialogues of each block."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each block."""

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return {"parts": [self.examples[member] for member in self.members[position]]}

    def select(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> Packs:
        """The blocks at `positions`, in that order."""
        chosen = np.asarray(positions, dtype=np.int64)
        return Packs(self.examples, [self.members[place] for place in chosen.tolist()], self.lengths[chosen])


def pack_completions(examples: Completions, block: int) -> Packs:
    """Blocks of at most `block` tokens that hold every example once, the same for the same examples."""
    rooms: list[tuple[int, int]] = []  # (room that is left, block), in order
    members: list[list[int]] = []
    for position in np.argsort(-examples.lengths, kind="stable").tolist():
        length = int(examples.lengths[position])
        place = bisect_left(rooms, (length, -1))
        if place == len(rooms):
            members.append([position])
            insort(rooms, (block - length, len(members) - 1))
            continue
        room, number = rooms.pop(place)
        members[number].append(position)
        insort(rooms, (room - length, number))
    lengths = [int(examples.lengths[each].sum()) for each in members]
    return Packs(examples, members, np.asarray(lengths, dtype=np.int64))


def numbered(
    packs: Sequence[dict[str, Any]], key: str, fill: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows of `key` one after another, and the number of the dialogue that each token is of, -1 beyond the last,
    both (batch, length)."""
    rows = [np.concatenate([np.asarray(part[key], dtype=np.int64) for part in each["parts"]]) for each in packs]
    owners = [np.repeat(np.arange(len(each["parts"])), [len(part[key]) for part in each["parts"]]) for each in packs]
    return padded(rows, fill)[0], padded(owners, -1)[0]


def named_next(labels: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Each label at the place before it, from which it is named, unless that is in another dialogue: (batch,
    length)."""
    moved = np.full_like(labels, IGNORED)
    moved[:, :-1] = np.where(numbers[:, 1:] == numbers[:, :-1], labels[:, 1:], IGNORED)
    return moved


def as_tensors(**arrays: npt.NDArray[Any]) -> dict[str, Tensor]:
    """The arrays as a batch."""
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@dataclass(frozen=True)
class Packed:
    """The collator of packed dialogues."""

    pad_id: int
    masks: bool = True
    """Whether there are masks; without them, the model's attention must go by the positions."""

    def __call__(self, packs: Sequence[dict[str, object]]) -> dict[str, Tensor]:
        """`input_ids`, `labels` and `position_ids` (batch, length), and an `attention_mask` (batch, 1, query, key)
        to be added. What fills a block up is a sequence of its own."""
        ids, numbers = numbered(packs, "input_ids", self.pad_id)
        labels, _ = numbered(packs, "labels", IGNORED)
        batch = {"input_ids": ids, "position_ids": restarted(numbers), "labels": named_next(labels, numbers)}
        if not self.masks:
            return as_tensors(**batch)
        same = numbers[:, :, None] == numbers[:, None, :]
        length = ids.shape[1]
        allowed = same & earlier(length) & ((numbers >= 0)[:, None, :] | np.eye(length, dtype=np.bool_))
        return as_tensors(**batch, attention_mask=additive(allowed))


class CausalTraining(TaskTraining):
    """Cross-entropy of the answers' tokens, the prompts' left out unless `train_on: all`."""

    def prepare(
        self,
        subject: Subject,
        task: LabelledTask,
        context: Context,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        longest: int | None,
    ) -> PreparedTask:
        from pipelines.data.completions import CompletionCollator, encode_completions, padding_token
        from pipelines.data.ragged import made_once
        from pipelines.models import varlen
        from pipelines.objectives.losses import Meter, token_loss
        from pipelines.tasks.first_batch import examined, tell

        words = {"model_type": model.config.model_type, **model.config.to_dict()}
        why = sees_ahead(words) or (takes_masks(words) if subject.packing else None)
        if why is not None:
            raise ModelError(f"a task of the kind causal {why}")
        limit = subject.max_length if longest is None else min(subject.max_length, longest)
        train_on = subject.train_on or "completions"

        def read() -> tuple[Completions, Any]:
            rows: Any = training_rows(subject, task)
            dialogues = [each.in_turns() for each in rows.dialogues] if subject.chat_template else list(rows.dialogues)
            template = None
            if any(each.templated for each in dialogues):
                template = chat_templates.adopt(tokenizer, subject.chat_template, inherited_template(context))
            examples = encode_completions(tokenizer, dialogues, rows.index, limit, train_on, stops_of(model))
            tell(context, examined(tokenizer, dialogues, examples, limit, task.name, rows.format, template))
            return examples, tokenizer.chat_template

        examples, tokenizer.chat_template = made_once(context, subject.id, read)
        pad = padding_token(tokenizer)
        meter = Meter()
        loss = partial(token_loss, smoothing=subject.label_smoothing_factor, meter=meter)
        if subject.packing:
            arguments = getattr(subject, "arguments", None)
            if arguments is not None:  # tasks that share a body, and its attention, have none of their own
                varlen.adopt_where_it_serves(context, model, arguments, limit)
            packed = Packed(pad, masks=not varlen.names_sequences(model.config))
            if packed.masks and (why := loses_window(words, limit)) is not None:
                raise IncompatibleError(f"packing is true, which {why}")
            return PreparedTask(pack_completions(examples, limit), packed, loss, meter=meter)
        return PreparedTask(examples, CompletionCollator(pad), loss, meter=meter)

    def show(self, tokenizer: PreTrainedTokenizerBase, task: LabelledTask, batch: Mapping[str, Tensor]) -> JSONObject:
        """A dialogue; each token is learnt where the one before it is asked to name it."""
        ids, labels = batch["input_ids"][0], batch["labels"][0]
        learnt = [False, *(labels[:-1] != IGNORED).tolist()]
        return {"pieces": token_pieces(tokenizer, ids, learnt), "answer": None, "tokens": len(ids)}


def inherited_template(context: Context) -> str | None:
    """The chat template that the model read by this stage was trained with, where an earlier stage gave it one."""
    source = context.recipe.model_of(context.recipe.stage(context.stage_id))
    template = None if source == START else context.open_tokenizer(source).chat_template
    return template if isinstance(template, str) else None

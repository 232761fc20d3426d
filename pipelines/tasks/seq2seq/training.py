"""Learning to write: pairs of a source and a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import IGNORED
from pipelines.tasks.first_batch import token_pieces
from pipelines.tasks.seq2seq.task import objective_of
from pipelines.tasks.training import PreparedTask, TaskTraining, read_tokens, tell_truncated, training_rows

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.files import JSONObject
    from pipelines.core.interfaces import Context
    from pipelines.tasks.base import LabelledTask
    from pipelines.tasks.subject import Subject


def lengths_of(subject: Subject) -> tuple[int, int]:
    """Tokens after which a source and a target are cut."""
    return subject.max_source_length or subject.max_length, subject.max_target_length or subject.max_length


class Seq2SeqTraining(TaskTraining):
    """Teacher forcing, or mask-predict, on pairs of texts."""

    def prepare(
        self,
        subject: Subject,
        task: LabelledTask,
        context: Context,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        longest: int | None,
    ) -> PreparedTask:
        from pipelines.data.encoding import encode_pairs
        from pipelines.data.ragged import made_once

        objective = objective_of(subject)
        why = objective.misfit({"model_type": model.config.model_type, **model.config.to_dict()})
        if why is not None:
            raise ModelError(f"the objective {objective.name} {why}")
        source, target = (length if longest is None else min(length, longest) for length in lengths_of(subject))
        examples = made_once(
            context, subject.id, lambda: encode_pairs(tokenizer, training_rows(subject, task), source, target)
        )
        what = f"pairs are cut to {source} tokens of the source and {target} of the target"
        tell_truncated(
            context, examples.truncated, len(examples), what, "max_source_length and max_target_length set the limits"
        )
        collate = objective.collate(tokenizer, context.seed, model.config)
        return PreparedTask(examples, collate, objective.loss, objective.label_names, marked=True)

    def show(self, tokenizer: PreTrainedTokenizerBase, task: LabelledTask, batch: Mapping[str, Tensor]) -> JSONObject:
        """A source, and the target that is learnt."""
        ids, target = read_tokens(batch), batch["labels"][0]
        target = target[target != IGNORED]
        shown = token_pieces(tokenizer, ids, False) + token_pieces(tokenizer, target, True)
        return {"pieces": shown, "answer": None, "tokens": len(ids) + len(target)}

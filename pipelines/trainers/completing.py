"""Learning to answer: prompts and completions, instructions and dialogues, for tasks of the kind `causal`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.blocks import Found
from pipelines.data import chat_templates
from pipelines.errors import ModelError
from pipelines.fields import architectures
from pipelines.objectives.causal_models import sees_ahead
from pipelines.objectives.masked_models import takes_masks
from pipelines.protocols import HeadKind
from pipelines.recipe import START
from pipelines.trainers import pair_keys
from pipelines.trainers.lesson import Lesson, Teacher, training_rows

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.data.tasks import Task
    from pipelines.protocols import Context
    from pipelines.recipe import Recipe
    from pipelines.trainers.subject import Subject

VIRTUAL = ("prefix", "prompt", "p_tuning")
"""Tuners that put tokens or keys before the text, for which a ready mask has no place."""


class Completing(Teacher):
    """Cross-entropy of the answers' tokens, the prompts' left out unless `train_on: all`."""

    head_kind: ClassVar[HeadKind] = "causal_lm"
    smoothed: ClassVar[tuple[str, ...]] = ("causal",)

    def columns(self, task: Task) -> tuple[str, ...]:
        causal: Any = task
        return (causal.format or "told by the columns", *(f"{role}={column}" for role, column in sorted(causal.names.items())))

    def texts(self, rows: Any) -> Iterator[str]:
        """Every message of every dialogue."""
        return (str(message["content"]) for each in rows.dialogues for message in each.messages)

    def mistakes(self, subject: Subject, name: str, recipe: Recipe) -> Iterable[Found]:
        yield from pair_keys.useless(subject, name)
        task: Any = subject.resolved(name)
        if subject.auxiliary_lm is not None:
            yield ("auxiliary_lm",), "is for tasks with one answer a text, but here the answers are words already; leave it out"
        if subject.chat_template is not None and task.format == "text":
            yield ("chat_template",), "joins messages, but the task's format is text, which has none; leave it out"
        tuner = getattr(subject, "tuner", None)
        if subject.packing and tuner is not None and tuner.name in VIRTUAL:
            yield ("packing",), f"gives each block a mask of its own, which the virtual tokens of {tuner.name} have no place in; leave it out"
        shape = recipe.model.architecture
        if shape is None:
            return
        words = architectures.resolve(shape)
        if (why := unfit(words, architectures.heads(shape))) is not None:
            yield ("task",), why
        elif subject.packing and (why := takes_masks(words)) is not None:
            yield ("packing",), why

    def prepare(self, subject: Subject, task: Task, context: Context, model: Any, tokenizer: Any, longest: int | None) -> Lesson:
        from pipelines.data.completion_packing import pack_completions
        from pipelines.data.completions import Together, encode_completions, padding_token
        from pipelines.trainers.first_batch import examined, tell
        from pipelines.trainers.packed_batches import Packed

        words = {"model_type": model.config.model_type, **model.config.to_dict()}
        why = sees_ahead(words) or (takes_masks(words) if subject.packing else None)
        if why is not None:
            raise ModelError(f"a task of the kind causal {why}")
        rows: Any = training_rows(subject, task)
        dialogues = [each.in_turns() for each in rows.dialogues] if subject.chat_template else list(rows.dialogues)
        template = None
        if any(each.templated for each in dialogues):
            template = chat_templates.adopt(tokenizer, subject.chat_template, inherited_template(context))
        limit = subject.max_length if longest is None else min(subject.max_length, longest)
        train_on = subject.train_on or "completions"
        examples = encode_completions(tokenizer, dialogues, rows.index, limit, train_on, stops_of(model))
        tell(context, examined(tokenizer, dialogues, examples, limit, task.name, rows.format, template))
        pad = padding_token(tokenizer)
        loss = partial(completion_loss, smoothing=subject.label_smoothing_factor)
        if subject.packing:
            return Lesson(pack_completions(examples, limit), Packed(pad), loss)
        return Lesson(examples, Together(pad), loss)


def unfit(words: Any, heads: Iterable[str]) -> str | None:
    """Why a model of this resolved architecture cannot continue texts, as a sentence without its subject."""
    if "causal_lm" not in heads and "seq2seq_lm" in heads:
        return (
            "is of the kind causal, which decoders learn; an encoder-decoder learns the same rows as pairs: "
            "{kind: instruction_pairs, train: …}"
        )
    why = sees_ahead(words)
    return None if why is None else f"is of the kind causal, which {why}"


def completion_loss(model: Any, inputs: dict[str, Tensor], smoothing: float = 0.0) -> tuple[Tensor, Any]:
    """Cross-entropy summed over the learnt tokens (); the head computes logits for these alone: (learnt, vocab)."""
    from pipelines.objectives.losses import IGNORED, logits_of
    from pipelines.trainers.losses import cross_entropy

    inputs = dict(inputs)
    labels = inputs.pop("labels")  # (batch, length)
    outputs, logits = logits_of(model, inputs, labels != IGNORED)
    return cross_entropy(logits, labels[labels != IGNORED], smoothing), outputs


def stops_of(model: Any) -> tuple[int, ...]:
    """The tokens at which the model's own generation ends."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return () if own is None else tuple(own) if isinstance(own, list | tuple) else (int(own),)


def inherited_template(context: Context) -> str | None:
    """The chat template that the model read by this stage was trained with, where an earlier stage gave it one."""
    source = context.recipe.model_of(context.recipe.stage(context.stage_id))
    found = None if source == START else context.open_tokenizer(source).chat_template
    return found if isinstance(found, str) else None

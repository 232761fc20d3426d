"""What a multi-task stage will cost: that of its tasks, each as often as sampling lets a part of a step be of it.

All of them share a body, which is counted once; heads are added up. Where answers are written there is one model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from pipelines.core.costs import FLOAT
from pipelines.trainers.multi_task import apportioned, parts_of_epoch

if TYPE_CHECKING:
    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Head
    from pipelines.trainers.multi_task import MultiTask

Amount = TypeVar("Amount", int, float)


@dataclass(frozen=True)
class _OfOneTask:
    """A part of a step: so many examples of one task."""

    head: Head
    rows: int | None
    """Of the task, those that are learnt from."""
    plan: StagePlan
    """Of a training that consists of this part."""


def cost(stage: MultiTask, planning: Planning) -> StagePlan:
    """The plan of a multi-task stage; notes say what is not known."""
    notes = [*planning.notes]
    parts = [_part(stage, planning, place, notes) for place in range(len(stage.tasks))]
    first = parts[0].plan
    examples = first.examples_per_step or 0
    counts, steps = _counts(stage, [part.rows for part in parts], examples)
    plan = replace(
        first,
        sequence_length=max(part.plan.sequence_length or 0 for part in parts),
        target_length=max((part.plan.target_length for part in parts if part.plan.target_length), default=None),
        usual_length=_longest_usual([part.plan for part in parts]),
        examples_per_step=examples * stage.parts,
        examples_asked=stage.arguments.global_batch_size,
        steps=steps,
        tokens=_summed(counts, [part.plan.tokens for part in parts]),
        flops=_summed(counts, [part.plan.flops for part in parts]),
        seconds=_summed(counts, [part.plan.seconds for part in parts]),
        notes=tuple(dict.fromkeys((*notes, *(note for part in parts for note in part.plan.notes)))),
    )
    fullest = max(parts, key=lambda part: 0 if part.plan.memory is None else part.plan.memory.peak)
    plan = replace(plan, memory=fullest.plan.memory)
    return plan if stage.writes else _with_heads(plan, planning, parts, fullest)


def _longest_usual(plans: Sequence[StagePlan]) -> int | None:
    """The usual length of the longest task; None where none is known."""
    lengths = [plan.usual_length or plan.sequence_length or 0 for plan in plans]
    return max(lengths) if any(plan.usual_length is not None for plan in plans) else None


def _part(stage: MultiTask, planning: Planning, place: int, notes: list[str]) -> _OfOneTask:
    """One task of the stage, and a step that consists of one part of it."""
    entry = stage.learnt(stage.tasks[place])
    head, example, rows = entry.planned(entry.resolved(entry.id), notes)
    rows = planning.rows_to_learn(stage, rows, notes, f"rows of '{entry.id}'")
    arguments, sizes = stage.arguments, {"max_steps": 1}
    if arguments.global_batch_size is not None:
        sizes["global_batch_size"] = arguments.global_batch_size // stage.parts
    elif stage.parts > 1:
        each, accumulated = arguments.batch_sizes(processes=1)
        sizes |= {"per_device_train_batch_size": each * accumulated // stage.parts}
    alone = stage.model_copy(update={"arguments": type(arguments)(**{**arguments.given(), **sizes})})
    return _OfOneTask(head, rows, planning.training(alone, head, replace(example, frozen_once=False), rows, []))


def _counts(stage: MultiTask, rows: Sequence[int | None], examples: int) -> tuple[list[int] | None, int | None]:
    """(parts of each task in the whole training, steps); None where rows decide that cannot be counted."""
    given = stage.arguments.max_steps if stage.arguments.max_steps > 0 else None
    sizes = [min(each, stage.max_examples_per_task or each) for each in rows if each is not None]
    if len(sizes) < len(rows) or not all(sizes):  # the run itself refuses a task without rows
        return None, given
    an_epoch = parts_of_epoch(sizes, examples, stage.parts)
    epochs = stage.arguments.num_train_epochs
    steps = math.ceil(an_epoch // stage.parts * epochs) if given is None else given
    counts, left, whole = [0] * len(sizes), steps * stage.parts, max(1, math.ceil(epochs))
    epoch = 0
    while left > 0:
        here = apportioned(min(left, an_epoch), stage.sampled.weights(sizes, stage.ids, epoch, whole))
        counts = [before + more for before, more in zip(counts, here, strict=True)]
        left, epoch = left - sum(here), epoch + 1
    return counts, steps


def _summed(counts: Sequence[int] | None, each: Sequence[Amount | None]) -> Amount | None:
    """The sum over all parts; None where one of them is not known."""
    if counts is None or None in each:
        return None
    return sum(count * amount for count, amount in zip(counts, each, strict=True) if amount is not None)


def _with_heads(plan: StagePlan, planning: Planning, parts: Sequence[_OfOneTask], fullest: _OfOneTask) -> StagePlan:
    """The plan of a body under the first head, and of its memory under that of `fullest`, with the heads of the other
    tasks, which learn whatever the tuner."""
    if planning.model is None or plan.all_parameters is None or plan.trainable_parameters is None:
        return plan
    heads = sum(planning.model.outside_body(part.head) for part in parts)
    others = heads - planning.model.outside_body(parts[0].head)
    parameters = {**plan.parameters, "other heads": others, "total": plan.parameters["total"] + others}
    plan = replace(
        plan,
        parameters=parameters,
        all_parameters=plan.all_parameters + others,
        trainable_parameters=plan.trainable_parameters + others,
    )
    if plan.memory is None:
        return plan
    weights = (heads - planning.model.outside_body(fullest.head)) * FLOAT
    optimizer = 2 * weights  # as of AdamW
    memory = replace(
        plan.memory,
        weights=plan.memory.weights + weights,
        gradients=plan.memory.gradients + weights,
        optimizer=plan.memory.optimizer + optimizer,
        peak=plan.memory.peak + 2 * weights + optimizer,
    )
    return replace(plan, memory=memory)

"""What an evaluate stage costs: every benchmark with each row as one sequence of the mean length where the files tell
it, and held-out text in blocks."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

from pipelines.architectures.arithmetic import WORD_HEADS
from pipelines.core.costs import BYTES_PER_TOKEN, ModelSize, Planning, StagePlan
from pipelines.core.errors import FineryError
from pipelines.core.interfaces import Head
from pipelines.core.registry import TASK_KINDS
from pipelines.data.row_counts import text_bytes
from pipelines.tasks.known import head_without_rows, mean_tokens, task_rows

if TYPE_CHECKING:
    from pipelines.core.decoding import Generation
    from pipelines.evaluation.evaluate import Evaluate
    from pipelines.tasks.base import LabelledTask
    from pipelines.tasks.evaluation import BenchmarkChoice

DEFAULT_LENGTH = 128
"""Tokens of an evaluated sequence where no stage says."""


def evaluation_cost(stage: Evaluate, planning: Planning) -> StagePlan:
    """The operations and the time of the stage, or notes that say why they are not known."""
    notes = [*planning.notes]
    if stage.prompts is not None:
        notes.append("what sampling costs depends on how many prompts there are and how long completions get")
        return StagePlan(stage.id, stage.stage, notes=tuple(notes))
    if stage.few_shot is not None:
        notes.append("what zero- and few-shot questions cost depends on the length of their prompts")
        return StagePlan(stage.id, stage.stage, notes=tuple(notes))
    tokens = flops = 0
    try:
        choices, _ = stage.choices(planning.recipe)
        parts = (_benchmark(stage, planning, choice, notes) for choice in choices)
        for part in chain(parts, (_held_out(stage, planning, notes) for _ in range(bool(stage.datasets)))):
            if part is None:
                return StagePlan(stage.id, stage.stage, notes=tuple(dict.fromkeys(notes)))
            tokens, flops = tokens + part[0], flops + part[1]
    except FineryError:
        raise
    except Exception as error:  # transformers refuses in many ways
        return planning.not_built(stage, notes, error)
    return StagePlan(
        stage.id,
        stage.stage,
        tokens=tokens,
        flops=flops,
        seconds=flops / planning.flops_per_second,
        notes=tuple(dict.fromkeys(notes)),
    )


def _benchmark(
    stage: Evaluate, planning: Planning, choice: BenchmarkChoice, notes: list[str]
) -> tuple[int, int] | None:
    """(tokens, operations) of scoring a benchmark; None, and a note, when its rows cannot be counted."""
    task: Any = choice.open_task()  # or its wrapper that asks it as text
    model = planning.model
    head = head_without_rows(task, notes)
    length = stage.max_length or choice.trained_length(planning.recipe) or DEFAULT_LENGTH
    most_target = choice.trained_target_length(planning.recipe) or length
    written = head.kind in WORD_HEADS
    tokens = flops = 0
    for split in task.evaluation_splits.values():
        rows = task_rows(task, split)
        read, target = _usual(task, split, length, most_target, notes)
        if stage.max_eval_samples is not None:
            rows = stage.max_eval_samples if rows is None else min(rows, stage.max_eval_samples)
        if rows is None:
            notes.append(f"how many rows {choice.name} has will be known when the run starts")
            return None
        if model is None:
            return None
        # both answers of a pair, or the options of a question
        rows *= 2 if head.kind == "reward" else TASK_KINDS.load(task.kind).sequences(task) or 1
        each = model.forward(head, read, target, target if written else 0)
        if written:  # every beam, and every pass of mask-predict over each length, is a target of its own
            each += (_targets(model, stage.generation, head) - 1) * (each - model.forward(head, read, 1, 1))
        flops += rows * each
        tokens += rows * (read + (target if written else 0))
    return tokens, flops


def _usual(task: LabelledTask, split: str, length: int, target: int, notes: list[str]) -> tuple[int, int]:
    """Tokens that a row of the split has, and its target: on average where the files say that, else the most. Texts of
    similar length are asked together, so that padding adds little."""
    mean = mean_tokens(task, split)
    if mean is None:
        notes.append("at most: every sequence is counted with max_length")
        return length, target
    notes.append(f"by the mean length of texts, taking a token for {BYTES_PER_TOKEN} bytes")
    return min(length, mean[0]), min(target, mean[1])


def _targets(model: ModelSize, generation: Generation, head: Head) -> int:
    """How many targets the decoder reads for each text that it writes."""
    if (model.words(head) or {}).get("bidirectional_decoder"):
        return generation.iterations * generation.length_beam
    return generation.num_beams


def _held_out(stage: Evaluate, planning: Planning, notes: list[str]) -> tuple[int, int] | None:
    """(tokens, operations) of measuring a pretraining objective on text."""
    trained, model = stage.text_model(planning.recipe), planning.model
    sizes = [text_bytes(reference, stage.max_eval_samples) for reference in stage.datasets or ()]
    if model is None or trained is None:
        return None
    if None in sizes:
        notes.append("how much text there is will be known when the run starts")
        return None
    example = trained.objective.example(trained.block_size)
    step = stage.stride or max(1, trained.objective.raw_length(trained.block_size))
    blocks = math.ceil(sum(size for size in sizes if size is not None) / BYTES_PER_TOKEN / step)
    notes.append(f"about {blocks:,} blocks of text, taking a token for {BYTES_PER_TOKEN} bytes")
    each = model.forward(trained.objective.head, example.length, example.target, example.predicted)
    return blocks * example.length, blocks * each

"""What the stages that learn from preferences, or from what they sample, pass through their models.

What a stage costs that samples completions and has them judged, before anything is loaded.

What a stage passes through its models that learns from preferences, before anything is loaded.

What a ppo stage passes through its models, before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.core.interfaces import Head
from pipelines.runs.planning import sizes
from pipelines.runs.planning.model_size import PLAIN_HEADS, Shape, first_line
from pipelines.runs.planning.sizes import prompt_rows

if TYPE_CHECKING:
    from pipelines.core.recipe import Recipe
    from pipelines.runs.planning.plan import StagePlan


PLAIN_PROMPT = 64
"""Tokens of a prompt where the recipe does not say."""


def feedback(stage: Any, shape: Shape | None, notes: list[str], flops_per_second: float) -> StagePlan:
    """The sampling; of the judging only how many questions there are, for another model answers them.

    With keys and values kept, a completion costs about one forward pass over its prompt and itself.
    """
    from pipelines.runs.planning.plan import StagePlan

    rows, count = prompt_rows(stage.prompts), stage.completions
    if rows is None:
        return StagePlan(
            stage.id,
            stage.stage,
            notes=(*notes, "how many prompts there are will be known when the run starts, or set prompts.max_samples"),
        )
    pairs = count // 2 if stage.pairs == "random" else count * (count - 1) // 2
    asked = (
        f"{rows * count:,} completions are rated" if stage.by == "ratings" else f"{rows * pairs:,} pairs are compared"
    )
    notes += [
        f"at most: every completion is counted with response_length {stage.response_length}",
        f"what the judge '{stage.judge.name}' costs is not counted: at most {asked}",
    ]
    if shape is None or shape.family == "encoder":
        return StagePlan(stage.id, stage.stage, notes=tuple(notes))
    length, response = stage.prompts.max_length or PLAIN_PROMPT, stage.response_length
    head = PLAIN_HEADS[shape.family]
    both = shape.family == "encoder-decoder"
    try:
        each = shape.forward(head, length if both else length + response, response, response)
    except Exception as error:  # transformers refuses in many ways; the run itself says it in full
        return StagePlan(stage.id, stage.stage, notes=(*notes, f"the model cannot be built: {first_line(error)}"))
    flops = rows * count * each
    return StagePlan(
        stage.id,
        stage.stage,
        sequence_length=length + response,
        tokens=rows * count * (length + response),
        flops=flops,
        seconds=flops / flops_per_second,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class Asked:
    """The parts of one example of a stage."""

    head: Head
    rows: int | None
    """Examples of an epoch; None where that is not known."""
    sequences: int
    """Sequences of an example that are learnt from."""
    forwards: int
    """Passes without gradients that each of them costs beside."""
    source: int
    """Tokens of a row, or of the prompt where an encoder-decoder reads it."""
    copies: bool = False
    """Whether a frozen copy of the model is in memory."""
    notes: tuple[str, ...] = ()
    target: int = 0
    """Tokens of a completion that the policy samples."""


def asked(stage: Any, recipe: Recipe) -> Asked:
    """What a `reward`, `dpo` or `kto` stage asks for."""
    rows = _rows(stage)
    if stage.stage == "reward":
        return Asked(Head("reward"), rows, 2, 0, stage.max_length)
    from pipelines.trainers.tuning import head_kind

    head = Head(head_kind(recipe))  # type: ignore[arg-type]
    source = stage.max_prompt_length or stage.max_length if head.kind == "seq2seq_lm" else stage.max_length
    if stage.stage == "kto":
        singles = None if rows is None else 2 * rows
        return Asked(
            head,
            singles,
            1,
            3,
            source,
            not stage.tuner.adapts,
            ("a pair is counted as two answers, and an answer with one pass of the reference and two for the KL",),
        )
    from pipelines.trainers.arguments import split
    from pipelines.trainers.dpo_settings import SETTINGS, needs_reference

    own, _ = split(stage.arguments, SETTINGS)
    if not needs_reference(own):
        return Asked(head, rows, 2, 0, source)
    if own["precompute_ref_log_probs"]:
        return Asked(
            head, rows, 2, 0, source, notes=("the reference's one pass over the data before training is not counted",)
        )
    return Asked(head, rows, 2, 1, source, stage.reference is not None or not stage.tuner.keeps_base)


def _rows(stage: Any) -> int | None:
    """Rows that a stage learns from."""
    if stage.task is not None:
        task = stage.resolved(stage.id)
        rows = sizes.task_rows(task, "train")
        if rows is not None and task.share is not None and task.name and len(task.places) == 1:
            rows = sizes.whole_rows(task)
            rows = None if rows is None else rows - round(rows * task.share)
    else:
        counts = [sizes.reference_rows(each) for each in stage.datasets]
        rows = None if None in counts else sum(count for count in counts if count is not None)
    if stage.max_train_samples is None:
        return rows
    limit: int = stage.max_train_samples
    return limit if rows is None else min(rows, limit)


def sampled(stage: Any) -> Asked:
    """What a `grpo` or `rloo` stage asks for: its examples are completions."""
    from pipelines.trainers.arguments import split

    own, _ = split(stage.arguments, stage.settings)
    prompts, written = sizes.prompt_rows(stage.prompts), own["max_completion_length"]
    length = (stage.prompts.max_length or PLAIN_PROMPT) + written
    notes = (
        f"at most: every completion is counted with max_completion_length {written}, and as one forward pass over its prompt and itself",
        f"what the reward '{stage.reward.name}' costs is not counted",
    )
    rows = None if prompts is None else prompts * own["num_generations"]
    return Asked(Head("causal_lm"), rows, 1, 1 + (own["beta"] > 0), length, notes=notes, target=written)


FORWARDS = 3
"""Passes without gradients of a completion: sampling it with keys and values kept, reading it again, the reference."""
PASSES = 3
"""A forward and a backward pass, in forward passes."""


def sampled_plan_ppo(stage: Any, recipe: Recipe) -> Asked:
    """What the stage asks for: its examples are completions, learnt from `num_ppo_epochs` times."""
    from pipelines.trainers.tuning import head_kind

    s = stage.settings
    head = Head(head_kind(recipe))  # type: ignore[arg-type]
    prompt = stage.prompts.max_length or PLAIN_PROMPT
    notes = [
        f"at most: every completion is counted with response_length {s.response_length}, and its sampling as one forward pass",
        f"what the reward '{stage.reward.name}' costs is not counted",
    ]
    bodies = 1
    if stage.value != "shared":
        notes.append("the value function's own body is counted as a second model in the operations, not in the memory")
        bodies = 2
    if s.ptx_coef:
        notes.append("the pretraining text of datasets is counted as one more pass of each epoch")
    learnt = s.num_ppo_epochs * (bodies + bool(s.ptx_coef))
    length = prompt if head.kind == "seq2seq_lm" else prompt + s.response_length
    rows = prompt_rows(stage.prompts)
    return Asked(
        head,
        rows,
        1,
        FORWARDS + bodies - 1 + PASSES * (learnt - 1),
        length,
        target=s.response_length,
        copies=not stage.tuner.keeps_base,
        notes=tuple(notes),
    )

"""What a stage passes through its models that learns from preferences, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines import sizes
from pipelines.protocols import Head

if TYPE_CHECKING:
    from pipelines.recipe import Recipe


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
    from pipelines.trainers.policy import head_kind

    head = Head(head_kind(recipe))  # type: ignore[arg-type]
    source = stage.max_prompt_length or stage.max_length if head.kind == "seq2seq_lm" else stage.max_length
    if stage.stage == "kto":
        singles = None if rows is None else 2 * rows
        return Asked(
            head, singles, 1, 3, source, not stage.tuner.adapts,
            ("a pair is counted as two answers, and an answer with one pass of the reference and two for the KL",),
        )  # fmt: skip
    from pipelines.trainers.dpo_settings import SETTINGS, needs_reference
    from pipelines.trainers.own_arguments import split

    own, _ = split(stage.arguments, SETTINGS)
    if not needs_reference(own):
        return Asked(head, rows, 2, 0, source)
    if own["precompute_ref_log_probs"]:
        return Asked(head, rows, 2, 0, source, notes=("the reference's one pass over the data before training is not counted",))
    return Asked(head, rows, 2, 1, source, stage.reference is not None or not stage.tuner.leaves_base)


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
    from pipelines.plan_sampling import PLAIN_PROMPT
    from pipelines.trainers.own_arguments import split

    own, _ = split(stage.arguments, stage.settings)
    prompts, written = sizes.prompt_rows(stage.prompts), own["max_completion_length"]
    length = (stage.prompts.max_length or PLAIN_PROMPT) + written
    notes = (
        f"at most: every completion is counted with max_completion_length {written}, and as one forward pass over its prompt and itself",
        f"what the reward '{stage.reward.name}' costs is not counted",
    )
    rows = None if prompts is None else prompts * own["num_generations"]
    return Asked(Head("causal_lm"), rows, 1, 1 + (own["beta"] > 0), length, notes=notes, target=written)

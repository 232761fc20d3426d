"""What a stage costs that samples completions and has them judged, before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.shapes import PLAIN_HEADS, Shape, first_line
from pipelines.sizes import prompt_rows

if TYPE_CHECKING:
    from pipelines.plan import StagePlan

PLAIN_PROMPT = 64
"""Tokens of a prompt where the recipe does not say."""


def feedback(stage: Any, shape: Shape | None, notes: list[str], flops_per_second: float) -> StagePlan:
    """The sampling; of the judging only how many questions there are, for another model answers them.

    With keys and values kept, a completion costs about one forward pass over its prompt and itself.
    """
    from pipelines.plan import StagePlan

    rows, count = prompt_rows(stage.prompts), stage.completions
    if rows is None:
        return StagePlan(stage.id, stage.stage, notes=(*notes, "how many prompts there are will be known when the run starts, or set prompts.max_samples"))
    pairs = count // 2 if stage.pairs == "random" else count * (count - 1) // 2
    asked = f"{rows * count:,} completions are rated" if stage.by == "ratings" else f"{rows * pairs:,} pairs are compared"
    notes += [f"at most: every completion is counted with response_length {stage.response_length}", f"what the judge '{stage.judge.name}' costs is not counted: at most {asked}"]
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
        stage.id, stage.stage, sequence_length=length + response, tokens=rows * count * (length + response), flops=flops,
        seconds=flops / flops_per_second, notes=tuple(notes),
    )  # fmt: skip

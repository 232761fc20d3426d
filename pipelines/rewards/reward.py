"""What every reward promises: texts in, one number for each out.

A reward reads text, never token ids, so that the model behind it may have another tokenizer than the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pipelines.blocks import Consulted, Mistakes

if TYPE_CHECKING:
    from pipelines.protocols import Context

Scorer = Callable[[Sequence[str], Sequence[str]], list[float]]
"""`scorer(prompts, completions)`: a finite number for each pair. `prompts` are those of `data.prompts`, which know their
messages, or plain texts. What stands beside a pair changes its number by rounding at most."""


class RewardBlock(Consulted):
    """A reward in a recipe."""

    def open(self, context: Context) -> Scorer:
        """The function that scores. Called once a stage, on every process. Raises ModelError."""
        raise NotImplementedError


def one_place(source: str | None, checkpoint: str | None) -> None:
    """Raise Mistakes unless either a stage or a checkpoint is named."""
    if (source is None) == (checkpoint is None):
        given = "both were given" if source is not None else "neither was given"
        raise Mistakes([((), f"needs either 'from' (an earlier stage) or 'checkpoint' (a folder or a Hub name); {given}")])

"""How a model writes when it is evaluated: the block of an evaluate stage's `generation`."""

from __future__ import annotations

from pydantic import Field

from pipelines.blocks import Block


class Generation(Block):
    """Decoding of tasks whose answers are texts."""

    num_beams: int = Field(4, ge=1, le=64)
    """Hypotheses that beam search follows at once; 1 is greedy search. Vaswani et al. 2017, section 6.1, used 4."""
    length_penalty: float = Field(1.0, ge=-10, le=10)
    """A hypothesis' log-probability is divided by its length to this power: above 0 favours longer ones."""
    max_new_tokens: int | None = Field(None, ge=1, le=131072)
    """Tokens after which a text is cut. Default: the target length the model was trained with, else 128."""
    iterations: int = Field(10, ge=1, le=1000)
    """Passes of mask-predict decoding, for models that were trained with it. Ghazvininejad et al. 2019, section 4.2."""
    length_beam: int = Field(5, ge=1, le=64)
    """Lengths that mask-predict decoding tries at once, the likeliest first."""

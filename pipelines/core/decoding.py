"""How answers are found when a model is evaluated: the decoding of written texts, and the choice of spans.

How a model writes when it is evaluated: the block of an evaluate stage's `generation`.

How answers are found in texts when a model is evaluated: the block of an evaluate stage's `spans`.
"""

from __future__ import annotations

from pydantic import Field

from pipelines.core.config import Block


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


class SpanSettings(Block):
    """Reading of long contexts, and the choice of an answer. Names and defaults are those of BERT's `run_squad.py`."""

    doc_stride: int | None = Field(None, ge=0, le=131072)
    """Tokens that neighbouring windows share. Default: what the model was trained with, else a third of a window."""
    n_best_size: int = Field(20, ge=1, le=1000)
    """Best first and best last tokens of a window that are combined to answers, and answers that are kept."""
    max_answer_length: int = Field(30, ge=1, le=131072)
    """Tokens of an answer at most."""
    null_score_diff_threshold: float | None = None
    """Where questions may have no answer: "no answer" is said when it scores better than the best answer by more than
    this. Default: what gives the best F1 on the part of train that was set aside (`eval_strategy`), if some questions
    there have no answer; else 0."""

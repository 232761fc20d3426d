"""How answers are found in texts when a model is evaluated: the block of an evaluate stage's `spans`."""

from __future__ import annotations

from pydantic import Field

from pipelines.blocks import Block


class SpanSettings(Block):
    """Reading of long contexts, and the choice of an answer. Names and defaults are those of BERT's `run_squad.py`."""

    doc_stride: int | None = Field(None, ge=0, le=131072)
    """Tokens that neighbouring windows share. Default: what the model was trained with, else a third of a window."""
    n_best_size: int = Field(20, ge=1, le=1000)
    """Best first and best last tokens of a window that are combined to answers, and answers that are kept."""
    max_answer_length: int = Field(30, ge=1, le=131072)
    """Tokens of an answer at most."""
    null_score_diff_threshold: float | None = None
    """Where questions may have no answer: "no answer" is said when it scores better than the best answer by more than this. Default:
    what gives the best F1 on the part of train that was set aside (`eval_strategy`), if some questions there have no answer; else 0."""

"""Asking a language model without training it on the task: the block of an evaluate stage's `few_shot`.

Brown et al. 2020, "Language Models are Few-Shot Learners", section 2.4, arxiv.org/abs/2005.14165: K examples of the task
stand before the question, drawn from its training rows, and the model completes the text. See docs/few-shot.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator

from pipelines.blocks import Block, Mistakes
from pipelines.evaluation.prompts import Prompt

Normalisation = Literal["characters", "bytes", "tokens"]
Calibration = Literal["contextual", "answer_context"]
NORMALISED = {"characters": "acc_norm", "bytes": "acc_bytes", "tokens": "acc_tokens"}
"""The score of each way to divide a log-likelihood by the length of its answer."""


def _several(value: Any) -> Any:
    """One name stands for a list of it; `none` for an empty list."""
    if value == "none":
        return ()
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _names(*allowed: str) -> WithJsonSchema:
    one: dict[str, Any] = {"enum": list(allowed)}
    return WithJsonSchema({"anyOf": [{"enum": [*allowed, "none"]}, {"type": "array", "items": one}]})


class FewShot(Block):
    """Zero-, one- and few-shot questions."""

    shots: tuple[Annotated[int, Field(ge=0, le=1024)], ...] = Field((0,), min_length=1)
    """How many examples stand before a question; each number is a benchmark of its own: `glue/sst2/8-shot`."""
    draws: int = Field(1, ge=1, le=100)
    """How often other examples are drawn. Scores are means over the draws, and their spread stands in details.json."""
    seed: int | None = Field(None, ge=0, lt=2**32)
    """Draws the examples. Default: the stage's."""
    examples: Literal["question", "split"] = "question"
    """Whether examples are drawn for each question (GPT-3), or once for all questions of a split, which is faster."""
    stratified: bool = False
    """Whether the examples of a task with classes hold all classes equally often, as far as their number allows."""
    answer: Literal["likelihood", "generation"] | None = None
    """Whether the likeliest of the possible answers is taken, or what the model writes. Default: the likeliest where a task
    has possible answers, what is written where answers are texts."""
    normalisation: Annotated[
        tuple[Normalisation, ...], BeforeValidator(_several), _names("characters", "bytes", "tokens")
    ] = ("characters",)
    """By what the log-likelihood of an answer is divided for a second accuracy: characters (acc_norm, as lm_eval), bytes
    (acc_bytes), tokens (acc_tokens)."""
    calibration: Annotated[tuple[Calibration, ...], BeforeValidator(_several), _names("contextual", "answer_context")] = ()
    """Corrections for answers that a model likes anyway: contextual (Zhao et al. 2021: acc_contextual), answer_context
    (Brown et al. 2020: acc_answer_context)."""
    prompts: Mapping[str, Prompt] = Field(default_factory=dict)
    """Prompts by benchmark, instead of those that Finery has: `{glue/sst2: {text: "{sentence} It was", answers: [bad, good]}}`."""

    @field_validator("shots", "normalisation", "calibration")
    @classmethod
    def _once(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        again = [at for at, each in enumerate(value) if each in value[:at]]
        if again:
            raise Mistakes([((at,), f"'{value[at]}' is named twice") for at in again])
        return value

    def names(self, benchmark: str) -> dict[str, int]:
        """The keys of a benchmark in metrics.json, with the number of examples of each."""
        return {f"{benchmark}/{count}-shot": count for count in self.shots}

    def accuracies(self) -> tuple[str, ...]:
        """The scores of answers chosen by likelihood."""
        return ("acc", *(NORMALISED[each] for each in self.normalisation), *(f"acc_{each}" for each in self.calibration))

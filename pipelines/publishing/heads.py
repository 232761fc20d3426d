"""What a trained stage's head means to others: the Auto class that loads it, and the Hub's word for its task."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import ModelError
from pipelines.protocols import Head


@dataclass(frozen=True)
class Use:
    """How a reader of the model card uses a head."""

    auto_class: str
    pipeline_tag: str
    words: str


USES = {
    "sequence_classification": Use(
        "AutoModelForSequenceClassification", "text-classification", "a classifier of texts"
    ),
    "token_classification": Use(
        "AutoModelForTokenClassification", "token-classification", "a classifier of the tokens of a text"
    ),
    "question_answering": Use(
        "AutoModelForQuestionAnswering", "question-answering", "a model that finds the answer to a question in a text"
    ),
    "multiple_choice": Use("AutoModelForMultipleChoice", "multiple-choice", "a model that chooses the best of several options"),
    "masked_lm": Use("AutoModelForMaskedLM", "fill-mask", "a masked language model"),
    "pretraining": Use(
        "AutoModelForPreTraining", "fill-mask", "a masked language model that also judges pairs of texts"
    ),
    "causal_lm": Use("AutoModelForCausalLM", "text-generation", "a language model that continues texts"),
    "seq2seq_lm": Use("AutoModelForSeq2SeqLM", "text-generation", "a model that writes one text from another"),
}
"""By head kind: everything that a stage can train."""


def read_head(model_folder: Path) -> Head:
    """The head that a trained stage wrote down in `head.json`. Raises ModelError."""
    try:
        record = json.loads((model_folder / "head.json").read_text(encoding="utf-8"))
        kind, labels = record["kind"], tuple(record["labels"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ModelError(
            f"'{model_folder}' holds no readable head.json; run the stage that trained the model again"
        ) from None
    if kind not in USES:
        raise ModelError(f"models with the head '{kind}' cannot be published yet; those that can: {', '.join(USES)}")
    return Head(kind, labels)


def is_adapter(model_folder: Path) -> bool:
    """Whether the folder holds a PEFT adapter instead of a whole model."""
    return (model_folder / "adapter_config.json").is_file()

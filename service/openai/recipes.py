"""The recipe behind a fine-tuning job: one supervised stage, scores where a validation file is given, one publication."""

from __future__ import annotations

from typing import Any

from pipelines.marks import write_yaml
from service.openai.bases import Base
from service.openai.hyperparameters import Hyperparameters

STAGE = "supervised"
LARGE = 2_000_000
"""Characters of a training file from which on a larger vocabulary pays."""
LONGEST = 512
"""Tokens of a row; longer ones lose their end, and the job warns."""
VALIDATED = 200
"""Rows of the validation file that are scored."""


def supervised_recipe(
    name: str, base: Base, training_file: str, validation_file: str | None, numbers: Hyperparameters, seed: int,
    characters: int, publish: str,
) -> str:  # fmt: skip
    """The recipe's text. Files are ids of uploads; without a validation file every row is learnt and none is scored."""
    stage: dict[str, Any] = {
        "stage": "supervised",
        "task": {"kind": "causal", "format": "messages", "train": f"file:{training_file}", "validation": f"file:{validation_file or training_file}"},
        "max_length": min(LONGEST, base.positions or LONGEST),
        "arguments": numbers.arguments(),
    }
    recipe: dict[str, Any] = {"name": name, "seed": seed, "model": base.model}
    if base.from_scratch:
        recipe["tokenizer"] = {"train": "byte_bpe", "vocab_size": 8192 if characters >= LARGE else 2048}
        stage["chat_template"] = "chatml"
    stages = [stage]
    if validation_file is not None:
        stages.append({"stage": "evaluate", "max_eval_samples": VALIDATED, "generation": {"max_new_tokens": 48}})
    stages.append({"stage": "publish", "to": publish})
    return write_yaml(recipe | {"stages": stages})

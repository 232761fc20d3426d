"""The recipe behind a fine-tuning job: one stage that learns, scores where a validation file is given, one publication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.marks import write_yaml
from service.openai.bases import Base
from service.openai.hyperparameters import RESPONSE, Hyperparameters

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
    return _written(recipe, stages, publish)


def dpo_recipe(name: str, base: Base, training_file: str, validation_file: str | None, numbers: Hyperparameters, seed: int, publish: str) -> str:
    """The recipe's text; with a validation file the stage says how often the model prefers what it should on its pairs."""
    stage: dict[str, Any] = {"stage": "dpo", "max_length": LONGEST, "arguments": numbers.arguments()}
    if validation_file is None:
        stage["datasets"] = [{"path": f"file:{training_file}", "format": "openai"}]
    else:
        stage["task"] = {"kind": "preference", "format": "openai", "train": f"file:{training_file}", "validation": f"file:{validation_file}"}
    return _written({"name": name, "seed": seed, "model": base.model}, [stage], publish)


def reinforcement_recipe(name: str, base: Base, training_file: str, reward: Mapping[str, Any], numbers: Hyperparameters, seed: int, publish: str) -> str:
    """The recipe's text: the model answers the prompts of the file, and learns from what the reward makes of its answers."""
    kept = {key: value for key, value in numbers.arguments().items() if key != "include_num_input_tokens_seen"}
    stage = {
        "stage": "ppo", "prompts": {"path": f"file:{training_file}"}, "reward": dict(reward), "arguments": {**kept, "response_length": RESPONSE},
    }  # fmt: skip
    return _written({"name": name, "seed": seed, "model": base.model}, [stage], publish)


def _written(recipe: Mapping[str, Any], stages: list[dict[str, Any]], publish: str) -> str:
    return write_yaml({**recipe, "stages": [*stages, {"stage": "publish", "to": publish}]})

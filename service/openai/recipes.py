"""The recipe behind a fine-tuning job: OpenAI's methods, models and hyperparameters in the words of a recipe.

A recipe has one stage that learns, scores where a validation file is given, and one publication. `model` names a shape
to train from scratch, a model of the project, or a Hub checkpoint. Hyperparameters, and what `auto` means:

n_epochs                   num_train_epochs; auto: 3 (supervised), 2 (dpo), 1 (reinforcement)
batch_size                 global_batch_size; auto: one in fifty of the examples, at least 4, at most 32
learning_rate_multiplier   times the learning rate of the kind of model, a tenth of it but for supervised; auto: 1
beta                       of dpo, how closely the model is held to what it was; auto: 0.1
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pipelines.core.architecture_fields import presets
from pipelines.core.registry import STAGES
from pipelines.core.yaml_positions import read_yaml, write_yaml
from service.openai.training_files import Shape


@dataclass(frozen=True)
class TrainingMethod:
    """What a method needs."""

    stage: str
    """The stage of the STAGES registry that does it, which is also its id in the recipe."""
    shape: Shape
    """What its rows look like."""
    rate: float = 1.0
    """What the learning rates of supervised learning are multiplied by."""
    epochs: int = 3
    """What `n_epochs: auto` means."""
    from_scratch: bool = False
    """Whether a model that has learnt nothing yet can begin with it."""


METHODS: dict[str, TrainingMethod] = {
    "supervised": TrainingMethod("supervised", "chat", from_scratch=True),
    "dpo": TrainingMethod("dpo", "preference", rate=0.1, epochs=2),
    "reinforcement": TrainingMethod("ppo", "prompt", rate=0.1, epochs=1),
}
"""OpenAI's `method.type` -> the stage that does it."""
STAGE_IDS = frozenset(method.stage for method in METHODS.values())


def refusal(method: str) -> str | None:
    """Why a method cannot be used here, or None when it can."""
    if method not in METHODS:
        return f"there is no method '{method}'; methods: {', '.join(METHODS)}"
    stage = METHODS[method].stage
    if stage not in STAGES:
        return (
            f"the method '{method}' needs the trainer '{stage}', which this version of Finery does not have; use "
            f"{', '.join(available())}"
        )
    return None


def available() -> list[str]:
    """The methods that can be used."""
    return [name for name, method in METHODS.items() if method.stage in STAGES]


SCRATCH = "scratch/"
HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class Base:
    """A model that can be fine-tuned."""

    model: dict[str, Any]
    """The recipe's `model` block."""
    short: str
    """Its part of the name of the fine-tuned model."""
    positions: int | None = None
    """Tokens that it can read at once, where that is known."""

    @property
    def from_scratch(self) -> bool:
        """Whether nothing is learnt yet, the tokenizer included."""
        return "architecture" in self.model


@lru_cache(maxsize=1)
def scratch() -> dict[str, Base]:
    """The decoders that can be trained from nothing, by `scratch/<preset>`."""
    bases = {}
    for name, file in presets().items():
        words, _ = read_yaml(file)
        if words.get("family") == "decoder":
            bases[f"{SCRATCH}{name}"] = Base(
                {"architecture": {"preset": name}}, name, words.get("max_position_embeddings")
            )
    return bases


def base_of(model: str, published: str | None = None) -> Base | None:
    """What a name stands for; `published` is the name of the project's model when it is one. None for unknown names."""
    if model in scratch():
        return scratch()[model]
    if published is not None:
        return Base({"checkpoint": f"model:{published}"}, short_name(published))
    if not model.startswith(SCRATCH) and HUB.fullmatch(model):
        return Base({"checkpoint": model}, model.rpartition("/")[2])
    return None


def short_name(model: str) -> str:
    """`gpt-tiny` of `ft:gpt-tiny:acme::01k…`: names do not grow with every round."""
    parts = model.split(":")
    return parts[1] if parts[0] == "ft" and len(parts) > 1 else model.rpartition("/")[2]


Auto = Literal["auto"]
LEARNING_RATES = {"scratch": 1e-3, "published": 2e-4, "hub": 2e-5}
"""Of AdamW. From scratch as the presets were measured; small models of one's own bear more than large ones of the
Hub."""
BETA = 0.1
"""Rafailov et al. 2023, section 6, arxiv.org/abs/2305.18290."""
RESPONSE = 64
"""Tokens of an answer that reinforcement samples."""


@dataclass(frozen=True)
class ResolvedHyperparameters:
    """What a job trains with, every `auto` resolved."""

    n_epochs: int
    batch_size: int
    learning_rate_multiplier: float
    learning_rate: float
    beta: float | None = None
    """Of dpo."""

    def arguments(self) -> dict[str, float | int | str]:
        """The `arguments` of the stage."""
        own = {} if self.beta is None else {"beta": self.beta}
        return {
            "num_train_epochs": self.n_epochs,
            "global_batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "warmup_steps": 0.05,
            "logging_steps": 1,
            "include_num_input_tokens_seen": "non_padding",
            "save_strategy": "epoch",
            **own,
        }

    def as_openai(self) -> dict[str, float | int]:
        """Under OpenAI's names, as a job shows them."""
        own = {} if self.beta is None else {"beta": self.beta}
        return {
            "n_epochs": self.n_epochs,
            "batch_size": self.batch_size,
            "learning_rate_multiplier": self.learning_rate_multiplier,
            **own,
        }


def resolve(
    base: Base,
    rows: int,
    n_epochs: int | Auto | None,
    batch_size: int | Auto | None,
    learning_rate_multiplier: float | Auto | None,
    beta: float | Auto | None = None,
    method: TrainingMethod = METHODS["supervised"],
) -> ResolvedHyperparameters:
    """The numbers behind what was asked, for a file of so many rows."""
    batch = min(32, max(4, rows // 50)) if batch_size in (None, "auto") else batch_size
    multiplier = 1.0 if learning_rate_multiplier in (None, "auto") else learning_rate_multiplier
    epochs = method.epochs if n_epochs in (None, "auto") else n_epochs
    checkpoint = str(base.model.get("checkpoint", ""))
    rate = LEARNING_RATES["scratch" if base.from_scratch else "published" if checkpoint.startswith("model:") else "hub"]
    assert isinstance(batch, int)
    assert isinstance(epochs, int)
    assert not isinstance(multiplier, str)
    strength = None if method.stage != "dpo" else float(BETA if beta in (None, "auto") else beta or 0)
    return ResolvedHyperparameters(
        epochs, min(batch, rows), float(multiplier), round(rate * method.rate * float(multiplier), 12), strength
    )


LARGE = 2_000_000
"""Characters of a training file from which on a larger vocabulary pays."""
LONGEST = 512
"""Tokens of a row; longer ones lose their end, and the job warns."""
VALIDATED = 200
"""Rows of the validation file that are scored."""


def supervised_recipe(
    name: str,
    base: Base,
    training_file: str,
    validation_file: str | None,
    numbers: ResolvedHyperparameters,
    seed: int,
    characters: int,
    publish: str,
) -> str:
    """The recipe's text. Files are ids of uploads; without a validation file every row is learnt and none is scored."""
    stages = [supervised_stage(base, f"file:{training_file}", _upload(validation_file), numbers)]
    if validation_file is not None:
        stages.append(SCORED)
    return written(name, seed, base, stages, publish, characters)


def dpo_recipe(
    name: str,
    base: Base,
    training_file: str,
    validation_file: str | None,
    numbers: ResolvedHyperparameters,
    seed: int,
    publish: str,
) -> str:
    """The recipe's text; with a validation file the stage says how often the model prefers what it should on its
    pairs."""
    stage = dpo_stage(f"file:{training_file}", _upload(validation_file), numbers)
    return written(name, seed, base, [stage], publish)


def reinforcement_recipe(
    name: str,
    base: Base,
    training_file: str,
    reward: Mapping[str, Any],
    numbers: ResolvedHyperparameters,
    seed: int,
    publish: str,
) -> str:
    """The recipe's text: the model answers the prompts of the file, and learns from what the reward makes of its
    answers."""
    return written(name, seed, base, [reinforcement_stage(f"file:{training_file}", reward, numbers)], publish)


def _upload(file: str | None) -> str | None:
    return None if file is None else f"file:{file}"


SCORED: dict[str, Any] = {
    "stage": "evaluate",
    "max_eval_samples": VALIDATED,
    "generation": {"max_new_tokens": 48},
}
"""The stage that scores what was learnt on its validation file."""


def supervised_stage(
    base: Base, train: str, validation: str | None, numbers: ResolvedHyperparameters
) -> dict[str, Any]:
    """A stage that learns the answers of dialogues; `train` and `validation` are as a recipe names files."""
    return {
        "stage": "supervised",
        "task": {"kind": "causal", "format": "messages", "train": train, "validation": validation or train},
        "max_length": min(LONGEST, base.positions or LONGEST),
        "arguments": numbers.arguments(),
        **({"chat_template": "chatml"} if base.from_scratch else {}),
    }


def dpo_stage(train: str, validation: str | None, numbers: ResolvedHyperparameters) -> dict[str, Any]:
    """A stage that learns from pairs of answers."""
    stage: dict[str, Any] = {"stage": "dpo", "max_length": LONGEST, "arguments": numbers.arguments()}
    if validation is None:
        stage["datasets"] = [{"path": train, "format": "openai"}]
    else:
        stage["task"] = {"kind": "preference", "format": "openai", "train": train, "validation": validation}
    return stage


def reinforcement_stage(train: str, reward: Mapping[str, Any], numbers: ResolvedHyperparameters) -> dict[str, Any]:
    """A stage that learns from a reward of its own answers to prompts."""
    arguments = {key: value for key, value in numbers.arguments().items() if key != "include_num_input_tokens_seen"}
    return {
        "stage": "ppo",
        "prompts": {"path": train},
        "reward": dict(reward),
        "arguments": {**arguments, "response_length": RESPONSE},
    }


def written(
    name: str, seed: int, base: Base, stages: Sequence[Mapping[str, Any]], publish: str, characters: int = 0
) -> str:
    """The text of a recipe with these stages and a publication. `characters` are those that a tokenizer learns from."""
    recipe: dict[str, Any] = {"name": name, "seed": seed, "model": base.model}
    if base.from_scratch:
        recipe["tokenizer"] = {"train": "byte_bpe", "vocab_size": 8192 if characters >= LARGE else 2048}
    return write_yaml({**recipe, "stages": [*stages, {"stage": "publish", "to": publish}]})

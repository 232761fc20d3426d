"""OpenAI's hyperparameters in the words of a recipe, and what `auto` means.

n_epochs                   num_train_epochs; auto: 3 (supervised), 2 (dpo), 1 (reinforcement)
batch_size                 global_batch_size; auto: one in fifty of the examples, at least 4, at most 32
learning_rate_multiplier   times the learning rate of the kind of model, a tenth of it but for supervised; auto: 1
beta                       of dpo, how closely the model is held to what it was; auto: 0.1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.openai.bases import Base
from service.openai.methods import METHODS, Method

Auto = Literal["auto"]
LEARNING_RATES = {"scratch": 1e-3, "published": 2e-4, "hub": 2e-5}
"""Of AdamW. From scratch as the presets were measured; small models of one's own bear more than large ones of the Hub."""
BETA = 0.1
"""Rafailov et al. 2023, section 6, arxiv.org/abs/2305.18290."""
RESPONSE = 64
"""Tokens of an answer that reinforcement samples."""


@dataclass(frozen=True)
class Hyperparameters:
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
            "num_train_epochs": self.n_epochs, "global_batch_size": self.batch_size,
            "learning_rate": self.learning_rate, "warmup_steps": 0.05, "logging_steps": 1, "include_num_input_tokens_seen": "non_padding",
            "save_strategy": "epoch", **own,
        }  # fmt: skip

    def told(self) -> dict[str, float | int]:
        """Under OpenAI's names, as a job shows them."""
        own = {} if self.beta is None else {"beta": self.beta}
        return {"n_epochs": self.n_epochs, "batch_size": self.batch_size, "learning_rate_multiplier": self.learning_rate_multiplier, **own}


def resolve(
    base: Base, rows: int, n_epochs: int | Auto | None, batch_size: int | Auto | None, learning_rate_multiplier: float | Auto | None,
    beta: float | Auto | None = None, method: Method = METHODS["supervised"],
) -> Hyperparameters:  # fmt: skip
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
    return Hyperparameters(epochs, min(batch, rows), float(multiplier), rate * method.rate * float(multiplier), strength)

"""OpenAI's three hyperparameters in the words of a recipe, and what `auto` means.

n_epochs                   num_train_epochs; auto: 3
batch_size                 global_batch_size; auto: one in fifty of the examples, at least 4, at most 32
learning_rate_multiplier   times the learning rate of the kind of model; auto: 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.openai.bases import Base

Auto = Literal["auto"]
LEARNING_RATES = {"scratch": 1e-3, "published": 2e-4, "hub": 2e-5}
"""Of AdamW. From scratch as the presets were measured; small models of one's own bear more than large ones of the Hub."""
EPOCHS = 3


@dataclass(frozen=True)
class Hyperparameters:
    """What a job trains with, every `auto` resolved."""

    n_epochs: int
    batch_size: int
    learning_rate_multiplier: float
    learning_rate: float

    def arguments(self) -> dict[str, float | int | str]:
        """TrainingArguments of the stage."""
        return {
            "num_train_epochs": self.n_epochs, "global_batch_size": self.batch_size,
            "learning_rate": self.learning_rate, "warmup_steps": 0.05, "logging_steps": 1, "include_num_input_tokens_seen": "non_padding",
            "save_strategy": "epoch",
        }  # fmt: skip


def resolve(
    base: Base, rows: int, n_epochs: int | Auto | None, batch_size: int | Auto | None, learning_rate_multiplier: float | Auto | None
) -> Hyperparameters:
    """The numbers behind what was asked, for a file of so many rows."""
    batch = min(32, max(4, rows // 50)) if batch_size in (None, "auto") else batch_size
    multiplier = 1.0 if learning_rate_multiplier in (None, "auto") else learning_rate_multiplier
    epochs = EPOCHS if n_epochs in (None, "auto") else n_epochs
    checkpoint = str(base.model.get("checkpoint", ""))
    rate = LEARNING_RATES["scratch" if base.from_scratch else "published" if checkpoint.startswith("model:") else "hub"]
    assert isinstance(batch, int)
    assert isinstance(epochs, int)
    assert not isinstance(multiplier, str)
    return Hyperparameters(epochs, min(batch, rows), float(multiplier), rate * float(multiplier))

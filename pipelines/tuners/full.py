"""Full fine-tuning: every weight learns, at once or layer by layer, at one rate or at a rate for each layer.

The three ways to keep what pretraining taught are those of Howard and Ruder 2018, "Universal Language Model Fine-tuning
for Text Classification" (ULMFiT), sections 3.2 and 3.3, arxiv.org/abs/1801.06146; each can be used alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from pipelines.blocks import Mistakes
from pipelines.errors import Misfit, ModelError
from pipelines.tuners.gradual import Gradual
from pipelines.tuners.layer_groups import Group, layer_groups
from pipelines.tuners.patterns import matching
from pipelines.tuners.slanted import Slanted
from pipelines.tuners.tuner import TunerBlock


class Full(TunerBlock):
    """Train every weight, or all but the frozen ones."""

    name: Literal["full"] = "full"
    discriminative: float | None = Field(None, gt=1)
    """Each layer learns this many times slower than the one above it, the embeddings slowest: 2.6 in ULMFiT."""
    gradual_unfreezing: Gradual = None
    """`true`: the head learns in the first epoch, and one more layer joins it with every epoch."""
    slanted_triangular: Slanted = None
    """`true`: the learning rates rise over a tenth of the steps and fall over the rest; replaces `arguments`' schedule."""
    freeze: tuple[str, ...] | None = Field(None, min_length=1)
    """Modules or weights that do not learn, such as `embeddings`, `encoder.layer.0` or `*.LayerNorm.*`."""
    train: tuple[str, ...] | None = Field(None, min_length=1)
    """The opposite: only these learn, and the head where it is new."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.freeze is not None and self.train is not None:
            raise Mistakes([(("train",), "is given beside freeze; name either what is frozen or what learns")])
        return self

    @property
    def thaws(self) -> bool:
        return self.gradual_unfreezing is not None

    def apply(self, model: Any) -> Any:
        """The same model. Raises ModelError for a pattern that matches nothing, and when nothing is left to learn."""
        learning = self._learning(model)
        if not learning:
            raise ModelError(f"full.freeze {list(self.freeze or ())} leaves no weight that learns; freeze less")
        if (self.discriminative or self.thaws) and len(layer_groups(model)) < 2:
            raise Misfit(f"{type(model).__name__} has no layers to tell apart; leave discriminative and gradual_unfreezing out")
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in learning)
        return model

    def rates(self, model: Any) -> Mapping[str, float]:
        """1 for the head and for the topmost layer without one, and 1 / discriminative of the layer above for each below."""
        if self.discriminative is None:
            return {}
        groups = layer_groups(model)
        return {name: self.discriminative ** (place + 1 - len(groups)) for place, group in enumerate(groups) for name in group.parameters}

    def thaw(self, model: Any, epoch: int) -> None:
        """Let the layers learn whose epoch has come. What is frozen by name stays so."""
        if self.gradual_unfreezing is None:
            return
        learning = self._learning(model)
        groups = _learning_groups(model, learning)
        awake = {name for group in groups[-self.gradual_unfreezing.thawed(epoch) :] for name in group.parameters}
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in learning & awake)

    def asleep(self, model: Any, epochs: int) -> str | None:
        """The lowest layers, where there are more of them than epochs to wake them in."""
        if self.gradual_unfreezing is None:
            return None
        groups = _learning_groups(model, self._learning(model))
        count = len(groups) - self.gradual_unfreezing.thawed(max(epochs, 1) - 1)
        if count < 1:
            return None
        lowest = groups[0].name if count == 1 else f"{groups[0].name} to {groups[count - 1].name}"
        needed = (len(groups) - 1) * self.gradual_unfreezing.epochs_per_layer + 1
        return f"full.gradual_unfreezing: {count} of {len(groups)} layers ({lowest}) never learn in {epochs} epochs; num_train_epochs: {needed} reaches all"

    def factor(self, step: int, steps: int) -> float | None:
        return None if self.slanted_triangular is None else self.slanted_triangular.factor(step, steps)

    def _learning(self, model: Any) -> set[str]:
        """Names of the parameters that ever learn. Modules that the checkpoint did not bring always do."""
        names = {name for name, _ in model.named_parameters()}
        new = new_weights(model)
        if self.freeze is not None:
            frozen = matching(model, self.freeze, "full.freeze")
            if frozen <= new:
                raise ModelError(f"full.freeze {list(self.freeze)} matches only weights that the checkpoint did not bring: they must learn")
            return names - (frozen - new)
        if self.train is not None:
            return matching(model, self.train, "full.train") | new
        return names


def _learning_groups(model: Any, learning: set[str]) -> list[Group]:
    """The layers in which something learns, from the lowest to the head."""
    return [group for group in layer_groups(model) if learning & set(group.parameters)]


def new_weights(model: Any) -> set[str]:
    """Names of the parameters that the checkpoint did not bring: at their random values they cannot stay."""
    fresh = tuple(f"{module}." for module in getattr(model, "finery_new_modules", ()))
    return {name for name, _ in model.named_parameters() if name.startswith(fresh)} if fresh else set()

"""Full fine-tuning: every weight learns, at once or layer by layer, at one rate or at a rate for each layer.

The three ways to keep what pretraining taught are those of Howard and Ruder 2018, "Universal Language Model Fine-tuning
for Text Classification" (ULMFiT), arxiv.org/abs/1801.06146; each can be used alone. Discriminative rates (section 3.2):
each layer learns slower than the one above it. The slanted triangular schedule (section 3.2, equation 3): a short rise
and a long fall. Gradual unfreezing (section 3.3): the last layer learns first, and one more with every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pipelines.core.config import Block, ConfigIssues, show
from pipelines.core.errors import IncompatibleError, ModelError
from pipelines.tuners.layer_groups import LayerGroup, layer_groups, new_weights
from pipelines.tuners.tuner import TunerBlock

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


class GradualUnfreezing(Block):
    """When each layer begins to learn. arxiv.org/abs/1801.06146, section 3.3."""

    epochs_per_layer: int = Field(1, ge=1)
    """Epochs until the next layer below joins."""

    def unfrozen(self, epoch: int) -> int:
        """How many layers learn in that epoch, the first being 0, counted from the head."""
        return 1 + epoch // self.epochs_per_layer


class SlantedTriangular(Block):
    """A short rise and a long fall of the learning rates. arxiv.org/abs/1801.06146, equation 3."""

    cut_frac: float = Field(0.1, gt=0, lt=1)
    """The share of the steps in which the rates rise."""
    ratio: float = Field(32.0, gt=1)
    """How much smaller the smallest rate is than the largest."""

    def factor(self, step: int, steps: int) -> float:
        """What the rates are multiplied by after `step` of `steps` updates: between 1 / ratio and 1.

        The fall takes `steps - cut` steps, which is the paper's `cut · (1 / cut_frac - 1)` where `cut_frac · steps` is
        whole; elsewhere the paper's would end early and go below zero.
        """
        cut = max(1, int(steps * self.cut_frac))
        height = step / cut if step < cut else 1 - (step - cut) / max(1, steps - cut)
        return (1 + max(height, 0.0) * (self.ratio - 1)) / self.ratio


def _true_or_settings(block: type[Block], example: str) -> Callable[[object], object]:
    """The validator of a key that takes `true`, for the settings as they are by default, or a mapping."""

    def validate(value: object) -> object:
        if isinstance(value, bool):
            return block() if value else None
        if value is None or isinstance(value, block | dict):
            return value
        raise ConfigIssues([((), f"is {show(value)}, must be true, or a mapping such as {example}")])

    return validate


class Full(TunerBlock):
    """Train every weight, or all but the frozen ones."""

    name: Literal["full"] = "full"
    trains_all: ClassVar[bool] = True
    known_elsewhere: ClassVar[bool] = True
    any_layers: ClassVar[bool] = True
    discriminative: float | None = Field(None, gt=1)
    """Each layer learns this many times slower than the one above it, the embeddings slowest: 2.6 in ULMFiT."""
    gradual_unfreezing: Annotated[
        GradualUnfreezing | None,
        BeforeValidator(
            _true_or_settings(GradualUnfreezing, "{epochs_per_layer: 2}"),
            json_schema_input_type=GradualUnfreezing | bool | None,
        ),
    ] = None
    """`true`: the head learns in the first epoch, and one more layer joins it with every epoch."""
    slanted_triangular: Annotated[
        SlantedTriangular | None,
        BeforeValidator(
            _true_or_settings(SlantedTriangular, "{cut_frac: 0.1, ratio: 32}"),
            json_schema_input_type=SlantedTriangular | bool | None,
        ),
    ] = None
    """`true`: the learning rates rise over a tenth of the steps and fall over the rest; replaces `arguments`'
    schedule."""
    freeze: tuple[str, ...] | None = Field(None, min_length=1)
    """Modules or weights that do not learn, such as `embeddings`, `encoder.layer.0` or `*.LayerNorm.*`."""
    train: tuple[str, ...] | None = Field(None, min_length=1)
    """The opposite: only these learn, and the head where it is new."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.freeze is not None and self.train is not None:
            raise ConfigIssues([(("train",), "is given beside freeze; name either what is frozen or what learns")])
        return self

    @property
    def unfreezes(self) -> bool:
        return self.gradual_unfreezing is not None

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """The same model. Raises ModelError for a pattern that matches nothing, and when nothing is left to learn."""
        learning = self._learning(model)
        if not learning:
            raise ModelError(f"full.freeze {list(self.freeze or ())} leaves no weight that learns; freeze less")
        if (self.discriminative or self.unfreezes) and len(layer_groups(model)) < 2:
            raise IncompatibleError(
                f"{type(model).__name__} has no layers to tell apart; leave discriminative and gradual_unfreezing out"
            )
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in learning)
        return model

    def rates(self, model: PreTrainedModel) -> Mapping[str, float]:
        """1 for the topmost layer, and for each below it 1 / discriminative of that of the layer above."""
        if self.discriminative is None:
            return {}
        groups = layer_groups(model)
        return {
            name: self.discriminative ** (place + 1 - len(groups))
            for place, group in enumerate(groups)
            for name in group.parameters
        }

    def unfreeze(self, model: PreTrainedModel, epoch: int) -> None:
        """Let the layers learn whose epoch has come. What is frozen by name stays so."""
        if self.gradual_unfreezing is None:
            return
        learning = self._learning(model)
        groups = _learning_groups(model, learning)
        unfrozen = {name for group in groups[-self.gradual_unfreezing.unfrozen(epoch) :] for name in group.parameters}
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in learning & unfrozen)

    def never_unfrozen(self, model: PreTrainedModel, epochs: int) -> str | None:
        """The lowest layers, where there are more of them than epochs to wake them in."""
        if self.gradual_unfreezing is None:
            return None
        groups = _learning_groups(model, self._learning(model))
        count = len(groups) - self.gradual_unfreezing.unfrozen(max(epochs, 1) - 1)
        if count < 1:
            return None
        lowest = groups[0].name if count == 1 else f"{groups[0].name} to {groups[count - 1].name}"
        needed = (len(groups) - 1) * self.gradual_unfreezing.epochs_per_layer + 1
        return (
            f"full.gradual_unfreezing: {count} of {len(groups)} layers ({lowest}) never learn in {epochs} epochs; "
            f"num_train_epochs: {needed} reaches all"
        )

    def factor(self, step: int, steps: int) -> float | None:
        return None if self.slanted_triangular is None else self.slanted_triangular.factor(step, steps)

    def _learning(self, model: PreTrainedModel) -> set[str]:
        """Names of the parameters that ever learn. Modules that the checkpoint did not bring always do."""
        names = {name for name, _ in model.named_parameters()}
        new = new_weights(model)
        if self.freeze is not None:
            frozen = matching(model, self.freeze, "full.freeze")
            if frozen <= new:
                raise ModelError(
                    f"full.freeze {list(self.freeze)} matches only weights that the checkpoint did not bring: "
                    "they must learn"
                )
            return names - (frozen - new)
        if self.train is not None:
            return matching(model, self.train, "full.train") | new
        return names


def _learning_groups(model: PreTrainedModel, learning: set[str]) -> list[LayerGroup]:
    """The layers in which something learns, from the lowest to the head."""
    return [group for group in layer_groups(model) if learning & set(group.parameters)]


def matching(model: PreTrainedModel, patterns: Iterable[str], key: str) -> set[str]:
    """Names of the parameters that the patterns at the recipe's `key` mean. Raises IncompatibleError for an idle one.

    A pattern stands for a module with everything in it, or for a parameter, by its full name or its last words:
    `embeddings`, `layer.0` (not `layer.10`), `LayerNorm.bias`. `*` stands for anything, `?` for one character.
    """
    names = [name for name, _ in model.named_parameters()]
    matched: set[str] = set()
    for pattern in patterns:
        named = {name for name in names if any(_means(pattern, whole) for whole in _enclosing(name))}
        if not named:
            raise IncompatibleError(
                f"{key} '{pattern}' matches no weight of the model; it has the modules {_module_words(names)}"
            )
        matched |= named
    return matched


def _means(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _enclosing(name: str) -> list[str]:
    """The parameter itself and every module around it, by full name."""
    parts = name.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _module_words(names: Iterable[str]) -> str:
    """The words that module names are made of, without the numbers of layers."""
    words = [part for name in names for part in name.split(".")[:-1] if not part.isdigit()]
    return ", ".join(dict.fromkeys(words))

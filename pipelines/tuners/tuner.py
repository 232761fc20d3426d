"""What every tuner shares: a block, and the questions that a training loop asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pipelines.architectures.configuration_rules import Config
from pipelines.core.config import Block

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import Tensor
    from transformers import PreTrainedModel


class Tuner(Protocol):
    """What a training loop asks of a tuner: a TunerBlock, or one that answers for a model of several parts."""

    @property
    def name(self) -> str:
        """As a recipe names it."""

    @property
    def keeps_base(self) -> bool:
        """As `TunerBlock.keeps_base`."""

    @property
    def unfreezes(self) -> bool:
        """As `TunerBlock.unfreezes`."""

    def rates(self, model: PreTrainedModel) -> Mapping[str, float]:
        """As `TunerBlock.rates`."""

    def unfreeze(self, model: PreTrainedModel, epoch: int) -> None:
        """As `TunerBlock.unfreeze`."""

    def never_unfrozen(self, model: PreTrainedModel, epochs: int) -> str | None:
        """As `TunerBlock.never_unfrozen`."""

    def factor(self, step: int, steps: int) -> float | None:
        """As `TunerBlock.factor`."""

    def penalty(self, model: PreTrainedModel) -> Tensor | None:
        """As `TunerBlock.penalty`."""

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        """As `TunerBlock.save`."""


class TunerBlock(Block):
    """Base of every tuner: the answers of one that trains plain weights at one learning rate."""

    name: str
    adapts: ClassVar[bool] = False
    """Whether `apply` leaves the base alone and returns an adapter around it."""
    begins_at_base: ClassVar[bool] = True
    """Whether the tuned model answers as its base does until the first step."""
    merges: ClassVar[bool] = True
    """Whether what was learnt can be folded into the weights of the base."""
    takes_masks: ClassVar[bool] = True
    """Whether a batch may bring a ready mask of its own, as packed rows do; keys before a text have no place in one."""
    trains_all: ClassVar[bool] = False
    """Whether all weights of the model learn, its embeddings among them, where no key of the tuner says otherwise."""
    known_elsewhere: ClassVar[bool] = False
    """Whether training loops that are not ours, TRL's and DeepSpeed's, are offered with it."""
    fuses: ClassVar[bool] = False
    """Whether what it saves is an adapter that the tuner fusion can mix with others."""
    any_layers: ClassVar[bool] = False
    """Whether it serves layers of cells and convolutions too, and not linear layers and attention alone."""
    merges_into_code: ClassVar[bool] = False
    """Whether what was learnt, where it cannot be folded in, can become part of the model's own code when it is
    published."""

    @property
    def positions(self) -> int:
        """How many of the model's positions the tuner takes for itself: the virtual tokens before a text."""
        return 0

    @property
    def keeps_base(self) -> bool:
        """Whether the tuned model with its adapter disabled is still the model that `apply` was given."""
        return self.adapts

    @property
    def changes_base(self) -> tuple[str, ...]:
        """The given keys with which a tuner that `fuses` changes the model itself, beside the adapter."""
        return ()

    def counted_by_formula(self) -> bool:
        """Whether its weights on our own family are counted by the arithmetic of LoRA, without building the model."""
        return False

    @property
    def unfreezes(self) -> bool:
        """Whether `unfreeze` changes what learns while training; the optimizer holds it all from the start."""
        return False

    @property
    def stages(self) -> tuple[str, ...]:
        """Ids of the earlier stages whose adapters the tuner builds on."""
        return ()

    def given(self, folders: Mapping[str, Path]) -> TunerBlock:
        """The tuner, told in which folder the model of each of its `stages` lies."""
        return self

    def misfit(self, words: Config, head: str) -> str | None:
        """Why this tuner cannot serve a model with these config words (`model_type` among them) and this kind of head.

        The answer completes `the tuner prefix …`; None when it can. Asked before anything loads.
        """
        return None

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """The words of the `BitsAndBytesConfig` that the base is opened with; None opens it in full precision."""
        return None

    def unavailable_reason(self) -> str | None:
        """What this machine has not got that the tuner needs, completing `the tuner qlora …`; None when it has all.

        A recipe is valid all the same. Asked when a run begins, before anything loads.
        """
        return None

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """The model with its trainable weights chosen; a PEFT model for adapters."""
        raise NotImplementedError

    def rates(self, model: PreTrainedModel) -> Mapping[str, float]:
        """What the learning rate is multiplied by, by parameter name of the tuned `model`; 1 for those left out."""
        return {}

    def unfreeze(self, model: PreTrainedModel, epoch: int) -> None:
        """Choose the trainable weights of the epoch (the first is 0). Called as each epoch begins, and on a resume."""

    def never_unfrozen(self, model: PreTrainedModel, epochs: int) -> str | None:
        """What never learns in that many epochs although it could, as a whole sentence; None when all of it does."""
        return None

    def factor(self, step: int, steps: int) -> float | None:
        """What the learning rates are multiplied by at `step` of `steps`; None leaves the schedule to `arguments`."""
        return None

    def penalty(self, model: PreTrainedModel) -> Tensor | None:
        """What the tuned `model` adds to the loss of each step, a number that carries gradients; None for nothing."""
        return None

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        """Write what was learnt: a checkpoint, or a PEFT adapter."""
        model.save_pretrained(str(folder))


DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
"""What configurations call the number of their layers."""


def layer_beyond(words: Config, layers: Sequence[int], *more: str) -> str | None:
    """The highest of `layers` where the model's stacks end below it, and what they have; None if it is there or nobody
    knows. `more` are further words for the depth of a stack."""
    counts = [depth for word in (*DEPTHS, *more) if isinstance(depth := words.get(word), int)]
    if not counts or words.get("model_type") == "albert" or max(layers) < max(counts):
        return None
    return f"{max(layers)}, but the model's {max(counts)} layers are 0 to {max(counts) - 1}"

"""What every tuner shares: a block, and the questions that a training loop asks of it.

The PEFT methods that PEFT does not bring itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pipelines.core.config import Block


class Tuner(Protocol):
    """What a training loop asks of a tuner: a TunerBlock, or one that answers for a model of several parts."""

    name: str

    @property
    def leaves_base(self) -> bool:
        """As `TunerBlock.leaves_base`."""

    @property
    def thaws(self) -> bool:
        """As `TunerBlock.thaws`."""

    def rates(self, model: Any) -> Mapping[str, float]:
        """As `TunerBlock.rates`."""

    def unfreeze(self, model: Any, epoch: int) -> None:
        """As `TunerBlock.unfreeze`."""

    def never_unfrozen(self, model: Any, epochs: int) -> str | None:
        """As `TunerBlock.never_unfrozen`."""

    def factor(self, step: int, steps: int) -> float | None:
        """As `TunerBlock.factor`."""

    def penalty(self, model: Any) -> Any:
        """As `TunerBlock.penalty`."""

    def save(self, model: Any, folder: Path) -> None:
        """As `TunerBlock.save`."""


class TunerBlock(Block):
    """Base of every tuner: the answers of one that trains plain weights at one learning rate."""

    name: str
    adapts: ClassVar[bool] = False
    """Whether `apply` leaves the base alone and returns an adapter around it."""
    merges: ClassVar[bool] = True
    """Whether what was learnt can be folded into the weights of the base."""
    merges_into_code: ClassVar[bool] = False
    """Whether what was learnt, where it cannot be folded in, can become part of the model's own code when it is
    published."""

    @property
    def positions(self) -> int:
        """How many of the model's positions the tuner takes for itself: the virtual tokens before a text."""
        return 0

    @property
    def leaves_base(self) -> bool:
        """Whether the tuned model with its adapter disabled is the model that `apply` was given, however long it
        learnt."""
        return self.adapts

    @property
    def thaws(self) -> bool:
        """Whether `unfreeze` changes what learns while training: what learns later waits in the optimizer from the
        start."""
        return False

    @property
    def stages(self) -> tuple[str, ...]:
        """Ids of the earlier stages whose adapters the tuner builds on."""
        return ()

    def given(self, folders: Mapping[str, Path]) -> TunerBlock:
        """The tuner, told in which folder the model of each of its `stages` lies."""
        return self

    def misfit(self, words: Mapping[str, Any], head: str) -> str | None:
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

    def apply(self, model: Any) -> Any:
        """The model with its trainable weights chosen; a PEFT model for adapters."""
        raise NotImplementedError

    def rates(self, model: Any) -> Mapping[str, float]:
        """What the learning rate is multiplied by, by parameter name of the tuned `model`; 1 for those left out."""
        return {}

    def unfreeze(self, model: Any, epoch: int) -> None:
        """Choose the trainable weights of the epoch (the first is 0). Called as each epoch begins, and on a resume."""

    def never_unfrozen(self, model: Any, epochs: int) -> str | None:
        """What never learns in that many epochs although it could, as a whole sentence; None when all of it does."""
        return None

    def factor(self, step: int, steps: int) -> float | None:
        """What the learning rates are multiplied by at `step` of `steps`; None leaves the schedule to `arguments`."""
        return None

    def penalty(self, model: Any) -> Any:
        """What the tuned `model` adds to the loss of each step, a number that carries gradients; None for nothing."""
        return None

    def save(self, model: Any, folder: Path) -> None:
        """Write what was learnt: a checkpoint, or a PEFT adapter."""
        model.save_pretrained(str(folder))


def register() -> None:
    """Teach PEFT our methods, so that it opens adapters of their types. Doing it twice is harmless."""
    from pipelines.tuners import bottleneck, virtual_tokens

    bottleneck.register()
    virtual_tokens.register()


def opener(peft_type: str) -> Any:
    """The class whose `from_pretrained` opens adapters of this `peft_type` so that every head is served."""
    from peft import PeftModel

    from pipelines.tuners import virtual_tokens

    return virtual_tokens.VirtualTokensModel if virtual_tokens.serves(peft_type) else PeftModel

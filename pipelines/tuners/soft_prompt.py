"""What prefix tuning, prompt tuning and P-tuning share: a few virtual tokens before every text, and a base left alone.

Modules that the checkpoint did not bring (a fresh classification head, BERT's pooler) are trained whole beside the
virtual tokens and saved with them, as with every tuner.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from pipelines.architectures.configuration_rules import Config
from pipelines.core.errors import IncompatibleError
from pipelines.tuners.tuner import TunerBlock

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

NO_EMBEDDINGS = frozenset({"cpmant", "esmc", "neomme", "perceiver", "whisper"})
"""Families that read token ids, or no text at all, and take no embeddings in their place."""


class SoftPrompt(TunerBlock):
    """Base of the tuners that learn virtual tokens."""

    adapts: ClassVar[bool] = True
    begins_at_base: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    takes_masks: ClassVar[bool] = False
    num_virtual_tokens: int = Field(20, ge=1, le=4096)
    """Virtual tokens before every text. They take as many of the model's positions."""

    @property
    def positions(self) -> int:
        """How many of the model's positions the tuner takes for itself: one a virtual token."""
        return self.num_virtual_tokens

    def misfit(self, words: Config, head: str) -> str | None:
        """Why embeddings cannot be put before a model's own; None when they can."""
        if (model_type := words.get("model_type")) in NO_EMBEDDINGS:
            return (
                f"needs a model that reads embeddings in place of words, which {model_type} does not; use lora or "
                "adapter"
            )
        return None

    def tuned(self, model: PreTrainedModel, plain: str, **settings: object) -> PeftModel:
        """A PEFT model around `model` by PEFT's method `plain` with `settings`. Raises IncompatibleError."""
        from pipelines.tuners.virtual_tokens import CONFIGS, VirtualTokensModel

        self.check_place(model)
        fresh = list(getattr(model, "finery_new_modules", ()))
        config = CONFIGS[plain](num_virtual_tokens=self.num_virtual_tokens, modules_to_save=fresh or None, **settings)
        try:
            return VirtualTokensModel(model, config)
        except ValueError as error:
            raise IncompatibleError(f"the tuner {self.name} cannot serve {type(model).__name__}: {error}") from error

    def check_place(self, model: PreTrainedModel) -> None:
        """Raises IncompatibleError where the model has no place for virtual tokens, here that of embeddings."""
        from inspect import signature

        from pipelines.tuners.virtual_tokens import reading_stack

        stack = reading_stack(model)
        if "inputs_embeds" not in signature(stack.forward).parameters:
            raise IncompatibleError(
                f"the tuner {self.name} needs a model that reads embeddings in place of words, but "
                f"{type(stack).__name__} does not"
            )

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        """Write the adapter, without the weights that only its training needed."""
        model.save_pretrained(str(folder), reparameterization=False)

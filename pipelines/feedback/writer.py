"""Opening the model that writes: the policy whose completions are judged, or a judge of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.recipe import START

if TYPE_CHECKING:
    from pipelines.protocols import Context


@dataclass(frozen=True)
class Writer:
    """A language model, on the device where it computes, with its tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def encoder_decoder(self) -> bool:
        """Whether it reads with one part and writes with another."""
        return bool(self.model.config.is_encoder_decoder)


def open_writer(context: Context, stage_id: str | None = None, checkpoint: str | None = None) -> Writer:
    """The language model of a stage (default: the one this stage reads) or of a checkpoint. Raises ModelError."""
    if checkpoint is not None:
        model = context.open_model(None, checkpoint=checkpoint, trained_head=True)
        return Writer(model.to(device()), context.open_tokenizer(checkpoint=checkpoint))
    source = stage_id or context.recipe.model_of(context.recipe.stage(context.stage_id))
    from_scratch = source == START and context.recipe.model.checkpoint is None
    model = context.open_model(None, stage_id=source, trained_head=not from_scratch)
    return Writer(model.to(device()), context.open_tokenizer(None if source == START else source))


def device() -> Any:
    """Where this process computes: its own GPU, else Apple's, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")

"""The PEFT methods that PEFT does not bring itself."""

from __future__ import annotations

from typing import Any


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

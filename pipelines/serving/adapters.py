"""Several adapters on one copy of their base: opened together, and one at a time switched on.

The base is opened once, with the first adapter on it; PEFT puts the others beside it. They are not merged: that would
take a copy of the weights for each. An adapter that PEFT cannot put there is left out, and its model is served by
itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.core.shared_bases import shared_base

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class AdaptersOnOneBase:
    """The opened base, and the adapters that stand on it."""

    def __init__(self, folders: Mapping[str, Path], head: Head) -> None:
        """`folders` are the publications by the names of their models; the first one's base is opened. Raises
        ModelError where it cannot be."""
        import torch

        from pipelines.models.opening import open_folder

        (first, place), *others = folders.items()
        base = shared_base(place)
        if base is None:
            raise ModelError(f"'{place}' holds no adapter that can stand beside others")
        self._peft = open_folder(place, head, 0, trained_head=True, merge=False)
        self._adapters = {first: self._peft.active_adapter}
        for number, (name, folder) in enumerate(others):
            if shared_base(folder) != base:  # it was exchanged since somebody looked
                continue
            try:
                self._peft.load_adapter(str(folder), adapter_name=f"other{number}", is_trainable=False)
            except Exception:  # whatever PEFT finds that two adapters of their kinds cannot share
                continue
            self._adapters[name] = f"other{number}"
        self.model: PreTrainedModel = self._peft.get_base_model()
        self._peft.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self._active = ""
        self.switch(first)

    @property
    def names(self) -> list[str]:
        """The models that can be asked."""
        return [*self._adapters]

    def switch(self, name: str) -> None:
        """Let the base compute as the model of that name does."""
        if name != self._active:
            self._peft.set_adapter(self._adapters[name])
            self._active = name

"""What `model` may name on the OpenAI surface: shapes to train from scratch, models of the project, and Hub checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pipelines.fields.places import presets
from pipelines.marks import read_yaml

SCRATCH = "scratch/"
HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class Base:
    """A model that can be fine-tuned."""

    model: dict[str, Any]
    """The recipe's `model` block."""
    short: str
    """Its part of the name of the fine-tuned model."""
    positions: int | None = None
    """Tokens that it can read at once, where that is known."""

    @property
    def from_scratch(self) -> bool:
        """Whether nothing is learnt yet, the tokenizer included."""
        return "architecture" in self.model


@lru_cache(maxsize=1)
def scratch() -> dict[str, Base]:
    """The decoders that can be trained from nothing, by `scratch/<preset>`."""
    found = {}
    for name, file in presets().items():
        words, _ = read_yaml(file)
        if words.get("family") == "decoder":
            found[f"{SCRATCH}{name}"] = Base({"architecture": {"preset": name}}, name, words.get("max_position_embeddings"))
    return found


def base_of(model: str, published: str | None = None) -> Base | None:
    """What a name stands for; `published` is the name of the project's model when it is one. None for unknown names."""
    if model in scratch():
        return scratch()[model]
    if published is not None:
        return Base({"checkpoint": f"model:{published}"}, short_name(published))
    if not model.startswith(SCRATCH) and HUB.fullmatch(model):
        return Base({"checkpoint": model}, model.rpartition("/")[2])
    return None


def short_name(model: str) -> str:
    """`gpt-tiny` of `ft:gpt-tiny:acme::01k…`: names do not grow with every round."""
    parts = model.split(":")
    return parts[1] if parts[0] == "ft" and len(parts) > 1 else model.rpartition("/")[2]

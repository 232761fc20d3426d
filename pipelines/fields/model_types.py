"""The words of transformers' own text models, read from model_types.json when one of them is first asked for.

The file is written by `python -m pipelines.fields.generate` from the pinned transformers.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class ModelType(NamedTuple):
    """What the config class of one `model_type` accepts."""

    keys: dict[str, str]
    """Field -> type words of `kinds`."""
    aliases: dict[str, str]
    """Other names of fields, such as `hidden_size` for `n_embd`."""
    heads: tuple[str, ...] = ()
    """What transformers can put on it: `masked_lm`, `causal_lm`, `seq2seq_lm`, `sequence_classification`, …"""

    def kind(self, key: str) -> str | None:
        """Type words of a field or of an alias; None if there is no such key."""
        return self.keys.get(self.aliases.get(key, key))


@cache
def model_types() -> dict[str, ModelType]:
    """Every known `model_type`."""
    text = files("pipelines.fields").joinpath("model_types.json").read_text(encoding="utf-8")
    types = json.loads(text)["types"]
    return {name: ModelType(entry["keys"], entry["aliases"], tuple(entry["heads"])) for name, entry in types.items()}

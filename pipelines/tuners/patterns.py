"""Weights named by pattern: a module's name or its last words, or a glob over the full name."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from pipelines.errors import Misfit


def matching(model: Any, patterns: Iterable[str], key: str) -> set[str]:
    """Names of the parameters that a pattern means. Raises Misfit for a pattern that means none, at the recipe's `key`.

    A pattern stands for a module with everything in it, or for a parameter, by its full name or its last words:
    `embeddings`, `layer.0` (not `layer.10`), `LayerNorm.bias`. `*` stands for anything, `?` for one character.
    """
    names = [name for name, _ in model.named_parameters()]
    found: set[str] = set()
    for pattern in patterns:
        meant = {name for name in names if any(_means(pattern, whole) for whole in _enclosing(name))}
        if not meant:
            raise Misfit(f"{key} '{pattern}' matches no weight of the model; it has the modules {_known(names)}")
        found |= meant
    return found


def _means(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _enclosing(name: str) -> list[str]:
    """The parameter itself and every module around it, by full name."""
    parts = name.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _known(names: Iterable[str]) -> str:
    """The words that module names are made of, without the numbers of layers."""
    words = [part for name in names for part in name.split(".")[:-1] if not part.isdigit()]
    return ", ".join(dict.fromkeys(words))

"""Where an adapter's base lies, and which published adapters may stand on one copy of their base. No torch.

Bases are shared that are equal, byte for byte. A publication with `merge: false` holds its adapter, and its base in
`base/`. What counts is the SHA-256 of the files that lie there, and not what a list of checksums says of them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pipelines.core.files import sha256_of
from pipelines.core.model_abilities import abilities_of

METHODS = ("LORA", "IA3", "FINERY_BOTTLENECK")
"""PEFT's types of adapters that are modules beside those of the base, of which one at a time can be switched on.
Virtual tokens are none: they stand before the model."""
SETTINGS = "adapter_config.json"
BASE = "base"
LEFT_OUT = (".md", ".gitattributes", "generation_config.json")
"""Endings of files that are no part of a model; where its texts end is asked of each publication."""


def base_of(folder: Path) -> str | None:
    """Where the base of the adapter in a folder lies: in `base/` there or beside it, else what its settings name, a
    folder or a Hub name. None where the folder holds no adapter. Raises OSError and ValueError where they name none."""
    if not (folder / SETTINGS).is_file():
        return None
    beside = next((place for place in (folder / BASE, folder.parent / BASE) if place.is_dir()), None)
    if beside is not None:
        return str(beside)
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    name = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"its {SETTINGS} names no base_model_name_or_path")
    return name


def whole_model(folder: Path) -> str:
    """The folder or Hub name of the whole model behind a folder: this one, or the base of the adapter that it holds.
    Raises OSError and ValueError as `base_of`."""
    passed = [folder]
    while (base := base_of(passed[-1])) is not None:
        if not Path(base).is_dir():
            return base
        if Path(base).resolve() in [each.resolve() for each in passed]:
            raise ValueError("it is its own base")
        passed.append(Path(base))
    return str(passed[-1])


def shared_base(folder: Path) -> str | None:
    """What all publications with the same base and the same kind of adapter have in common; None where a publication is
    whole, does not write texts, or has an adapter that cannot be switched."""
    settings = folder / SETTINGS
    if not settings.is_file() or not (folder / BASE).is_dir():
        return None
    abilities = abilities_of(folder)
    if abilities is None or "complete" not in abilities.can:
        return None
    try:
        given = json.loads(settings.read_text(encoding="utf-8"))
        method = str(given.get("peft_type"))
        if method not in METHODS or given.get("bias", "none") != "none":  # weights of the base itself would be learnt
            return None
        digest = hashlib.sha256(f"{abilities.kind} {method}".encode())
        for path in sorted((folder / BASE).rglob("*")):
            if path.is_file() and not path.name.endswith(LEFT_OUT):
                digest.update(f"{path.relative_to(folder).as_posix()} {sha256_of(path.resolve())}\n".encode())
    except (OSError, ValueError, AttributeError):
        return None
    return digest.hexdigest()

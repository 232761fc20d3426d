"""What a published folder may make others run: Python that Finery wrote, told by its hash, and JSON that names none.

transformers and PEFT follow what stands in the JSON beside weights: `auto_map` names classes to import,
`custom_generate` and `custom_pipelines` code to run, `owner/name--module.Class` code that lies elsewhere, an
attention kernel's name a repository to load. A checkpoint of others may hold any of these, in any of its files, and a
tokenizer keeps what it was opened with. So every JSON is cleaned before the folder is opened in the clean room, which
looks again and refuses (`clean_room.refuse_foreign_code`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.core.errors import ModelError
from pipelines.publishing import clean_room
from pipelines.publishing.destinations.destination import sha256_of

CONFIG = "config.json"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
"""Endings of files that run code when they are read; only safetensors are published."""
PLACES = ("_name_or_path", "tokenizer_name_or_path", "_commit_hash")
"""Keys that say where a checkpoint was opened from, which is nobody's business."""


PACKAGE = Path(__file__).resolve().parents[1]
METHODS = {
    "finery_bottleneck.py": PACKAGE / "tuners" / "bottleneck.py",
    "finery_adapter.py": PACKAGE / "tuners" / "virtual_tokens.py",
}
"""The modules that teach PEFT a method: name beside an adapter -> where Finery has it."""


@cache
def of_finery() -> Mapping[str, str]:
    """File name -> SHA-256 of every module that Finery puts beside weights: its architectures, and its methods for
    PEFT."""
    files = {path.name: path for path in sorted((PACKAGE / "architectures").glob("*.py"))} | METHODS
    return {name: sha256_of(path) for name, path in files.items()}


def adapter_modules(trained: Path) -> dict[str, bytes]:
    """The modules that a trained adapter's method needs beside it: names as it was saved with, content as Finery
    has it."""
    return {name: path.read_bytes() for name, path in METHODS.items() if (trained / name).is_file()}


def settled(folder: Path, written: Mapping[str, bytes], leave: bool) -> dict[str, str]:
    """Clean a folder that is to be published; returns its code, relative path -> SHA-256.

    `written` is the code that was made for this folder alone, by name. `leave` says that the recipe runs its
    checkpoint's own code, which transformers has then saved beside the weights. Raises ModelError for any other
    Python, for pickles and for links.
    """
    code: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ModelError(f"the model saves '{name}', which is no plain file; nothing is published with it")
        if path.is_dir():
            continue
        if path.suffix in PICKLES:
            raise ModelError(f"the model saves '{path.name}', a pickle; only safetensors are published")
        if clean_room.importable(path.name):
            digest = sha256_of(path)
            made = written.get(name)
            ours = digest == of_finery().get(path.name) or (
                made is not None and digest == hashlib.sha256(made).hexdigest()
            )
            if not (ours or (leave and path.suffix == ".py")):
                raise ModelError(
                    f"the model saves '{name}', code that Finery did not write; it is published only with "
                    "trust_remote_code"
                )
            code[name] = digest
    for path in sorted(folder.rglob("*.json")):
        _clean(folder, path, code, leave)
    return code


def _clean(folder: Path, path: Path, code: Mapping[str, str], leave: bool) -> None:
    name = path.relative_to(folder).as_posix()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ModelError(f"the model saves '{name}', which is no JSON; nothing is published with it") from None
    modules = clean_room.modules_beside(name, code) if path.name == CONFIG or leave else frozenset()
    cleaned = cleaned_of(data, modules, top=True)
    if cleaned != data:
        path.write_text(json.dumps(cleaned, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def cleaned_of(value: Any, modules: frozenset[str], top: bool = False) -> Any:
    """Plain JSON data without anything that names code but `module.Class` of these modules, and without the
    author's places."""
    if isinstance(value, Mapping):
        cleaned: dict[str, Any] = {}
        for key, entry in value.items():
            if key in PLACES and isinstance(entry, str):
                continue
            if key == "auto_map" and top and (own := _own(entry, modules)):
                cleaned[key] = own
            elif not clean_room.names_code(key, entry):
                cleaned[key] = cleaned_of(entry, modules)
        return cleaned
    return [cleaned_of(entry, modules) for entry in value] if isinstance(value, list) else value


def _own(auto_map: Any, modules: frozenset[str]) -> Any:
    """An `auto_map` with the classes alone that lie beside it, named without the repository that they came from."""
    if isinstance(auto_map, Mapping):
        own_classes = {kind: own for kind, target in auto_map.items() if (own := _own_class(target, modules))}
        return own_classes or None
    return _own_class(auto_map, modules)


def _own_class(target: Any, modules: frozenset[str]) -> Any:
    if isinstance(target, list):
        classes = [_own_class(each, modules) for each in target]
        return classes if any(classes) else None
    own = target.rpartition("--")[2] if isinstance(target, str) else ""
    return own if clean_room.CLASS.fullmatch(own) and own.partition(".")[0] in modules else None


__all__ = ["adapter_modules", "cleaned_of", "of_finery", "settled"]

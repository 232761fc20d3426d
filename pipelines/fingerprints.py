"""Fingerprints: the same work is recognised and not done twice.

A stage's fingerprint covers its block, its seed, the fingerprints of what it reads, the content of its data, the
library versions that change results, and the code of the `pipelines` modules it uses. Comments and docstrings may
change freely; the contract modules compute nothing and are left out.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipelines.blocks import Block

CONTRACT = {"errors", "registry", "blocks", "marks", "recipe", "protocols", "events", "fields", "matrix", "cells"}
"""Modules of `pipelines` that compute nothing that could change a result."""

PACKAGES = ("torch", "transformers", "tokenizers", "peft", "accelerate", "datasets", "numpy")
"""Packages whose version can change a result."""


def digest(data: Any) -> str:
    """SHA-256 of canonical JSON, shortened to 32 hexadecimal digits."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that change results."""
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def mark_of(
    identity: Mapping[str, Any], inputs: list[str], content: Mapping[str, str], code: Iterable[str]
) -> tuple[str, str]:
    """(the fingerprint of a stage, the hash of its code), from its block, what it reads, its data and its modules."""
    code_hash = code_of(code)
    return digest([identity, inputs, dict(content), versions(), code_hash]), code_hash


def modules_of(block: Block) -> set[str]:
    """Modules that hold the classes of a block and of every block inside it."""
    found = {type(block).__module__}
    for name in type(block).model_fields:
        for value in _blocks(getattr(block, name)):
            found |= modules_of(value)
    return found


def _blocks(value: Any) -> Iterable[Block]:
    if isinstance(value, Block):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _blocks(entry)
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _blocks(entry)


def code_of(modules: Iterable[str]) -> str:
    """Hash of the code of `modules` and of every `pipelines` module they import, directly or not."""
    seen: set[str] = set()
    waiting = [module for module in modules if _counts(module)]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += [each for each in _read(module)[1] if each not in seen]
    return digest({module: _read(module)[0] for module in sorted(seen)})


def _counts(module: str) -> bool:
    parts = module.split(".")
    return parts[0] == "pipelines" and len(parts) > 1 and parts[1] not in CONTRACT


@cache
def _read(module: str) -> tuple[str, tuple[str, ...]]:
    """(hash of a module's code without comments and docstrings, the counted modules it imports)."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return "", ()
    tree = ast.parse(Path(spec.origin).read_bytes())
    package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            imported |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)] or [ast.Pass()]  # type: ignore[attr-defined]
    counted = tuple(sorted(name for name in imported if _counts(name) and _exists(name)))
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), counted


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _exists(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, AttributeError, ValueError):
        return False


def hash_folder(folder: Path) -> str:
    """Content hash of a folder: names and bytes of its files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return digest([[str(path.relative_to(folder)), hash_file(path)] for path in files])


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes; remembered while path, size and time of change stay the same."""
    status = path.stat()
    return _hash_file(path, status.st_size, status.st_mtime_ns)


@cache
def _hash_file(path: Path, size: int, changed: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

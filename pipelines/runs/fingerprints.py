"""Fingerprints: the same work is recognised and not done twice.

A stage's fingerprint covers its block, its seed, the fingerprints of what it reads, the content of its data, the
library versions that change results, and the code of the `pipelines` modules it uses. Comments and docstrings may
change freely; the contract modules compute nothing and are left out.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pipelines
from pipelines.core import model_types, registry
from pipelines.core.config import Block
from pipelines.core.files import home, read_json, sha256_of, write_json
from pipelines.core.registry import REGISTRIES

AROUND = {"core", "runs"}
"""Rooms that compute nothing that could change a result: what a recipe may say, and what stands around its stages,"""
COUNTED = {model_types.__name__}
"""but for these: how long a text a model can read decides what is cut off."""

CHOSEN = {"stages", "objectives", "tuners", "tokenizers", "rewards", "judges", "task_kinds", "features"}
"""Registries of which only what the stage has chosen is its code: its blocks' classes (`modules_of`) and the kinds of
its tasks (`Stage.modules`). Of every other registry that it looks names up in, all entries are."""
LOOKED_UP = re.compile(rb"\b(load|module)\s*\(")
"""Where a registry may be asked for a name that is written there."""
PACKAGES = ("torch", "transformers", "tokenizers", "peft", "accelerate", "datasets", "numpy")
"""Packages whose version can change a result."""


def digest(data: object) -> str:
    """SHA-256 of canonical JSON, shortened to 32 hexadecimal digits."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that change results."""
    versions_by_name = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for package in PACKAGES:
        try:
            versions_by_name[package] = version(package)
        except PackageNotFoundError:
            versions_by_name[package] = "absent"
    return versions_by_name


def fingerprint_of(
    identity: Mapping[str, object], inputs: list[str], content: Mapping[str, str], code: Iterable[str]
) -> tuple[str, str]:
    """(the fingerprint of a stage, the hash of its code), from its block, what it reads, its data and its modules."""
    code_hash = code_of(code)
    return digest([identity, inputs, dict(content), versions(), code_hash]), code_hash


def modules_of(block: Block) -> set[str]:
    """Modules that hold the classes of a block and of every block inside it."""
    modules = {type(block).__module__}
    for name in type(block).model_fields:
        for value in _blocks(getattr(block, name)):
            modules |= modules_of(value)
    return modules


def _blocks(value: object) -> Iterable[Block]:
    if isinstance(value, Block):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _blocks(entry)
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _blocks(entry)


def code_of(modules: Iterable[str]) -> str:
    """Hash of the code of `modules` and of every `pipelines` module that they use, directly or not.

    Parsing them takes a second, so what came out is kept in `FINERY_HOME/code`.
    """
    names = sorted(set(modules))
    place = _kept_at(names)
    if place is not None and isinstance(kept := read_json(place).get("code"), str):
        return kept
    found = digest({module: _read(module)[0] for module in used_by(names)})
    if place is not None and place == _kept_at(names):  # else a file was changed while they were read
        with suppress(OSError):  # a folder that may not be written to costs time and nothing else
            place.parent.mkdir(parents=True, exist_ok=True)
            write_json(place, {"code": found})
    return found


def _kept_at(names: list[str]) -> Path | None:
    """Named by all that the code depends on: every file of ours, the tables that names are looked up in, the version of
    Python. None where a file cannot be read."""
    try:
        tables = {name: dict(table) for name, table in REGISTRIES.items()}
        return home() / "code" / f"{digest([names, tables, sorted(files()), sys.version_info[:2]])}.json"
    except OSError:
        return None


def files() -> Iterator[tuple[str, str]]:
    """(path, SHA-256) of every file of ours."""
    for place in pipelines.__path__:
        for folder, inside, names in os.walk(place):
            inside[:] = [name for name in inside if name != "__pycache__"]
            for path in (Path(folder, name) for name in names):
                yield str(path.relative_to(place)), sha256_of(path)


def used_by(modules: Iterable[str]) -> list[str]:
    """`modules` and every counted module that they use, directly or not.

    By an import wherever it stands, which imports the packages around a module too, or by a registry that they look
    names up in. A package among `modules`, or in a registry, stands for every module in it.
    """
    seen: set[str] = set()
    waiting = [each for module in modules for each in _whole(module) if counts(each)]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            around = module.rpartition(".")[0]
            waiting += [each for each in (*_read(module)[1], around) if each not in seen and counts(each)]
    return sorted(seen)


def counts(module: str) -> bool:
    """Whether a module of ours can change a result."""
    parts = module.split(".")
    return module in COUNTED or (parts[0] == "pipelines" and len(parts) > 1 and parts[1] not in AROUND)


@cache
def _whole(module: str) -> tuple[str, ...]:
    """A module; of a package, every module in its folder too."""
    origin, package = _origin(module)
    if origin is None or package != module:
        return (module,)
    inside = sorted(path.stem for path in origin.parent.glob("*.py") if path.stem != "__init__")
    return (module, *(f"{module}.{name}" for name in inside))


def _read(module: str) -> tuple[str, tuple[str, ...]]:
    """(hash of a module's code without comments and docstrings, and of a package's templates; the counted modules
    that it uses).

    Remembered while the module's file stays the same.
    """
    origin, package = _origin(module)
    if origin is None:
        return "", ()
    status = origin.stat()
    return _parsed(module, origin, package, status.st_size, status.st_mtime_ns)


def _spec(module: str) -> ModuleSpec | None:
    """Where an import would find a module, None where there is none. Nothing is imported: `find_spec` imports what
    stands above a name, and of `from module import name` that is the module itself, with every library that it uses.
    """
    around = module.rpartition(".")[0]
    if not around or module in sys.modules:
        return find_spec(module)
    above = sys.modules[around] if around in sys.modules else _spec(around)
    places = getattr(above, "__path__", None) or getattr(above, "submodule_search_locations", None)
    return PathFinder.find_spec(module, places) if places else None


@cache
def _origin(module: str) -> tuple[Path | None, str]:
    """(the file of a module, the package that it is or stands in)."""
    spec = _spec(module)
    if spec is None or spec.origin is None:
        return None, ""
    return Path(spec.origin), module if spec.submodule_search_locations is not None else module.rpartition(".")[0]


@cache
def _parsed(module: str, origin: Path, package: str, size: int, changed: int) -> tuple[str, tuple[str, ...]]:
    source = origin.read_bytes()
    tree = ast.parse(source)
    used: set[str] = set()
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            used |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
            if base == registry.__name__:
                used |= {module for alias in node.names for module in _entries(alias.name.lower())}
    if LOOKED_UP.search(source):
        used |= {module for node in ast.walk(tree) if isinstance(node, ast.Call) for module in _loaded(node)}
    counted = tuple(sorted(name for name in used if counts(name) and _exists(name)))
    texts = [sha256_of(path) for path in sorted(origin.parent.glob("templates/*"))] if package == module else []
    return digest([hashlib.sha256(ast.dump(tree).encode()).hexdigest(), *texts]), counted


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, and what holds statements, after what only type checkers or people read is taken out of it.

    Expressions, which are most of a tree, are not walked through.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                kept = [each for statement in block for each in _without_types(statement)]
                if name == "body":
                    kept = [each for each in kept if not _is_text(each)] or [ast.Pass()]
                block[:] = kept
                waiting += kept
        yield node


def _without_types(statement: ast.stmt) -> list[ast.stmt]:
    """A statement; of `if TYPE_CHECKING`, what is done otherwise."""
    match statement:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return [each for other in statement.orelse for each in _without_types(other)] or [ast.Pass()]
    return [statement]


def _entries(registry: str) -> set[str]:
    """The modules of a registry whose entries are found by name when a stage runs."""
    if registry not in REGISTRIES or registry in CHOSEN:
        return set()
    return {each for name in REGISTRIES[registry] for each in _whole(REGISTRIES[registry].module(name))}


def _loaded(call: ast.Call) -> set[str]:
    """The module behind `TABLE.load("name")` or `TABLE.module("name")`."""
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=table), attr="load" | "module"), args=[ast.Constant(value=str(name))]
        ):
            registry: Mapping[str, str] = REGISTRIES.get(table.lower(), {})
            if name in registry:
                return set(_whole(registry[name].partition(":")[0]))
    return set()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _exists(name: str) -> bool:
    try:
        return _spec(name) is not None
    except (ImportError, AttributeError, ValueError):
        return False

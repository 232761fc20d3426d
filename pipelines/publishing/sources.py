"""The files that a published recipe reads: named without their author's folders, known by SHA-256, found again.

A recipe that was checked has absolute paths. A publication names each as it lies below the working folder, others as
`data/NAME`, and its manifest lists under `sources` what was found there: `{path, kind, files: {name: {sha256,
bytes}}}`. Whoever has the same bytes can put them in place again, wherever they lie (`find`, `Found.place`).
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipelines.core.errors import DataError
from pipelines.core.files import JSONObject
from pipelines.publishing.provenance import public

Kind = Literal["file", "folder", "pattern"]
ELSEWHERE = "data"
"""The folder that files outside of the working folder are published below, by name."""
REFERENCE = re.compile(r"(file|job|model):")
"""How what lies on a server is named."""
NOT_READ = ("to",)
"""Keys of a recipe that name what is written."""
SKIPPED = ("__pycache__", ".git", ".venv", "node_modules")
"""Folders that are not searched for data."""


def portable(recipe: JSONObject) -> tuple[dict[str, Any], list[JSONObject], dict[str, str]]:
    """(a resolved recipe with portable paths in place of absolute ones, its `sources`, absolute path -> portable)."""
    names: dict[str, str] = {}
    for path in _paths(recipe):
        if path not in names:
            names[path] = _name(path, [*names.values()])
    sources = [_source(path, name) for path, name in names.items()]
    return renamed(recipe, names), sources, names


def _paths(value: Any) -> Iterator[str]:
    """Every absolute path of plain data that is read and exists."""
    if isinstance(value, str):
        if os.path.isabs(value) and "\n" not in value and (os.path.exists(value) or _matches(value)):
            yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            if key not in NOT_READ:
                yield from _paths(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _paths(entry)


def _matches(path: str) -> list[Path]:
    return [Path(each) for each in sorted(glob.glob(path, recursive=True)) if os.path.isfile(each)]


def _name(path: str, taken: Sequence[str]) -> str:
    """A reference on a server, the path below the working folder, or `data/NAME`."""
    reference = public(path)
    if reference != path:
        return str(reference)
    place = Path(path)
    for folder in (Path.cwd(), Path.cwd().resolve()):
        if place.is_relative_to(folder) and place != folder:
            return place.relative_to(folder).as_posix()
    names = (f"{ELSEWHERE}/{f'{number}/' if number else ''}{place.name}" for number in range(10**6))
    return next(name for name in names if name not in taken)


def _source(path: str, name: str) -> JSONObject:
    from pipelines.data.sources import file_hash

    place = Path(path)
    kind: Kind
    if place.is_file():
        kind, files = "file", {place.name: place}
    elif place.is_dir():
        kind = "folder"
        files = {each.relative_to(place).as_posix(): each for each in sorted(place.rglob("*")) if each.is_file()}
    else:
        kind = "pattern"
        root = Path(path[: len(path) - len(_wild(path))])
        files = {each.relative_to(root).as_posix(): each for each in _matches(path)}
    return {
        "path": name,
        "kind": kind,
        "files": {key: {"sha256": file_hash(file), "bytes": file.stat().st_size} for key, file in files.items()},
    }


def _wild(path: str) -> str:
    """The end of a pattern, from its first part with a wildcard on."""
    parts = path.split("/")
    first = next(at for at, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[first:])


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Plain data with other texts in place of those that are named."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, Mapping):
        return {key: entry if key in NOT_READ else renamed(entry, names) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [renamed(entry, names) for entry in value]
    return value


def without_folders(text: str, names: Mapping[str, str]) -> str:
    """A text with the portable paths in place of the absolute ones."""
    for path in sorted(names, key=len, reverse=True):
        text = re.sub(rf"{re.escape(path)}(?![\w/.-]*\w)", lambda _, path=path: names[path], text)  # type: ignore[misc]
    return text


@dataclass
class Found:
    """The sources of a publication, as they were sought."""

    files: dict[tuple[str, str], Path] = field(default_factory=dict)
    """(path of the source, name of its file) -> a file with the same bytes."""
    missing: list[str] = field(default_factory=list)
    """A sentence for each file that was not found, or found with other bytes."""

    def place(self, sources: Sequence[JSONObject], folder: Path) -> dict[str, str]:
        """Link every file below `folder`; returns what stands for each source's path in a recipe that lies there."""
        names: dict[str, str] = {}
        refuse_outside(sources)
        for number, source in enumerate(sources):
            path = str(source["path"])
            relative = path if _is_inside(path) else f"{ELSEWHERE}/source-{number}"
            if relative != path and source["kind"] == "file":  # its ending says how it is read
                relative += "/" + next(iter(source["files"]))
            names[path] = relative
            for name in source["files"]:
                target = folder / target_of(relative, source["kind"], name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(self.files[path, name].resolve())
        return names


def target_of(path: str, kind: Kind, name: str) -> str:
    """Where a file of a source lies, relative to the recipe."""
    if kind == "file":
        return path
    if kind == "folder":
        return f"{path}/{name}"
    return f"{path[: len(path) - len(_wild(path))]}{name}"


def _is_inside(path: str) -> bool:
    """Whether a path stays below the folder that it is relative to, and is no reference such as `file:ID`."""
    return bool(path) and not os.path.isabs(path) and ".." not in Path(path).parts and not REFERENCE.match(path)


def find(sources: Sequence[JSONObject], data: Path | None) -> Found:
    """Seek every file of `sources`: by its path in the working folder, then in `data`, then by its bytes in there."""
    found = Found()
    refuse_outside(sources)
    index: dict[int, list[Path]] | None = None
    for source in sources:
        path = str(source["path"])
        for name, about in source["files"].items():
            digest, size = str(about["sha256"]), int(about["bytes"])
            target = target_of(path, source["kind"], name)
            usual = [Path.cwd() / target, *([] if data is None else [data / target, data / Path(target).name])]
            changed = next((each for each in usual if each.is_file() and not _is(each, digest, size)), None)
            place = next((each for each in usual if _is(each, digest, size)), None)
            if place is None and data is not None:
                index = _by_size(data) if index is None else index
                place = next((each for each in index.get(size, ()) if _is(each, digest, size)), None)
            if place is not None:
                found.files[path, name] = place
                continue
            looked = "the working folder" + (f" and {data}" if data is not None else "; name more with --data DIR")
            found.missing.append(
                f"{target} is not the file that was read: {changed} has other bytes"
                if changed is not None
                else f"{target} (SHA-256 {digest[:12]}…) was not found; looked in {looked}"
            )
    return found


def refuse_outside(sources: Sequence[JSONObject]) -> None:
    """Raise DataError where a manifest that somebody else wrote names files outside of what they belong to."""
    for source in sources:
        for name in source["files"]:
            if not _is_inside(str(name)):
                raise DataError(f"the manifest's sources name '{name}', which lies outside of '{source['path']}'")


def _is(file: Path, digest: str, size: int) -> bool:
    try:
        if not file.is_file() or file.stat().st_size != size:
            return False
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == digest
    except OSError:
        return False


def _by_size(folder: Path) -> dict[int, list[Path]]:
    sizes: dict[int, list[Path]] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if each not in SKIPPED)
        for name in sorted(files):
            try:
                sizes.setdefault(os.stat(os.path.join(place, name)).st_size, []).append(Path(place) / name)
            except OSError:  # a link that leads nowhere
                continue
    return sizes

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
APART = "elsewhere"
"""The folder below which those are put that cannot have their own path."""
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

    kind, files = _read(path)
    return {
        "path": name,
        "kind": kind,
        "files": {key: {"sha256": file_hash(file), "bytes": file.stat().st_size} for key, file in files.items()},
    }


def _read(path: str) -> tuple[Kind, dict[str, Path]]:
    """What a recipe reads that names this path: (what it is, the name of each file in it -> the file)."""
    place = Path(path)
    if place.is_file():
        return "file", {place.name: place}
    if place.is_dir():
        return "folder", {
            each.relative_to(place).as_posix(): each for each in sorted(place.rglob("*")) if each.is_file()
        }
    root = Path(path[: len(path) - len(_wild(path))])
    return "pattern", {each.relative_to(root).as_posix(): each for each in _matches(path)}


def _wild(path: str) -> str:
    """The end of a pattern, from its first part with a wildcard on."""
    parts = path.split("/")
    first = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts))
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

    def place(self, sources: Sequence[JSONObject], folder: Path, kept: Sequence[str] = ()) -> dict[str, str]:
        """Link every file below `folder`; returns what stands for each source's path in a recipe that lies there.

        A file that was not found is an empty one, so that the recipe can be read. A source gets a folder of its own
        where its path leads out of `folder` or to a path in `kept`, or where others' files would be read with it.
        Raises DataError where the files cannot lie like this.
        """
        names: dict[str, str] = {}
        refuse_outside(sources)
        try:
            for number, source in enumerate(sources):
                path = str(source["path"])
                usable = _is_inside(path) and not any(_nested(_root(source), Path(each)) for each in kept)
                names[path] = path if usable and self._link(source, path, folder) else ""
                names[path] = names[path] or self._apart(source, number, folder)
            for number, source in enumerate(sources):  # what lies there now is all that the recipe will read
                path = str(source["path"])
                if source["kind"] != "file" and {*_read(str(folder / names[path]))[1]} != {*source["files"]}:
                    names[path] = self._apart(source, number, folder)
        except (OSError, ValueError) as error:  # a name that no file system takes, a file where a folder must be
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"the manifest's sources cannot lie in one folder: {reason}") from None
        return names

    def _apart(self, source: JSONObject, number: int, folder: Path) -> str:
        """Link the files of a source into a folder of its own; returns what stands for its path."""
        path = f"{APART}/{number}"
        if source["kind"] == "file":  # its ending says how it is read
            path += "/" + next(iter(source["files"]))
        elif source["kind"] == "pattern":
            path += "/" + _wild(str(source["path"]))
        if not self._link(source, path, folder):
            raise DataError(f"the manifest's sources name other files at '{path}' too")
        return path

    def _link(self, source: JSONObject, path: str, folder: Path) -> bool:
        """Link the files of a source as if it had this path; False where another source's files lie there."""
        if source["kind"] == "folder":
            (folder / path).mkdir(parents=True, exist_ok=True)
        for name in source["files"]:
            target, file = folder / target_of(path, source["kind"], name), self.files.get((str(source["path"]), name))
            target.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(target):
                target.write_bytes(b"") if file is None else target.symlink_to(file.resolve())
            elif file is None or not _is(target, *_bytes(source, name)):
                return False
        return True


def target_of(path: str, kind: Kind, name: str) -> str:
    """Where a file of a source lies, relative to the recipe."""
    if kind == "file":
        return path
    if kind == "folder":
        return f"{path}/{name}"
    return f"{path[: len(path) - len(_wild(path))]}{name}"


def _root(source: JSONObject) -> Path:
    """What all files of a source lie below, or the file."""
    path = str(source["path"])
    return Path(path[: len(path) - len(_wild(path))] if source["kind"] == "pattern" else path)


def _nested(one: Path, other: Path) -> bool:
    """Whether one path is the other, or lies below it."""
    return one.is_relative_to(other) or other.is_relative_to(one)


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
        for name in source["files"]:
            digest, size = _bytes(source, name)
            target = target_of(path, source["kind"], name)
            usual = [Path.cwd() / target, *([] if data is None else [data / target, data / Path(target).name])]
            changed = next((each for each in usual if os.path.isfile(each) and not _is(each, digest, size)), None)
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


def _bytes(source: JSONObject, name: str) -> tuple[str, int]:
    """SHA-256 and size of a file of a source."""
    about = source["files"][name]
    return str(about["sha256"]), int(about["bytes"])


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

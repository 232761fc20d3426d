"""What a destination can do, and what makes a publication complete: checksums and `publication.json`.

`SHA256SUMS` holds the SHA-256 of every published file, as `sha256sum -c` reads it. `publication.json`, the marker, is
the last file of a publication: without it, or with `complete: false`, nothing was published. `to` of a publish stage
picks the entry of the DESTINATIONS registry whose syntax it is written in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol

from pipelines.core.files import JSONObject
from pipelines.core.registry import DESTINATIONS
from pipelines.core.results import MARKER

SUMS = "SHA256SUMS"
FORMAT = "finery publication 1"
"""The first thing that the marker says."""
CHUNK = 1 << 20


class Destination(Protocol):
    """A place for one publication. Building one touches nothing."""

    example: ClassVar[str]
    """A `to` in this kind's syntax."""

    def __init__(self, to: str, private: bool = True) -> None:
        """`to` as it stands in the recipe."""

    @staticmethod
    def claims(to: str) -> bool:
        """Whether `to` is written in this kind's syntax. The first kind of the registry that claims a text gets it."""

    @staticmethod
    def mistake(to: str) -> str | None:
        """What is wrong with a `to` that this kind claims; looks at nothing outside this machine."""

    @property
    def location(self) -> str:
        """Where it is, whatever the working folder: an absolute path, a URL, `hub:owner/name`."""

    def load_from(self) -> str:
        """What a reader passes to `from_pretrained`, or the folder's name where the files must be fetched first."""

    def marker(self) -> dict[str, Any] | None:
        """`publication.json` of what lies there now, complete or not; None when there is none. Raises PublishError."""

    def holds(self, checksums: Mapping[str, str]) -> bool:
        """Whether exactly these files lie there, by reading them back. Raises PublishError when it cannot tell."""

    def push(self, folder: Path, publication: JSONObject) -> str:
        """Put the files of `folder` there, compare what arrived with `publication["checksums"]`, write the marker last.

        An older publication is replaced; anything else that lies there is refused. Returns `location`.
        Raises PublishError with one sentence.
        """


def kind_of(to: str) -> type[Destination]:
    """The destination class whose syntax `to` is written in."""
    kinds: Iterator[type[Destination]] = (DESTINATIONS.load(name) for name in DESTINATIONS)
    return next(kind for kind in kinds if kind.claims(to))


def destination_of(to: str, private: bool = True) -> Destination:
    """The place that `to` names."""
    return kind_of(to)(to, private)


def sha256_of_stream(stream: BinaryIO) -> str:
    """Hex digest of what is left to read."""
    digest = hashlib.sha256()
    while chunk := stream.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with open(path, "rb") as file:
        return sha256_of_stream(file)


def checksums_of(folder: Path) -> dict[str, str]:
    """Relative path with `/` -> digest, of every file below `folder` but the marker, in the order of the paths."""
    files = sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*") if path.is_file())
    return {name: sha256_of(path) for name, path in files if name != MARKER}


def write_sums(folder: Path) -> dict[str, str]:
    """Write SHA256SUMS over every file in `folder`; returns the checksums of all, SHA256SUMS included."""
    (folder / SUMS).unlink(missing_ok=True)
    sums = checksums_of(folder)
    (folder / SUMS).write_text(sums_text(sums), encoding="utf-8")
    return {**sums, SUMS: sha256_of(folder / SUMS)}


def sums_text(sums: Mapping[str, str]) -> str:
    """SHA256SUMS of these checksums, in the order of the names: two spaces, binary mode, one line feed, as GNU
    coreutils write it. Published names hold no backslash or newline."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def differences(expected: Mapping[str, str], actual: Mapping[str, str | None]) -> list[str]:
    """Names of the expected files that are missing or changed, in order."""
    return [name for name, digest in expected.items() if actual.get(name) != digest]


def marker_bytes(publication: JSONObject, complete: bool) -> bytes:
    """The marker's content."""
    record = {"format": FORMAT, **publication, "complete": complete}
    return (json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()


def marker_in(content: bytes) -> dict[str, Any] | None:
    """The marker's fields, or None when this is not one of ours."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("format") != FORMAT or not isinstance(record.get("checksums"), dict):
        return None
    return record

"""SHA-256 of every published file, in the form that `sha256sum -c SHA256SUMS` reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

SUMS = "SHA256SUMS"
MARKER = "publication.json"
"""Written last, and therefore in no list of checksums."""
CHUNK = 1 << 20


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
    # Two spaces, binary mode, one line feed: the form of GNU coreutils. Published names hold no backslash or newline.
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()), encoding="utf-8")
    return {**sums, SUMS: sha256_of(folder / SUMS)}


def differences(expected: Mapping[str, str], found: Mapping[str, str | None]) -> list[str]:
    """Names of the expected files that are missing or changed, in order."""
    return [name for name, digest in expected.items() if found.get(name) != digest]

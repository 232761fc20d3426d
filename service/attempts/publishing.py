"""What a finished job published becomes a model of its project: one folder, one row.

The publish stage leaves `published/<name>` in the job's folder, marked complete by `publication.json`. It is copied,
file by file, into a hidden folder beside its place, which then takes the name `models/<project>/<name>/<fingerprint>`
in one rename; the row is written last and is unique by project, name and fingerprint. A service that is killed anywhere
in between does it again and finds what is done. The job's own copy stays, so that a retried job finds its publish
stage complete.

An attempt may have left anything under these names. Plain files alone are copied, never linked, so that nobody but the
service can write what a model consists of; each is held against the checksum that its publication states.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.core.errors import RecipeError
from pipelines.core.results import MARKER
from pipelines.core.yaml_positions import read_yaml_text
from service.attempts.folders import PUBLISHED, Folders, Unfit, open_folder, plain_files, read_regular
from service.safety.references import MODEL_NAME, REFERENCE

FINGERPRINT = re.compile(r"[0-9a-f]{8,128}")
LARGEST_RECORD = 16 << 20
"""Bytes of a publication's JSON."""
LARGEST_RECIPE = 1 << 18
MOST_PUBLICATIONS = 1000
MOST_SCORES = 10_000
LARGEST_COUNT = 2**53
CHUNK = 1 << 20
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True)
class Publication:
    """One model folder that a job left."""

    name: str
    fingerprint: str
    folder: Path
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    parameters: int | None = None
    base: str = ""
    below: Path = Path("/")
    """The job's folder, below which nothing is followed."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of its files, as its marker states them."""


def publications(folders: Folders) -> Iterator[Publication]:
    """The complete publications of a job's folder, whatever hidden or unfinished things lie beside them."""
    for name in _names(folders):
        folder = folders.job / PUBLISHED / name
        marker = _read(folder / MARKER, folders.job)
        mark, checksums = marker.get("fingerprint"), marker.get("checksums")
        if marker.get("complete") is not True or not isinstance(mark, str) or FINGERPRINT.fullmatch(mark) is None:
            continue
        manifest = _read(folder / "manifest.json", folders.job)
        yield Publication(
            name,
            mark,
            folder,
            _scores(manifest),
            _parameters(manifest),
            _base(folder, folders.job),
            folders.job,
            checksums if isinstance(checksums, dict) else {},
        )


def _names(folders: Folders) -> list[str]:
    """The folders that may be publications: those with a name that a model can have."""
    try:
        at = open_folder(folders.job / PUBLISHED, folders.job)
    except OSError:
        return []
    try:
        with os.scandir(at) as entries:
            names = [
                entry.name
                for entry, _ in zip(entries, range(MOST_PUBLICATIONS), strict=False)
                if MODEL_NAME.fullmatch(entry.name)
            ]
    finally:
        os.close(at)
    return sorted(names)


def place(publication: Publication, models: Path, project: str) -> Path:
    """Give the publication its place below `models`; returns it. What lies there under this fingerprint is the same.

    Raises Unfit when something in it is no plain file, or is not what its checksum says; OSError.
    """
    final = models / project / publication.name / publication.fingerprint
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    incoming = final.with_name(f".{final.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)  # left by a service that was killed
    try:
        _copy(publication, incoming)
        os.rename(incoming, final)
    except OSError as error:
        shutil.rmtree(incoming, ignore_errors=True)
        if isinstance(error, Unfit) or not final.is_dir():  # else another server of this home was faster
            raise
    return final


def _copy(publication: Publication, incoming: Path) -> None:
    incoming.mkdir()
    copied = set()
    for name, source in plain_files(publication.folder, publication.below):
        target = incoming / name
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with open(target, "xb") as file:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                file.write(chunk)
        if publication.checksums.get(name, digest.hexdigest()) != digest.hexdigest():
            raise Unfit(f"'{name}' of the publication '{publication.name}' is not what its checksum says")
        copied.add(name)
    if lost := sorted(publication.checksums.keys() - copied):
        raise Unfit(f"'{str(lost[0])[:200]}' of the publication '{publication.name}' is missing")


def _read(path: Path, below: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path, below, LARGEST_RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _stages(manifest: Mapping[str, object]) -> list[dict[str, Any]]:
    stages = manifest.get("stages")
    return (
        [stage for stage in stages if isinstance(stage, dict) and isinstance(stage.get("metrics"), dict)]
        if isinstance(stages, list)
        else []
    )


def _scores(manifest: Mapping[str, object]) -> dict[str, dict[str, float]]:
    """The scores of its evaluate stages: finite numbers by benchmark and metric."""
    scores: dict[str, dict[str, float]] = {}
    left = MOST_SCORES
    for stage in _stages(manifest):
        if stage.get("stage") != "evaluate":
            continue
        for name, values in stage["metrics"].items():
            if isinstance(values, dict) and len(name) <= 200 and left > 0:
                numbers = {metric[:200]: value for metric, value in values.items() if _is_number(value)}
                scores[name] = dict(list(numbers.items())[:left])
                left -= len(scores[name])
    return scores


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300 and math.isfinite(value)
    )


def _parameters(manifest: Mapping[str, object]) -> int | None:
    counts = [stage["metrics"].get("all_parameters") for stage in _stages(manifest)]
    valid = [
        count
        for count in counts
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= LARGEST_COUNT
    ]
    return valid[-1] if valid else None


def _base(folder: Path, below: Path) -> str:
    """The model that it began with, as its recipe names it; empty when it was made from scratch, or names a place
    of its own."""
    try:
        data, _ = read_yaml_text(read_regular(folder / "recipe.yaml", below, LARGEST_RECIPE).decode())
        checkpoint = str(data["model"].get("checkpoint") or "")
    except (RecipeError, OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return ""
    return (
        checkpoint
        if len(checkpoint) <= 300 and (HUB_NAME.fullmatch(checkpoint) or REFERENCE.fullmatch(checkpoint))
        else ""
    )

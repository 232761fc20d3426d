"""What a finished job published becomes a model of its project: one folder, one row, however often it is tried.

The publish stage leaves `published/<name>` in the job's folder, marked complete by `publication.json`. It is linked,
file by file, into a hidden folder beside its place, which then takes the name `models/<project>/<name>/<fingerprint>`
in one rename; the row is written last and is unique by project, name and fingerprint. A service that is killed anywhere
in between does it again and finds what is done. The job's own copy stays, so that a retried job finds its publish
stage complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.attempts.folders import PUBLISHED, Folders

MARKER = "publication.json"


@dataclass(frozen=True)
class Publication:
    """One model folder that a job left."""

    name: str
    fingerprint: str
    folder: Path
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    parameters: int | None = None
    base: str = ""


def publications(folders: Folders) -> Iterator[Publication]:
    """The complete publications of a job's folder, whatever hidden or unfinished things lie beside them."""
    for marker in sorted((folders.job / PUBLISHED).glob(f"*/{MARKER}")):
        said = _read(marker)
        if marker.parent.name.startswith(".") or said.get("complete") is not True:
            continue
        manifest = _read(marker.parent / "manifest.json")
        yield Publication(
            marker.parent.name, str(said["fingerprint"]), marker.parent, _scores(manifest), _parameters(manifest), _base(marker.parent)
        )


def place(publication: Publication, models: Path, project: str) -> Path:
    """Give the publication its place below `models`; returns it. What lies there under this fingerprint is the same."""
    final = models / project / publication.name / publication.fingerprint
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    incoming = final.with_name(f".{final.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)  # left by a service that was killed
    shutil.copytree(publication.folder, incoming, copy_function=_link)
    try:
        os.rename(incoming, final)
    except OSError:  # another server of this home was faster
        shutil.rmtree(incoming, ignore_errors=True)
        if not final.is_dir():
            raise
    return final


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _stages(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [stage for stage in manifest.get("stages", ()) if isinstance(stage, dict) and isinstance(stage.get("metrics"), dict)]


def _scores(manifest: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for stage in _stages(manifest):
        if stage.get("stage") == "evaluate":
            found |= {name: dict(values) for name, values in stage["metrics"].items() if isinstance(values, dict)}
    return found


def _parameters(manifest: Mapping[str, Any]) -> int | None:
    counts = [stage["metrics"].get("all_parameters") for stage in _stages(manifest)]
    known = [count for count in counts if isinstance(count, int)]
    return known[-1] if known else None


def _base(folder: Path) -> str:
    """The model that it began with, as its recipe names it; empty when it was made from scratch."""
    from pipelines.errors import RecipeError
    from pipelines.marks import read_yaml

    try:
        data, _ = read_yaml(folder / "recipe.yaml")
        return _named(str(data["model"].get("checkpoint") or ""))
    except (RecipeError, OSError, KeyError, AttributeError, TypeError):
        return ""


def _named(checkpoint: str) -> str:
    """A folder of the server by what lies in it: the name of the model that was published there, or the stage that left it."""
    if not checkpoint.startswith("/"):
        return checkpoint
    folder = Path(checkpoint)
    published, left = _read(folder / "publication.json").get("to"), _read(folder.parent / "stage.json").get("id")
    return Path(published).name if isinstance(published, str) else left if isinstance(left, str) else checkpoint

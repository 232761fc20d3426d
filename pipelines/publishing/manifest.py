"""`manifest.json` of a publication: what the checkpoint was made from, and by what."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipelines.errors import DataError
from pipelines.protocols import Context
from pipelines.recipe import START

PACKAGES = (
    "finery",
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "accelerate",
    "datasets",
    "safetensors",
    "numpy",
    "huggingface_hub",
)
OF_THE_RUN = ("hardware", "launch", "started")
"""What is taken from the run's manifest: nothing that names a path or a host."""
OF_A_STAGE = ("fingerprint", "reads", "inputs", "versions", "seconds")
"""What is taken from a stage's own record."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or nothing where there is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def manifest_of(context: Context, stage_ids: Iterable[str]) -> dict[str, Any]:
    """Versions, fingerprints, data hashes and training metrics of the stages that made the model and its scores."""
    run = read_json(context.events.path.parent / "manifest.json")
    return {
        "name": context.recipe.name,
        "fingerprint": context.fingerprint,
        "versions": {"python": platform.python_version(), **_versions()},
        "stages": [_stage(context, stage_id) for stage_id in stage_ids if stage_id != START],
        **{key: run[key] for key in OF_THE_RUN if key in run},
    }


def _stage(context: Context, stage_id: str) -> dict[str, Any]:
    folder = context.stage_folders[stage_id]
    stage = context.recipe.stage(stage_id)
    record = read_json(folder / "stage.json")
    return {
        "id": stage_id,
        "stage": stage.stage,
        "seed": context.recipe.seed_of(stage),
        "fingerprint": record.get("fingerprint", folder.name),
        **{key: record[key] for key in OF_A_STAGE if key in record},
        "data": record.get("data") or _content(stage, context),
        "metrics": read_json(folder / "metrics.json"),
    }


def _content(stage: Any, context: Context) -> Mapping[str, str]:
    try:
        content: Mapping[str, str] = stage.content(context.recipe)
    except DataError:  # the data may be gone by now; the stage that read it is complete
        return {}
    return content


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

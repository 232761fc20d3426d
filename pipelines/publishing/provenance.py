"""What a publication was made from: `manifest.json`, and the name of the checkpoint that its model began with.

A checkpoint has a Hub name, a publication's, a stage's, or its folder's last part. Nobody is told how the author's
disk is arranged, and `model`, the folder in which every stage keeps its model, says nothing. On a server
`FINERY_REFERENCES` names a file that says what the paths of a recipe stand for: `{path: "model:NAME@3"}`, `job:NAME`,
and of uploads `data/NAME`. What is published names these, and none of the server's folders (`public`).
"""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from pipelines.core.errors import DataError
from pipelines.core.files import JSONObject, read_json
from pipelines.core.interfaces import Context
from pipelines.core.launch import BY_DEEPSPEED
from pipelines.core.recipe import START
from pipelines.core.results import MARKER, BenchmarkScores
from pipelines.models.checkpoint_content import commit_of

STAGES, RECORD = "stages", "stage.json"
"""Of a run folder: the folder of its stages; of a stage: what says that it is complete."""

REFERENCES = "FINERY_REFERENCES"
FOLDERS = (
    "FINERY_HOME",
    "FINERY_SHARED_STAGES",
    "FINERY_DATA",
    "FINERY_SECRETS",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TMPDIR",
    "HOME",
)
"""Variables that name folders of a server."""


def public(value: Any) -> Any:
    """Plain data as it may be published: on a server with references in place of its paths; elsewhere as it is."""
    place = os.environ.get(REFERENCES)
    return value if not place else _public(value, _references(place))


def _public(value: Any, references: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _public_text(value, references)
    if isinstance(value, Mapping):
        return {_public(key, references): _public(entry, references) for key, entry in value.items()}
    return type(value)(_public(entry, references) for entry in value) if isinstance(value, list | tuple) else value


def _public_text(text: str, references: Mapping[str, str]) -> str:
    for path in sorted(references, key=len, reverse=True):
        reference = references[path].replace("\\", "\\\\")  # as a template of `re.sub` that stands for itself
        text = re.sub(rf"{re.escape(path)}(?![\w.-])", reference, text)
    named = [os.getcwd(), sys.prefix, sys.base_prefix, str(Path(__file__).parents[2])]
    named += [part for variable in FOLDERS for part in os.environ.get(variable, "").split(os.pathsep)]
    folders = {
        form
        for folder in named
        for form in (folder.rstrip("/"), os.path.realpath(folder) if folder else "")
        if form.count("/") > 1
    }
    if not folders:
        return text
    places = "|".join(map(re.escape, sorted(folders, key=len, reverse=True)))
    return re.sub(rf"(?:{places})(/|(?![\w.-]))", lambda match: "" if match.group(1) else ".", text)


@cache
def _references(place: str) -> dict[str, str]:
    references = read_json(Path(place))
    return {
        form: str(name)
        for path, name in references.items()
        if path.startswith("/")
        for form in (path, os.path.realpath(path))
    }


def is_hub_id(checkpoint: str) -> bool:
    """Whether a checkpoint is named as on the Hub, and is no folder here."""
    return not checkpoint.startswith((".", "/", "~")) and checkpoint.count("/") <= 1 and not Path(checkpoint).exists()


def name_of(checkpoint: str) -> str:
    """The name alone: `google-bert/bert-base-uncased`, `my-model`, or `mrpc` for what that stage left."""
    if is_hub_id(checkpoint):
        return checkpoint
    if (reference := _reference(checkpoint)) is not None:
        return reference
    folder = Path(checkpoint)
    published = read_json(folder / MARKER).get("to")
    if isinstance(published, str) and published:
        return (
            published.removeprefix("hub:") if published.startswith("hub:") else published.rstrip("/").rpartition("/")[2]
        )
    stage = _stage(folder)
    if stage is not None:
        return stage
    return folder.name if folder.name != "model" else folder.parent.name


def described(checkpoint: str) -> str:
    """As it stands in a sentence behind "made from" or "starts from": `` `my-model` ``, or ``the model of stage
    `mrpc` in run `demo` ``."""
    name = f"`{name_of(checkpoint)}`"
    folder = Path(checkpoint)
    if (
        is_hub_id(checkpoint)
        or _reference(checkpoint) is not None
        or (folder / MARKER).is_file()
        or _stage(folder) is None
    ):
        return name
    run = next(
        (
            place.parent.name
            for place in folder.parents
            if place.name == STAGES and (place.parent / "recipe.yaml").is_file()
        ),
        None,
    )
    return f"the model of stage {name}" + (f" in run `{run}`" if run else "")


def _reference(checkpoint: str) -> str | None:
    place = os.environ.get(REFERENCES)
    return _references(place).get(checkpoint) if place else None


def _stage(folder: Path) -> str | None:
    """Id of the stage that left a model in this folder: `…/model`, or one a task, `…/tasks/<task>/model`."""
    for place in folder.parents[:3]:
        if (place / RECORD).is_file():
            stage_id = read_json(place / RECORD).get("id")
            return stage_id if isinstance(stage_id, str) and stage_id else None
    return None


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
EXTRAS = ("features", "graders", "qlora")
"""Extras of Finery whose packages scores may depend on. Trackers, exports and signatures change none."""
OF_THE_RUN = ("hardware", "launch", "started")
"""What is taken from the run's manifest: nothing that names a path or a host."""
OF_A_STAGE = (
    "fingerprint",
    "code",
    "reads",
    "inputs",
    "versions",
    "seconds",
    "hardware",
    "energy_joules",
    "energy_counters",
)
"""What is taken from a stage's own record."""


def manifest_of(
    context: Context, stage_ids: Iterable[str], model: str, scores: Mapping[str, BenchmarkScores]
) -> JSONObject:
    """Versions, fingerprints, data hashes and training metrics of the stages that made the model and its scores.

    `model` is the id of the stage whose model it is. `scores` stand in it with their intervals: what a reader who
    measures again holds his own against.
    """
    run = read_json(context.events.path.parent / "manifest.json")
    profile = run.get("launch", {}).get("profile")
    return {
        "name": context.recipe.name,
        "fingerprint": context.fingerprint,
        "model": {"stage": model, "publish": context.stage_id, **_start(context)},
        "versions": installed(),
        "environment": _versions(required((*EXTRAS, *(["deepspeed"] if profile in BY_DEEPSPEED else [])))),
        "scores": [stated(each) for each in scores.values()],
        "stages": [_stage_manifest(context, stage_id) for stage_id in stage_ids if stage_id != START],
        **{key: run[key] for key in OF_THE_RUN if key in run},
    }


def _stage_manifest(context: Context, stage_id: str) -> JSONObject:
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


def installed() -> dict[str, str]:
    """Versions of Python and of what Finery computes with."""
    return {"python": platform.python_version(), **_versions(PACKAGES)}


def _start(context: Context) -> dict[str, str]:
    """The commit of the checkpoint on the Hub that the recipe begins with; nothing where it begins with another."""
    own = context.recipe.model
    if own.checkpoint is None or not is_hub_id(own.checkpoint):
        return {}
    try:
        commit = commit_of(own.checkpoint, own.revision)
    except DataError:  # out of reach by now
        commit = None
    return {"checkpoint": own.checkpoint, **({"revision": commit} if commit else {})}


def stated(scores: BenchmarkScores) -> JSONObject:
    """What was measured on one benchmark; a score that is undefined has none here."""
    return {
        "benchmark": scores.benchmark,
        "stage": scores.stage,
        "metrics": {name: value if math.isfinite(value) else None for name, value in scores.metrics.items()},
        "intervals": {name: list(ends) for name, ends in scores.intervals.items()},
        "examples": scores.details.get("examples"),
        "percent": scores.details.get("percent", []),
    }


@cache
def required(extras: tuple[str, ...] = EXTRAS) -> tuple[str, ...]:
    """Every distribution that Finery needs here with these extras, and that those need, sorted: what a computation may
    depend on."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    waiting: list[tuple[str, frozenset[str]]] = [("finery", frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            needed = [Requirement(each) for each in requires(name) or ()]
        except PackageNotFoundError:
            continue
        for each in needed:
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in (*wanted, "")):
                waiting.append((canonicalize_name(each.name), frozenset(each.extras)))
    return tuple(sorted({name for name, _ in seen}))


def _versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {package: _version(package) for package in packages}
    return {package: found for package, found in versions.items() if found is not None}


@cache
def _version(package: str) -> str | None:
    """The version that is installed; asked once in a process: each asking reads and parses a file."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None

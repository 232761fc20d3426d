"""`finery publish`: publishes the model of a finished run, or of one of its stages, as a publish stage would.

The run's recipe gets a publish stage at its end; every stage before it is complete, and is only read. The publication
carries that recipe, so that it says the same about itself as one that a run made.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipelines.commands.trained_models import WarningLog
from pipelines.core.config import ConfigIssues
from pipelines.core.errors import CommandError
from pipelines.core.files import RECORD, JSONObject
from pipelines.core.load import read
from pipelines.core.recipe import TOKENIZER, Recipe, validated
from pipelines.core.results import MARKER, stage_folders
from pipelines.core.signals import StopSignal
from pipelines.publishing.publish import Publish
from pipelines.runs import fingerprints
from pipelines.runs.run import RecipeRun
from pipelines.runs.workspace import RunFolder, StageStore


@dataclass(frozen=True)
class PublishRequest:
    """What `finery publish` was asked."""

    source: str
    to: str
    require: Mapping[str, str] = field(default_factory=dict)
    settings: JSONObject = field(default_factory=dict)
    """Further keys of a publish stage: `merge`, `private`, `license`."""


def answer(fields: JSONObject) -> JSONObject:
    """Where it lies, and what the proof found. Raises FineryError."""
    request = PublishRequest(**fields)
    run, stage_id = run_of(Path(request.source).expanduser())
    recipe = with_publish(run, stage_id, request)
    stage: Publish = recipe.stages[-1]
    job = RecipeRun(recipe, RunFolder(run, StageStore()), StopSignal())
    complete(job, recipe, run)
    warnings: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        # relative destinations mean what they mean to whoever gives the command, not to the run
        context = job.context(stage, Path(folder), _fingerprint(job, recipe, stage))
        context = replace(context, events=WarningLog(run / "events.jsonl", warnings))
        stage.run(context)
        publication = json.loads((Path(folder) / MARKER).read_text(encoding="utf-8"))
    return {
        "location": publication["location"],
        "model": recipe.model_of(stage),
        "verification": publication.get("verification", {}),
        "warnings": warnings,
    }


def run_of(folder: Path) -> tuple[Path, str | None]:
    """The run's folder, and the id of the stage that was named. Raises CommandError."""
    if (folder / "stages").is_dir() and (folder / "recipe.yaml").is_file():
        return folder.absolute(), None
    place = folder.parent if folder.name == "model" else folder
    part = f"/{place.name}" if place.parent.name == "tasks" else ""
    place = place.parent.parent if part else place
    run = place.absolute().parent.parent
    if place.parent.name == "stages" and (run / "recipe.yaml").is_file() and (place / RECORD).is_file():
        return run, place.name.partition("-")[2] + part
    if (folder / MARKER).is_file():
        raise CommandError(f"'{folder}' is published already; copy it, or give the run that made it")
    if (folder / "cells").is_dir():
        raise CommandError(f"'{folder}' is a study of several runs; name one of them, such as {folder}/cells/01")
    raise CommandError(
        f"'{folder}' is neither a finished run nor one of its stages; give a folder such as runs/NAME or "
        "runs/NAME/stages/02-mrpc"
    )


def with_publish(run: Path, stage_id: str | None, request: PublishRequest) -> Recipe:
    """The run's recipe with a publish stage at its end, in place of those that it has. Raises RecipeError or
    CommandError."""
    source = read(run / "recipe.yaml")
    stages = [stage for stage in source.data.get("stages", ()) if stage.get("stage") != "publish"]
    taken = {stage.get("id") for stage in stages}
    name = next(each for each in ("publish", *(f"publish-{number}" for number in range(2, 10**4))) if each not in taken)
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in request.settings.items()}
    block = {"stage": "publish", "id": name, "to": request.to, "require": dict(request.require), **settings}
    if stage_id is not None:
        block["from"] = stage_id
    data = {**source.data, "stages": (*stages, block)}
    try:
        return validated(data, source.folder)
    except ConfigIssues as error:
        mine = [(place, message) for place, message in error.found if place[:2] == ("stages", len(stages))]
        if mine and len(mine) == len(error.found):
            words = {"to": "--to", "from": "the stage", "require": "--require"}
            keys = [str(place[2]) if len(place) > 2 else "" for place, _ in mine]
            sentences = [
                f"{words.get(key, key)} {' '.join(map(str, place[3:]))} {message}"
                for key, (place, message) in zip(keys, mine, strict=True)
            ]
            raise CommandError("; ".join(" ".join(each.split()) for each in sentences)) from None
        raise source.error(error.found) from None


def complete(job: RecipeRun, recipe: Recipe, run: Path) -> None:
    """Tell the job where its stages lie. Raises CommandError where one that is needed is not complete."""
    places = {TOKENIZER: run / TOKENIZER}
    recorded = read(run / "recipe.yaml").ids
    places |= stage_folders(run, [str(name) for name in recorded])
    for name in (TOKENIZER, *(stage.id for stage in recipe.stages[:-1])):
        folder = places[name]
        if not (folder / RECORD).is_file():
            raise CommandError(
                f"the run '{run}' is not finished: '{name}' is not complete; finish it: finery resume {run}"
            )
        job.folders[name] = folder.resolve()
        job.fingerprints[name] = json.loads((folder / RECORD).read_text(encoding="utf-8"))["fingerprint"]
        for model in sorted((job.folders[name] / "tasks").glob("*/model")):
            part = f"{name}/{model.parent.name}"
            job.folders[part], job.fingerprints[part] = model.parent, job.fingerprints[name]


def _fingerprint(job: RecipeRun, recipe: Recipe, stage: Publish) -> str:
    """What tells two publications apart, as a run's own publish stage has it."""
    identity = stage.identity() | {"reads": stage.reads(recipe)}
    inputs = [job.fingerprints[TOKENIZER], *(job.fingerprints[name] for name in stage.reads(recipe))]
    return fingerprints.digest({"identity": identity, "inputs": inputs})

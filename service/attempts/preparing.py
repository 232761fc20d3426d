"""Before an attempt starts: its folder, the recipe that runs, and the command. Doing it twice changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from pipelines.core.errors import CommandError
from pipelines.core.yaml_positions import read_yaml_text
from service.attempts.environment import (
    environment_of,
    hub_folder,
    secret_files,
    secrets_of,
    shared_stages,
    stage_cache,
)
from service.attempts.folders import INPUTS, PUBLISHED, RECIPE, REFERENCES, Folders, folders_of
from service.attempts.stage_store import model_in
from service.executors.protocol import AttemptSpec, Placement, Sandbox
from service.executors.records import write_file
from service.jobs.job import Attempt, Job
from service.jobs.states import State
from service.safety.network_recipes import materialise, needs, read_network
from service.safety.remote_code import unfit_code
from service.settings import Settings
from service.store.errors import NotFound
from service.store.models import PublishedModel
from service.store.store import Store
from service.submission import allowed_code
from service.uploads import file_path, safe_name

PIPELINES = (sys.executable, "-m", "pipelines")
"""What runs an attempt."""
LOG_FILES = 4
"""The console log is kept in so many files, the oldest of which makes room."""
POSTGRESQL = 5432
HUB = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE")
"""Variables that name where downloads from the Hub lie."""


class Missing(CommandError):
    """Something that the recipe refers to is gone."""


def prepare(
    store: Store, settings: Settings, job: Job, attempt: Attempt, pipelines: Sequence[str] = PIPELINES
) -> AttemptSpec:
    """Everything the executor needs. Raises RecipeError or Missing when the recipe can no longer be resolved."""
    folders = folders_of(settings.jobs, job)
    folders.job.mkdir(parents=True, exist_ok=True, mode=0o700)
    hub_folder(settings, job.project).mkdir(parents=True, exist_ok=True, mode=0o700)
    folders.cache.mkdir(exist_ok=True, mode=0o700)
    shared_stages(settings, job.project).mkdir(parents=True, exist_ok=True)
    wanted = needs(job.request.recipe, job.request.overrides)
    if wanted.code:
        _refuse_code(store, settings, job)
    files = {name: linked(store, settings, job, name, folders.job / INPUTS) for name in wanted.files}
    checkpoints: dict[str, Path] = {}
    for name in wanted.jobs:
        checkpoints[f"job:{name}"] = model_of_job(store, settings, job.project, name)
    named = names_of_uploads(files.values()) | {path: name for name, path in checkpoints.items()}
    for name in wanted.models:
        model = version_of(store, job, name)
        checkpoints[f"model:{name}"] = Path(model.path)
        named[Path(model.path)] = f"model:{model.reference}"
    _name_references(folders, named)
    made = materialise(job.request.recipe, job.request.overrides, files=files, checkpoints=checkpoints)
    if not folders.recipe.is_file() or folders.recipe.read_text(encoding="utf-8") != made.recipe:
        write_file(str(folders.job), RECIPE, made.recipe.encode())
    resources = attempt.resources
    environment = environment_of(settings, job, attempt)
    return AttemptSpec(
        attempt_id=attempt.id,
        job_id=job.id,
        fencing_token=attempt.fencing,
        command=(*pipelines, *words_of(folders, made.recipe)),
        folder=folders.job,
        record=folders.record(attempt.id),
        environment=environment,
        secrets=secret_files(secrets_of(settings, job)),
        placements=tuple(
            Placement(part.host, part.gpus, resources.cpus, resources.memory) for part in attempt.placement
        ),
        log_bytes=max(1, settings.log_bytes // LOG_FILES),
        log_files=LOG_FILES,
        sandbox=sandbox_of(settings, folders, attempt.id, environment, checkpoints.values()),
    )


def sandbox_of(
    settings: Settings, folders: Folders, attempt_id: str, environment: Mapping[str, str], checkpoints: Iterable[Path]
) -> Sandbox:
    """What an isolated attempt sees of the service's files: its own job's parts, and what its recipe names.

    `environment` is its own: it names its stage cache, the shared stages and the Hub's cache.
    """
    hub = [environment[name] for name in HUB if environment.get(name)]
    own = [path for path in hub if Path(path).is_relative_to(settings.home)]
    read: list[Path | str] = [
        folders.recipe,
        folders.job / INPUTS,
        folders.record(attempt_id) / "secrets",
        *checkpoints,
        *(path for path in hub if path not in own),
        *filter(None, [environment.get("FINERY_SHARED_STAGES")]),
    ]
    write: list[Path | str] = [folders.job / "runs", folders.job / PUBLISHED, environment["FINERY_HOME"], *own]
    return sandbox_around(settings, read, write)


def sandbox_around(settings: Settings, read: Iterable[Path | str], write: Iterable[Path | str]) -> Sandbox:
    """A sandbox that shows these places, and hides the service's own and its database."""
    database = make_url(settings.url)
    hidden: list[Path | str] = [settings.home, stage_cache(settings)]
    if database.get_backend_name() == "sqlite":
        hidden += [f"{database.database}{ending}" for ending in ("", "-wal", "-shm", "-journal")]
    ports = [settings.port, POSTGRESQL if database.port is None else database.port]
    return Sandbox(
        read=tuple(map(str, read)),
        write=tuple(map(str, write)),
        hidden=tuple(map(str, hidden)),
        private_endpoints=settings.private_endpoints,
        refused_ports=tuple(port for port in ports if port),
    )


def names_of_uploads(paths: Iterable[Path]) -> dict[Path, str]:
    """What each is called in what is published: by its own name, which its owner knows, as files of a run on one's own
    machine are that lie elsewhere (`pipelines.publishing.sources`); its id says nothing where the server is not."""
    names: dict[Path, str] = {}
    for path in paths:
        numbered = (f"data/{number}/{path.name}" for number in range(1, len(names) + 2))
        names[path] = next(each for each in (f"data/{path.name}", *numbered) if each not in names.values())
    return names


def _name_references(folders: Folders, names: Mapping[Path, str]) -> None:
    """What the recipe's paths stand for, so that what is published names that."""
    (folders.job / INPUTS).mkdir(exist_ok=True)
    content = json.dumps({str(path): name for path, name in names.items()})
    write_file(str(folders.job / INPUTS), REFERENCES, content.encode())


def _refuse_code(store: Store, settings: Settings, job: Job) -> None:
    """Raise Missing when a repository's code is no longer allowed: an admin may have changed the list while the
    job waited."""
    data = read_network(job.request.recipe, job.request.overrides).data
    for _, message in unfit_code(data, allowed_code(store, settings, job.project)):
        raise Missing(f"model.trust_remote_code {message}")


def words_of(folders: Folders, recipe: str) -> tuple[str, ...]:
    """`run` for the first attempt, `study` for a recipe with a matrix, `resume` where a run folder is there already."""
    if folders.begun:
        return ("resume", str(Path("runs") / folders.name))
    data: Any = read_yaml_text(recipe)[0]
    return ("study" if "matrix" in data else "run", RECIPE)


def linked(store: Store, settings: Settings, job: Job, file_id: str, inputs: Path) -> Path:
    """A link to an uploaded file under its own name: its ending tells the format."""
    try:
        file = store.file(file_id, job.project)
    except NotFound:
        raise Missing(f"the file '{file_id}' is gone; upload it again and submit the job with it") from None
    content = file_path(settings, file)
    place = inputs / file_id / (safe_name(file.filename).lstrip(".") or "file")
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        temporary = place.with_name(f".{place.name}.tmp")
        temporary.unlink(missing_ok=True)
        try:
            os.link(content, temporary)  # stays when the upload is deleted while the job runs
        except FileNotFoundError:
            raise Missing(
                f"the content of file '{file_id}' is gone; upload it again and submit the job with it"
            ) from None
        except OSError:
            shutil.copyfile(content, temporary)
        temporary.rename(place)
    return place


def version_of(store: Store, job: Job, name: str) -> PublishedModel:
    """The version that a reference stood for when the job was submitted; of a job older than versions, the one that
    it stands for now. Raises Missing."""
    version = job.request.models.get(name)
    try:
        return store.model(job.project, name) if version is None else store.model_by_id(version["id"], job.project)
    except NotFound:
        raise Missing(
            f"the version that 'model:{name}' stood for when the job was submitted is deleted; restore it, or submit "
            "the job again with one that is there"
        ) from None


def model_of_job(store: Store, settings: Settings, project: str, name: str) -> Path:
    """The model that the newest succeeded job of this name, or the job of this id, left. Raises Missing."""
    if name.startswith("job-"):
        try:
            jobs = [store.job(name, project)]
        except NotFound:
            jobs = []
    else:
        jobs = store.jobs(project, states=[State.SUCCEEDED], name=name, limit=1)
    done = [job for job in jobs if job.state is State.SUCCEEDED]
    if not done:
        raise Missing(
            f"'job:{name}' names no job of this project that has succeeded; submit that one first, or name it in "
            "depends_on"
        )
    stages = sorted(folders_of(settings.jobs, done[0]).run.glob("stages/*"))
    models = [model for stage in stages if (model := model_in(settings, done[0], stage)) is not None]
    if not models:
        raise Missing(f"'job:{name}' left no model: none of its stages trains one")
    return models[-1]

"""What the references of a recipe stand for in a project: paths of uploads, folders of models, jobs to wait for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from service.attempts.stage_store import model_in
from service.jobs.job import Job
from service.jobs.states import State
from service.safety.materialise import Needs
from service.safety.network_recipes import Known, read_network
from service.settings import Settings
from service.store.errors import NotFound
from service.store.files import READY
from service.store.store import Store
from service.uploads import file_path


@dataclass(frozen=True)
class LookedUp(Known):
    """What was found, and the jobs whose models those are or will be."""

    depends_on: tuple[str, ...] = field(default=())


def look_up(store: Store, settings: Settings, project: str, needs: Needs) -> LookedUp:
    """Find everything that a recipe needs in its project; what is not there is left out."""
    files: dict[str, Path] = {}
    for identifier in needs.files:
        try:
            file = store.file(identifier, project)
        except NotFound:
            continue
        if file.state == READY:
            files[identifier] = file_path(settings, file)
    checkpoints: dict[str, Path | None] = {}
    depends_on: list[str] = []
    for name in needs.models:
        try:
            checkpoints[f"model:{name}"] = Path(store.model(project, name).path)
        except NotFound:
            continue
    for name in needs.jobs:
        job = job_named(store, project, name)
        if job is None:
            continue
        folder = model_folder(settings, job) if job.state is State.SUCCEEDED else None
        if job.state is not State.SUCCEEDED or folder is not None:
            checkpoints[f"job:{name}"] = folder
            depends_on.append(job.id)  # of one that has succeeded too, so that the same request stays the same
    code = allowed_code(store, settings, project) if needs.code else frozenset()
    return LookedUp(files, checkpoints, code, settings.private_endpoints, tuple(depends_on))


def allowed_code(store: Store, settings: Settings, project: str) -> frozenset[str]:
    """`owner/name@COMMIT` of every repository whose code the jobs of a project may run."""
    try:
        own = store.project(project).settings.get("remote_code", ())
    except NotFound:  # its first job makes it
        own = ()
    return frozenset((*settings.allow_remote_code, *own))


def job_named(store: Store, project: str, name: str) -> Job | None:
    """The job of that id, or the newest of that name that succeeded, else the newest that may still do so."""
    if name.startswith("job-"):
        try:
            job = store.job(name, project)
        except NotFound:
            job = None
        if job is not None:
            return None if job.state in (State.FAILED, State.CANCELLED) else job
    states: list[State] = [State.SUCCEEDED]
    found = store.jobs(project, name=name, states=states, limit=1)
    waiting = [state for state in State if state not in (State.SUCCEEDED, State.FAILED, State.CANCELLED)]
    found = found or store.jobs(project, name=name, states=waiting, limit=1)
    return found[0] if found else None


def model_folder(settings: Settings, job: Job) -> Path | None:
    """Where the last training stage of a succeeded job left its model; None for a study, which leaves several, or none."""
    data = read_network(job.request.recipe, job.request.overrides).data
    stages = data.get("stages")
    ids = [stage.get("id") for stage in stages if isinstance(stage, dict)] if isinstance(stages, tuple | list) else []
    for identifier in reversed(ids):
        for stage in (settings.jobs / job.id / "runs" / job.name / "stages").glob(f"[0-9]*-{identifier}"):
            if (found := model_in(settings, job, stage)) is not None:
                return found
    return None

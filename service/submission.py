"""From what a client sent to a job: the recipe checked, its references found, its resources settled.

References name what lies in the project: paths of uploads, folders of models, jobs to wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError
from pipelines.core.results import stage_folders
from pipelines.core.training_arguments import missing_package
from service.attempts.stage_store import model_in
from service.checking import Checker, Outline
from service.jobs.job import Job, JobRequest, Kind, ModelVersion, Resources
from service.jobs.states import State
from service.safety import secrets as secret_store
from service.safety.network_recipes import TRACKERS, Known, Needs, read_network
from service.settings import Settings
from service.store.errors import NotFound
from service.store.files import READY
from service.store.store import Store
from service.uploads import file_path


@dataclass(frozen=True)
class LookedUp(Known):
    """What was found, and the jobs whose models those are or will be."""

    depends_on: tuple[str, ...] = field(default=())
    models: Mapping[str, ModelVersion] = field(default_factory=dict)
    """Reference to a model -> the version that it stands for now."""


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
    models: dict[str, ModelVersion] = {}
    for name in needs.models:
        try:
            model = store.model(project, name)
        except NotFound:
            continue
        checkpoints[f"model:{name}"] = Path(model.path)
        models[name] = {"id": model.id, "reference": model.reference}
    for name in needs.jobs:
        job = job_named(store, project, name)
        if job is None:
            continue
        folder = model_folder(settings, job) if job.state is State.SUCCEEDED else None
        if job.state is not State.SUCCEEDED or folder is not None:
            checkpoints[f"job:{name}"] = folder
            depends_on.append(job.id)  # of one that has succeeded too, so that the same request stays the same
    code = allowed_code(store, settings, project) if needs.code else frozenset()
    # the other executors have images and hosts with packages of their own
    missing = filter(missing_package, TRACKERS) if settings.executor == "local" else ()
    return LookedUp(files, checkpoints, code, settings.private_endpoints, frozenset(missing), tuple(depends_on), models)


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
    jobs = store.jobs(project, name=name, states=states, limit=1)
    waiting = [state for state in State if state not in (State.SUCCEEDED, State.FAILED, State.CANCELLED)]
    jobs = jobs or store.jobs(project, name=name, states=waiting, limit=1)
    return jobs[0] if jobs else None


def model_folder(settings: Settings, job: Job) -> Path | None:
    """Where the last training stage of a succeeded job left its model; None for a study, which leaves several, or
    none."""
    data = read_network(job.request.recipe, job.request.overrides).data
    stages = data.get("stages")
    entries = stages if isinstance(stages, tuple | list) else ()
    ids = [str(stage.get("id")) if isinstance(stage, dict) else "" for stage in entries]
    for stage in reversed(stage_folders(settings.jobs / job.id / "runs" / job.name, ids).values()):
        if (model := model_in(settings, job, stage)) is not None:
            return model
    return None


MOST_PROCESSES = 64
LARGEST_PRIORITY = 1_000


@dataclass(frozen=True)
class Wish:
    """What a client asks for."""

    recipe: str | Mapping[str, Any]
    """YAML text, or the same as plain data."""
    overrides: tuple[str, ...] = ()
    priority: int = 0
    resources: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Resources`; the rest is settled by the recipe."""
    depends_on: tuple[str, ...] = ()
    deadline: float | None = None
    expected_seconds: float | None = None
    max_retries: int | None = None
    max_seconds: float | None = None
    ttl_seconds_after_finished: float | None = None
    secrets: tuple[str, ...] = ()
    idempotency_key: str | None = None


@dataclass(frozen=True)
class Fitting:
    """A wish that can be granted."""

    text: str
    checked: Outline
    lookup: LookedUp
    resources: Resources


def fit(store: Store, settings: Settings, checker: Checker, project: str, wish: Wish) -> Fitting:
    """Check a wish in its project. Raises RecipeError with every mistake, or CommandError."""
    reading = checker.read(wish.recipe, wish.overrides)
    lookup = look_up(store, settings, project, reading.needs)
    resources = resources_of(wish.resources, _launch(reading.data, "num_processes"), _launch(reading.data, "hosts"))
    most = max(resources.gpus, resources.cpus, 1) * resources.hosts
    return Fitting(
        reading.text,
        checker.check(reading.text, wish.overrides, lookup, most, _hosts(settings, project, wish.secrets)),
        lookup,
        resources,
    )


def _hosts(settings: Settings, project: str, named: tuple[str, ...]) -> dict[str, tuple[str, ...] | None]:
    """The hosts that each secret of a job may be sent to, None for any; never the secret itself. Raises
    CommandError for what is no name."""
    if wrong := next((name for name in named if not secret_store.is_name(name)), None):
        raise CommandError(f"secrets: {secret_store.unfit_name(wrong)}")
    secrets = {name: secret_store.given(settings, project, name) for name in named}
    return {name: None if secret is None else secret.hosts for name, secret in secrets.items()}


def submit(
    store: Store,
    settings: Settings,
    checker: Checker,
    project: str,
    token: str,
    wish: Wish,
    kind: Kind = "api",
    openai: Mapping[str, object] | None = None,
) -> tuple[Job, bool]:
    """Take the job. Returns it, and whether it is new. Raises as `fit` and as the store's `submit`."""
    fitting = fit(store, settings, checker, project, wish)
    request = JobRequest(
        recipe=fitting.text,
        project=project,
        name=fitting.checked.name,
        overrides=wish.overrides,
        priority=wish.priority,
        resources=fitting.resources,
        depends_on=tuple(dict.fromkeys((*wish.depends_on, *fitting.lookup.depends_on))),
        deadline=wish.deadline,
        expected_seconds=wish.expected_seconds,
        max_retries=settings.max_retries if wish.max_retries is None else wish.max_retries,
        max_seconds=wish.max_seconds,
        ttl_seconds_after_finished=wish.ttl_seconds_after_finished,
        idempotency_key=wish.idempotency_key,
        kind=kind,
        submitted_by=token,
        secrets=wish.secrets,
        openai=dict(openai or {}),
        models=fitting.lookup.models,
    )
    return store.submit(request, max_queued=settings.max_queued)


def resources_of(given: Mapping[str, Any], processes: int | None, hosts: int | None = None) -> Resources:
    """What a job takes: as asked, else the hosts and one core for each process that its recipe names. Raises
    CommandError."""
    fields = ({} if hosts is None else {"hosts": hosts}) | {
        key: value for key, value in given.items() if value is not None
    }
    try:
        resources = Resources(**fields)
    except (TypeError, ValueError) as error:
        raise CommandError(f"resources: {error}") from None
    if processes is not None and "cpus" not in fields and "gpus" not in fields:
        each = max(1, processes // resources.hosts)
        resources = replace(resources, cpus=min(each, MOST_PROCESSES))
    return resources


def _launch(data: Mapping[str, object], key: str) -> int | None:
    """A number of the recipe's `launch`."""
    launch = data.get("launch")
    number = launch.get(key) if isinstance(launch, Mapping) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None

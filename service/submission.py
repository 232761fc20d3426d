"""From what a client sent to a job: the recipe checked, its references found, its resources settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.errors import CommandError
from service.checking import Checker, Outline
from service.jobs.job import Job, JobRequest, Kind
from service.jobs.resources import Resources
from service.lookups import LookedUp, look_up
from service.safety import secret_store
from service.settings import Settings
from service.store.store import Store

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
    found: LookedUp
    resources: Resources


def fit(store: Store, settings: Settings, checker: Checker, project: str, wish: Wish) -> Fitting:
    """Check a wish in its project. Raises RecipeError with every mistake, or CommandError."""
    reading = checker.read(wish.recipe, wish.overrides)
    found = look_up(store, settings, project, reading.needs)
    resources = resources_of(wish.resources, _processes(reading.data))
    most = max(resources.gpus, resources.cpus, 1) * resources.hosts
    return Fitting(reading.text, checker.check(reading.text, wish.overrides, found, most, _hosts(settings, project, wish.secrets)), found, resources)


def _hosts(settings: Settings, project: str, named: tuple[str, ...]) -> dict[str, tuple[str, ...] | None]:
    """The hosts that each secret of a job may be sent to, None for any; never the secret itself. Raises CommandError for what is no name."""
    if wrong := next((name for name in named if not secret_store.is_name(name)), None):
        raise CommandError(f"secrets: {secret_store.unfit_name(wrong)}")
    found = {name: secret_store.given(settings, project, name) for name in named}
    return {name: None if secret is None else secret.hosts for name, secret in found.items()}


def submit(
    store: Store, settings: Settings, checker: Checker, project: str, token: str, wish: Wish, kind: Kind = "api",
    openai: Mapping[str, Any] | None = None,
) -> tuple[Job, bool]:  # fmt: skip
    """Take the job. Returns it, and whether it is new. Raises as `fit` and as the store's `submit`."""
    fitting = fit(store, settings, checker, project, wish)
    request = JobRequest(
        recipe=fitting.text, project=project, name=fitting.checked.name, overrides=wish.overrides, priority=wish.priority,
        resources=fitting.resources, depends_on=tuple(dict.fromkeys((*wish.depends_on, *fitting.found.depends_on))),
        deadline=wish.deadline, expected_seconds=wish.expected_seconds,
        max_retries=settings.max_retries if wish.max_retries is None else wish.max_retries,
        max_seconds=wish.max_seconds, ttl_seconds_after_finished=wish.ttl_seconds_after_finished,
        idempotency_key=wish.idempotency_key, kind=kind, submitted_by=token, secrets=wish.secrets, openai=dict(openai or {}),
    )  # fmt: skip
    return store.submit(request, max_queued=settings.max_queued)


def resources_of(given: Mapping[str, Any], processes: int | None) -> Resources:
    """What a job takes: as asked, else one core for each process that its recipe names. Raises CommandError."""
    asked = {key: value for key, value in given.items() if value is not None}
    try:
        resources = Resources(**asked)
    except (TypeError, ValueError) as error:
        raise CommandError(f"resources: {error}") from None
    if processes is not None and "cpus" not in asked and "gpus" not in asked:
        resources = replace(resources, cpus=min(processes, MOST_PROCESSES))
    return resources


def _processes(data: Mapping[str, Any]) -> int | None:
    launch = data.get("launch")
    number = launch.get("num_processes") if isinstance(launch, Mapping) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None

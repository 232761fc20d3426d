"""From what a client sent to a job: the recipe checked, its references found, its resources settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pipelines.errors import CommandError, Mistake, RecipeError
from pipelines.marks import write_yaml
from service.jobs.job import Job, JobRequest, Kind
from service.jobs.resources import Resources
from service.lookups import LookedUp, look_up
from service.safety import secret_store
from service.safety.endpoints import unfit_keys
from service.safety.materialise import needs
from service.safety.network_recipes import FILE, MOST_DEPTH, CheckedRecipe, Known, check, read_network
from service.safety.secret_store import Secret
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

    @property
    def text(self) -> str:
        """The recipe as text. Raises RecipeError for data that is too deep to be written."""
        if isinstance(self.recipe, str):
            return self.recipe
        if _depth(self.recipe) > MOST_DEPTH:
            raise RecipeError([Mistake("", f"is nested more than {MOST_DEPTH} levels deep: not a recipe", FILE)])
        return write_yaml(self.recipe)


def _depth(value: Any) -> int:
    """How deep lists and mappings are nested, level by level: data from a client may be deeper than the stack."""
    level, depth = [value], 0
    while level:
        depth += 1
        inner = [each.values() if isinstance(each, Mapping) else each for each in level if isinstance(each, Mapping | list | tuple)]
        level = [entry for each in inner for entry in each] if depth <= MOST_DEPTH else []
    return depth


@dataclass(frozen=True)
class Fitting:
    """A wish that can be granted."""

    text: str
    checked: CheckedRecipe
    found: LookedUp
    resources: Resources


def fit(store: Store, settings: Settings, project: str, wish: Wish) -> Fitting:
    """Check a wish in its project. Raises RecipeError with every mistake, or CommandError."""
    text = wish.text
    found = look_up(store, settings, project, needs(text, wish.overrides))
    resources = resources_of(wish.resources, _processes(text, wish.overrides))
    most = max(resources.gpus, resources.cpus, 1) * resources.hosts
    # the dictionaries of a frozen value cannot be hashed: their items are the cache's key
    checked = _checked(text, wish.overrides, tuple(found.files.items()), tuple(found.checkpoints.items()), found.code, found.private_endpoints, most)
    if isinstance(checked, RecipeError):
        raise RecipeError(checked.mistakes)
    _refuse_secrets(settings, project, wish.secrets, checked)
    return Fitting(text, checked, found, resources)


def _refuse_secrets(settings: Settings, project: str, named: tuple[str, ...], checked: CheckedRecipe) -> None:
    """Outside the cache of checked recipes, because secrets come, go and change their hosts. Raises CommandError and RecipeError."""
    if wrong := next((name for name in named if not secret_store.is_name(name)), None):
        raise CommandError(f"secrets: {secret_store.unfit_name(wrong)}")
    source = checked.source

    def secret_of(name: str) -> Secret | None:
        return secret_store.given(settings, project, name)

    mistakes = list(unfit_keys(source.data, named, secret_of))
    for cell in checked.study.cells if checked.study is not None else ():
        mistakes += [(("matrix",), message) for _, message in unfit_keys(cell.draft.data, named, secret_of)]
    if mistakes:
        raise source.error(dict.fromkeys(mistakes))


def submit(
    store: Store, settings: Settings, project: str, token: str, wish: Wish, kind: Kind = "api", openai: Mapping[str, Any] | None = None
) -> tuple[Job, bool]:
    """Take the job. Returns it, and whether it is new. Raises as `fit` and as the store's `submit`."""
    fitting = fit(store, settings, project, wish)
    request = JobRequest(
        recipe=fitting.text, project=project, name=fitting.checked.recipe.name, overrides=wish.overrides, priority=wish.priority,
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


def _processes(text: str, overrides: Sequence[str]) -> int | None:
    launch = read_network(text, overrides).data.get("launch")
    number = launch.get("num_processes") if isinstance(launch, Mapping) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None


@lru_cache(maxsize=256)
def _checked(
    text: str, overrides: tuple[str, ...], files: tuple[Any, ...], checkpoints: tuple[Any, ...], code: frozenset[str], private: bool, processes: int
) -> CheckedRecipe | RecipeError:
    """The same recipe is often submitted again, and checking it takes longer than all the rest. What is wrong is kept too."""
    try:
        return check(text, overrides, Known(dict(files), dict(checkpoints), code, private), processes)
    except RecipeError as error:
        return error

"""`finery submit`: hand a recipe to a service, with the files that it names."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.errors import CommandError
from pipelines.recipe import Source, read
from service.cli.talking import connect, say, tell
from service.client.connection import ServerRefused
from service.client.uploads import with_uploads
from service.safety.references import MODEL_NAME


@dataclass(frozen=True)
class Wanted:
    """What the command asks for beside the recipe."""

    priority: int = 0
    gpus: int | None = None
    gpu_kind: str | None = None
    cpus: int | None = None
    after: tuple[str, ...] = ()
    """Jobs that must have succeeded before."""
    key: str | None = None
    secrets: tuple[str, ...] = ()
    """Names of secrets of the project that the job is given."""
    follow: bool = False
    max_seconds: float | None = None
    ttl_seconds_after_finished: float | None = None


def submit(recipe: Path, overrides: Sequence[str], wanted: Wanted, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Upload, submit, and watch if asked to. Returns the exit code."""
    source = read(recipe, overrides)
    with connect(server, token_file) as connection:
        given = [*overrides, *renamed(source), *with_uploads(connection, source.data, source.folder, say)]
        resources = {"gpus": wanted.gpus, "gpu_kind": wanted.gpu_kind, "cpus": wanted.cpus}
        body: dict[str, Any] = {
            "recipe": text_of(recipe), "overrides": given, "priority": wanted.priority, "depends_on": list(wanted.after),
            "secrets": list(wanted.secrets),
            "resources": {name: value for name, value in resources.items() if value is not None},
        }  # fmt: skip
        limits = {"max_seconds": wanted.max_seconds, "ttl_seconds_after_finished": wanted.ttl_seconds_after_finished}
        body |= {name: value for name, value in limits.items() if value is not None}
        # a key of its own makes it safe to ask again when the answer got lost
        try:
            job = connection.post("/jobs", body, key=wanted.key or uuid.uuid4().hex)
        except ServerRefused as error:
            raise (error.about(str(recipe)) if error.mistakes else error) from None
        if wanted.follow:
            from service.cli.logs import watch

            say(f"{job['id']}  {job['name']}")
            return watch(connection, job["id"], as_json)
    return tell(job, as_json, f"{job['id']}  {job['name']}  {job['state']}", f"finery logs -f {job['id']}   shows what it does")


def text_of(recipe: Path) -> str:
    """The recipe as it was written. Raises CommandError."""
    try:
        return recipe.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{recipe} cannot be read: {error}") from None


def renamed(source: Source) -> list[str]:
    """Overrides that make a folder to publish to, such as `registry/NAME`, the project's model NAME."""
    overrides = []
    stages = source.data.get("stages")
    for position, stage in enumerate(stages if isinstance(stages, list | tuple) else ()):
        to = stage.get("to") if isinstance(stage, dict) else None
        if not isinstance(to, str) or MODEL_NAME.fullmatch(to) or "://" in to or to.startswith("hub:"):
            continue
        name = Path(to).name
        if MODEL_NAME.fullmatch(name):
            say(f"note: on the server the model of '{to}' is called {name}")
            overrides.append(f"stages[{position}].to={name}")
    return overrides

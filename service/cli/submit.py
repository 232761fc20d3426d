"""`finery submit`: hand a recipe to a service, with the files that it names (`service.cli.recipe_files`).

Data is uploaded and named `file:ID`. A file goes up once: the server is asked by its SHA-256 first. A broken
upload continues where the server says it is.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core import task_files
from pipelines.core.config import ConfigIssue, Position, key_path
from pipelines.core.errors import CommandError, DataError
from pipelines.core.load import read
from pipelines.core.overrides import RecipeSource
from service.cli.jobs import connect, say, tell, watch
from service.cli.recipe_files import NamedFiles, joined, local_files, placed
from service.client import Connection, ServerRefused, Unreachable
from service.safety.references import MODEL_NAME, replaced

PIECE = 8 << 20
"""Bytes sent at once."""
TRIES = 5


@dataclass(frozen=True)
class SubmitOptions:
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


def submit(
    recipe: Path,
    overrides: Sequence[str],
    wanted: SubmitOptions,
    server: str | None,
    token_file: Path | None,
    as_json: bool,
) -> int:
    """Upload, submit, and watch if asked to. Returns the exit code."""
    source = read(recipe, overrides)
    with connect(server, token_file) as connection:
        given = [
            *overrides,
            *changed_places(connection, source, say),
        ]
        resources = {"gpus": wanted.gpus, "gpu_kind": wanted.gpu_kind, "cpus": wanted.cpus}
        body: dict[str, Any] = {
            "recipe": text_of(recipe),
            "overrides": given,
            "priority": wanted.priority,
            "depends_on": list(wanted.after),
            "secrets": list(wanted.secrets),
            "resources": {name: value for name, value in resources.items() if value is not None},
        }
        limits = {"max_seconds": wanted.max_seconds, "ttl_seconds_after_finished": wanted.ttl_seconds_after_finished}
        body |= {name: value for name, value in limits.items() if value is not None}
        # a key of its own makes it safe to ask again when the answer got lost
        try:
            job = connection.post("/jobs", body, key=wanted.key or uuid.uuid4().hex)
        except ServerRefused as error:
            raise (error.about(str(recipe)) if error.mistakes else error) from None
        if wanted.follow:
            say(f"{job['id']}  {job['name']}")
            return watch(connection, job["id"], as_json)
    return tell(
        job, as_json, f"{job['id']}  {job['name']}  {job['state']}", f"finery logs -f {job['id']}   shows what it does"
    )


def text_of(recipe: Path) -> str:
    """The recipe as it was written. Raises CommandError."""
    try:
        return recipe.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{recipe} cannot be read: {error}") from None


def changed_places(
    connection: Connection, source: RecipeSource, say: Callable[[str], None] = lambda sentence: None
) -> list[str]:
    """Overrides that put what the server can read in the place of what lies here, so that the text stays as it was
    written. The files are uploaded, or what they describe is put in their place.

    Raises RecipeError, CommandError, ServerRefused, Unreachable.
    """
    described = task_files.overrides(source.files, source.data)
    changes = {place: value for place, value in described if place[0] != "matrix"}
    changes |= {**renamed(source, say), **placed(source, say), **with_uploads(connection, source, say)}
    in_matrix = {place[1:]: value for place, value in changes.items() if place[0] == "matrix"}
    overrides = [f"{key_path(place)}={_json(value)}" for place, value in changes.items() if place[0] != "matrix"]
    if in_matrix or any(place[0] == "matrix" for place, _ in described):
        # as a whole, for its keys are paths themselves
        overrides.append(f"matrix={_json(replaced(source.data['matrix'], in_matrix))}")
    return overrides


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def renamed(source: RecipeSource, say: Callable[[str], None]) -> dict[Position, str]:
    """The project's model NAME in the place of a folder to publish to, such as `registry/NAME`."""
    changes: dict[Position, str] = {}
    stages = source.data.get("stages")
    for position, stage in enumerate(stages if isinstance(stages, list | tuple) else ()):
        to = stage.get("to") if isinstance(stage, dict) else None
        if not isinstance(to, str) or MODEL_NAME.fullmatch(to) or "://" in to or to.startswith("hub:"):
            continue
        name = Path(to).name
        if MODEL_NAME.fullmatch(name):
            say(f"note: on the server the model of '{to}' is called {name}")
            changes["stages", position, "to"] = name
    return changes


def with_uploads(
    connection: Connection, source: RecipeSource, say: Callable[[str], None] = lambda sentence: None
) -> dict[Position, Any]:
    """Upload the files that a recipe names: `file:ID` by their places, and what changes beside them.

    Raises RecipeError, CommandError, ServerRefused, Unreachable.
    """
    named = local_files(source)
    changes: dict[Position, Any] = {}
    with tempfile.TemporaryDirectory(prefix="finery-submit-") as scratch:
        whole = _one_file_each(named, source, Path(scratch), say)
        ids = {path: upload(connection, path, say) for path in dict.fromkeys(whole.values())}
        for each in named:
            changes |= {each.place: f"file:{ids[whole[each.files]]}", **each.changes}
    return changes


def _one_file_each(
    named: Sequence[NamedFiles], source: RecipeSource, scratch: Path, say: Callable[[str], None]
) -> dict[tuple[Path, ...], Path]:
    """The one file that goes up for each group of files; several are joined below `scratch`."""
    whole: dict[tuple[Path, ...], Path] = {each.files: each.files[0] for each in named if len(each.files) == 1}
    issues: list[ConfigIssue] = []
    for each in named:
        if each.files in whole:
            continue
        folder = scratch / str(len(whole))
        try:
            folder.mkdir()
            whole[each.files] = joined(each.files, folder)
        except (ValueError, DataError) as error:
            issues.append((each.place, f"'{each.text}' {error}"))
        except OSError as error:
            raise CommandError(f"the files of '{each.text}' cannot be joined: {error}") from None
        else:
            say(f"note: the {len(each.files)} files of '{each.text}' go up as one")
    if issues:
        raise source.error(issues)
    return whole


def upload(
    connection: Connection, path: Path, say: Callable[[str], None] = lambda sentence: None, purpose: str = "data"
) -> str:
    """The id of the file on the server; its bytes travel only when the server has not got them."""
    size, digest = _digest(path)
    made = connection.post("/files", {"filename": path.name, "purpose": purpose, "bytes": size, "sha256": digest})
    if made["state"] == "ready":
        return str(made["id"])
    say(f"uploading {path.name} ({size:,} bytes)")
    _send(connection, path, str(made["id"]), size)
    return str(connection.post(f"/files/{made['id']}/complete", {"sha256": digest})["id"])


def _send(connection: Connection, path: Path, identifier: str, size: int) -> None:
    offset, failures = 0, 0
    with open(path, "rb") as file:
        while offset < size:
            file.seek(offset)
            piece = file.read(PIECE)
            if not piece:
                raise CommandError(f"{path} became shorter while it was uploaded; submit again")
            try:
                connection.patch(
                    f"/files/{identifier}",
                    content=piece,
                    headers={"Upload-Offset": str(offset), "Content-Type": "application/octet-stream"},
                )
                offset, failures = offset + len(piece), 0
            except (Unreachable, ServerRefused) as error:
                failures += 1
                if failures == TRIES or (isinstance(error, ServerRefused) and error.status != 409):
                    raise
                offset = int(connection.get(f"/files/{identifier}")["offset"])


def _digest(path: Path) -> tuple[int, str]:
    """Bytes and SHA-256 of a file. Raises CommandError."""
    digest, size = hashlib.sha256(), 0
    try:
        for piece in _pieces(path):
            digest.update(piece)
            size += len(piece)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    if size == 0:
        raise CommandError(f"{path} is empty; there is nothing to upload")
    return size, digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            yield piece

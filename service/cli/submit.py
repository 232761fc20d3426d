"""`finery submit`: hand a recipe to a service, with the files that it names.

The files are uploaded and named `file:ID`. A file goes up once: the server is asked by its SHA-256 first. A broken
upload continues where the server says it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core import task_files
from pipelines.core.config import Position, key_path
from pipelines.core.errors import CommandError
from pipelines.core.load import read
from pipelines.core.overrides import RecipeSource
from service.cli.jobs import connect, say, tell, watch
from service.client import Connection, ServerRefused, Unreachable
from service.safety.references import MODEL_NAME, REFERENCE, TAKES, key_of, strings

PIECE = 8 << 20
"""Bytes sent at once."""
TRIES = 5
GLOB = frozenset("*?[")
MOST_FILES = 1000
"""Behind one folder or glob; more are better put into one file first."""


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
            *described_tasks(source),
            *renamed(source),
            *with_uploads(connection, source.data, source.folder, say),
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


def described_tasks(source: RecipeSource) -> list[str]:
    """Overrides that put what files of tasks describe in their place: the files themselves do not travel."""
    changed = task_files.overrides(source.files, source.data)
    return [f"{key_path(position)}={json.dumps(value, ensure_ascii=False)}" for position, value in changed]


def renamed(source: RecipeSource) -> list[str]:
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


@dataclass(frozen=True)
class NamedFiles:
    """Files that a recipe names at one place."""

    place: Position
    text: str
    """As the recipe has it."""
    files: tuple[Path, ...]


def local_files(data: Mapping[str, object], folder: Path) -> list[NamedFiles]:
    """The places of a recipe that name files below `folder` or by an absolute path. Raises CommandError."""
    named = []
    for place, text in strings(data):
        if key_of(place) not in TAKES["file"] or REFERENCE.fullmatch(text) or "\0" in text or "://" in text:
            continue
        files = _behind(text, folder)
        if len(files) > MOST_FILES:
            raise CommandError(
                f"{text} stands for {len(files):,} files, more than {MOST_FILES:,}; put them into one file before "
                "submitting"
            )
        if len(files) > 1 and not _in_list_of_data(place, data):
            raise CommandError(
                f"{text} stands for {len(files)} files; a submitted recipe names one file here, so put them into one "
                "first"
            )
        if files:
            named.append(NamedFiles(place, text, files))
    return named


def _behind(text: str, folder: Path) -> tuple[Path, ...]:
    path = Path(os.path.expanduser(text))
    path = path if path.is_absolute() else folder / path
    if path.is_file():
        return (path,)
    if path.is_dir():
        return tuple(
            sorted(each for each in path.rglob("*") if each.is_file() and not each.name.startswith((".", "_")))
        )
    if GLOB & set(text):
        base = Path(path.anchor) if path.is_absolute() else folder
        return tuple(sorted(each for each in base.glob(str(path.relative_to(base))) if each.is_file()))
    return ()


def _in_list_of_data(place: Position, data: object) -> bool:
    """Whether a place is the `path` of one entry of a list of data sets, which may become several entries."""
    return len(place) >= 3 and place[-1] == "path" and isinstance(place[-2], int) and place[-3] == "datasets"


def with_uploads(
    connection: Connection, data: Mapping[str, object], folder: Path, say: Callable[[str], None] = lambda sentence: None
) -> list[str]:
    """Upload the files that a recipe names; the overrides that put `file:ID` in their place, so that the text stays
    as it was written.

    Raises CommandError, ServerRefused, Unreachable.
    """
    named = local_files(data, folder)
    ids = {path: upload(connection, path, say) for path in dict.fromkeys(path for each in named for path in each.files)}
    overrides = [f"{key_path(each.place)}=file:{ids[each.files[0]]}" for each in named if len(each.files) == 1]
    several = [each for each in named if len(each.files) > 1]
    for place in dict.fromkeys(each.place[:-2] for each in several):
        entries = [
            entry
            for position, before in enumerate(_at(data, place))
            for entry in _spread(before, (*place, position), named, ids)
        ]
        overrides = [each for each in overrides if not each.startswith(f"{key_path(place)}[")]
        overrides.append(f"{key_path(place)}={json.dumps(entries, ensure_ascii=False)}")
    return overrides


def _spread(entry: Any, place: Position, named: Sequence[NamedFiles], ids: Mapping[Path, str]) -> list[Any]:
    """One entry of a list of data sets as one entry for each file that it names."""
    match = next((each for each in named if each.place == (*place, "path")), None)
    if match is None:
        return [entry]
    return [{**entry, "path": f"file:{ids[path]}"} for path in match.files]


def _at(data: Any, place: Position) -> Any:
    for part in place:
        data = data[part]
    return data


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

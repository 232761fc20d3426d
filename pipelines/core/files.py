"""Files: where they lie, how they are written whole or not at all, read as JSON, and locked between processes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pipelines.core.errors import Busy, DataError

T = TypeVar("T")

JSONObject = Mapping[str, Any]
"""Data as a JSON file holds it, to be read."""
RECORD = "stage.json"
"""In a complete stage: what it is, and the fingerprints of what it read."""
COMPLETE = "complete.json"
"""In a complete checkpoint, written last: one without it was broken off and does not count."""
UNFINISHED = ".part"
"""How the names of files end that are being written; one that lies there was left by a kill."""


def home() -> Path:
    """`FINERY_HOME`, else the user's cache folder."""
    given = os.environ.get("FINERY_HOME")
    if given:
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "finery"


def configs_folder() -> Path:
    """The folder with `architectures/`, `recipes/`, `smoke/`, `tasks/` and `launch/`: in the wheel, or in a checkout.

    Raises FileNotFoundError.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the folder configs/ is neither in {package} nor beside it: install Finery again")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; leaving the block without an error syncs it and turns it into `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:  # a full disk, a signal: nothing half-written stays
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Write a text file whole or not at all. `errors` is what becomes of half a surrogate pair, which has no UTF-8."""
    write_bytes(path, text.encode("utf-8", errors))


def finite(value: object) -> Any:
    """JSON has no NaN or infinity: they become strings, `"nan"` and `"inf"`, so that what is written stays valid."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


NOT_FINITE = ("nan", "inf", "-inf")
"""What `finite` writes in place of floats that JSON has no word for."""


def restored(value: Any) -> Any:
    """What `finite` was given, of data whose texts are no such words."""
    if isinstance(value, str) and value in NOT_FINITE:
        return float(value)
    if isinstance(value, dict):
        return {key: restored(entry) for key, entry in value.items()}
    return [restored(entry) for entry in value] if isinstance(value, list) else value


def write_json(path: Path, data: object) -> None:
    """`data` as indented JSON that every reader takes (`finite`), whole or not at all."""
    write_text(path, json.dumps(finite(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def archive_name(model: str) -> str:
    """The folder in the download of a model of a server: its name, in letters that every file system takes."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in model)


def lines_of(text: str) -> list[str]:
    """The lines of a file of rows, which end with LF or CRLF alone. `str.splitlines` would split a row at U+2028,
    U+0085 and other characters that its texts may hold."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; empty where there is no such file, or no mapping in it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, remembered in this process while its size and time of change stay the same."""
    about = path.stat()
    return _sha256(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=4096)
def _sha256(path: Path, size: int, changed: int) -> str:
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def remove_unfinished(folder: Path) -> list[Path]:
    """Delete the checkpoints of a folder that were broken off; returns them."""
    broken = [path for path in folder.glob("checkpoint-*") if not (path / COMPLETE).is_file()]
    for path in broken:
        shutil.rmtree(path)
    return broken


@contextmanager
def lock(path: Path, wait: bool = True, remove: bool = False) -> Iterator[bool]:
    """Hold an exclusive lock on a file. Yields whether another process had it first. Raises Busy unless `wait`.

    The system drops the lock with the process. With `remove` the file goes at the end; one that waited for it and one
    that comes later may then both go on, so what they do must come right even so.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        waited = False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise Busy(
                    f"{path.parent} is in use by another process; wait for it, or give this run another name"
                ) from None
            waited = True
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield waited
        finally:
            if remove:
                path.unlink(missing_ok=True)


def made_once(path: Path, load: Callable[[], T | None], make: Callable[[], object]) -> T:
    """What `load` reads from `path`, which `make` writes where `load` has None: of several processes one writes, and
    the others wait for it. Raises DataError where `load` has None of what was written."""
    if (found := load()) is None:
        with lock(path.with_suffix(".lock"), remove=True):
            if (found := load()) is None:
                make()
                found = load()
    if found is None:
        raise DataError(f"{path} was removed or damaged while it was prepared; run again")
    return found


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock of a file."""
    try:
        with lock(path, wait=False):
            return False
    except Busy:
        return True

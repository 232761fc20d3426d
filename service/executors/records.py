"""What executors keep in an attempt's folder: JSON records, the fence between attempts, and what it printed.

Records are written whole or not at all. `console/OFFSET.log`: each file is named by the offset of its first byte in the
whole stream, so a reader that knows how far it has read finds its place again after any number of rotations.

The launcher imports this: the standard library only, and of that what loads at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import time

TYPE_CHECKING = False
"""As typing's, which takes longer to import than all the rest."""
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

SECRETS = "secrets"
"""The folder of an attempt's secrets, in the attempt's own."""


def write_record(folder: str, name: str, content: object) -> None:
    """Write JSON atomically and durably."""
    write_file(folder, name, json.dumps(content).encode())


def write_file(folder: str, name: str, content: bytes) -> None:
    """Write a file atomically and durably: temporary name, fsync, rename, fsync of the folder."""
    temporary = os.path.join(folder, f".{name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, os.path.join(folder, name))
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def delete_folder(folder: str | os.PathLike[str]) -> None:
    """Delete a folder that an attempt wrote into, as far as it can be; `rm` where folders lie too deep in each other
    for Python, which goes down by calling itself."""
    import shutil
    import subprocess

    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", os.fspath(folder)], stderr=subprocess.DEVNULL, check=False)


def secret_variables(folder: str | os.PathLike[str], secrets: Mapping[str, str]) -> dict[str, str]:
    """What an attempt's environment says of its secrets: where their files lie, never their names or values."""
    place = os.path.join(os.path.abspath(folder), SECRETS)
    return {
        "FINERY_SECRETS": place,
        **({"HF_TOKEN_PATH": os.path.join(place, "HF_TOKEN")} if "HF_TOKEN" in secrets else {}),
    }


def write_secrets(folder: str | os.PathLike[str], secrets: Mapping[str, str]) -> None:
    """Write the secrets of an attempt into its folder, for its user only; the folder is there without any too.

    To be called before the attempt is shown that folder. Whoever proves that the attempt has ended deletes it.
    """
    delete_secrets(folder)
    place = os.path.join(folder, SECRETS)
    os.mkdir(place, 0o700)
    os.chmod(place, 0o700)
    for name, value in secrets.items():
        descriptor = os.open(os.path.join(place, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(value)


def delete_secrets(folder: str | os.PathLike[str], parts: bool = False) -> bool:
    """Delete the secrets of an attempt that has ended, with `parts` those of its other hosts too; whether nothing is
    left.

    Follows no link and raises nothing: whatever an attempt made of that folder, its end is taken in.
    """
    place = os.path.join(folder, SECRETS)
    try:
        if os.path.islink(place):
            os.unlink(place)
        elif os.path.isdir(place):
            os.chmod(place, 0o700)
            opened = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                for name in os.listdir(opened):
                    os.unlink(name, dir_fd=opened)
            finally:
                os.close(opened)
            os.rmdir(place)
        others = [name for name in os.listdir(folder) if name.startswith("host-")] if parts else []
    except FileNotFoundError:
        return True
    except OSError:
        return False
    left = [name for name in others if not delete_secrets(os.path.join(folder, name))]
    return not left


def read_record(folder: str | os.PathLike[str], name: str) -> dict[str, Any] | None:
    """A record, or None while there is none."""
    try:
        with open(os.path.join(folder, name), "rb") as file:
            content: dict[str, Any] = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return content


class FenceRefused(Exception):
    """The attempt may not start; says why in one sentence."""


def take_fence(folder: str, token: int) -> int:
    """Lock the job's folder for this attempt and note its token. Returns the descriptor; raises FenceRefused."""
    descriptor = os.open(os.path.join(folder, ".attempt.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + 2.0  # an attempt that has just written its last record may still be leaving
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > end:
                raise FenceRefused(f"another attempt of this job still runs in {folder}") from None
            time.sleep(0.01)
    fence = os.path.join(folder, ".fence")
    try:
        with open(fence) as file:
            latest = int(file.read() or 0)
    except FileNotFoundError:
        latest = 0
    if latest > token:
        raise FenceRefused(f"fencing token {token} is stale: an attempt with token {latest} was started in {folder}")
    if latest == token and token:
        raise FenceRefused(f"the attempt with fencing token {token} was already started in {folder}")
    write_record(folder, ".fence", token)
    return descriptor


_CHUNK = 1 << 16


class Console:
    """Keeps what the attempt prints in files of bounded size. A full disk loses text, never the attempt."""

    def __init__(self, folder: str, size: int, files: int) -> None:
        self.folder, self.size, self.files = folder, size, files
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.offset = self.length = 0
        self.file = self._open()

    def write(self, content: bytes) -> None:
        """Append, turning to a new file whenever one is full."""
        while content:
            if self.length >= self.size:
                os.close(self.file)
                self.file, self.length = self._open(), 0
                for old in sorted(os.listdir(self.folder))[: -self.files]:
                    os.unlink(os.path.join(self.folder, old))
            piece, content = content[: self.size - self.length], content[self.size - self.length :]
            self.offset += len(piece)
            self.length += len(piece)
            try:
                os.write(self.file, piece)
            except OSError:
                continue

    def close(self) -> None:
        """Close the file that is written to."""
        os.close(self.file)

    def _open(self) -> int:
        path = os.path.join(self.folder, f"{self.offset:015d}.log")
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def read_console(record: Path, after: int = 0) -> Iterator[bytes]:
    """The stream from byte `after` on, as far as rotation kept it. `record` is the attempt's folder."""
    for path in sorted((record / "console").glob("*.log")):
        start = int(path.stem)
        try:
            with open(path, "rb") as file:
                file.seek(max(0, after - start))
                while chunk := file.read(_CHUNK):
                    yield chunk
        except FileNotFoundError:  # rotated away while this was reading
            continue


def tail(record: Path, size: int = 16_384) -> str:
    """The last bytes of the stream as text."""
    files = sorted((record / "console").glob("*.log"))
    text = b""
    for path in reversed(files):
        try:
            with open(path, "rb") as file:
                length = file.seek(0, 2)
                file.seek(max(0, length - (size - len(text))))
                text = file.read() + text
        except FileNotFoundError:
            continue
        if len(text) >= size:
            break
    return text.decode(errors="replace")

"""Where an attempt's files lie, below `HOME/jobs/<job>`, and how the service reads what an attempt left there.

```text
recipe.yaml            what runs: the job's recipe with its references resolved
inputs/                links to the uploaded files that it names, under the names that they were uploaded with
runs/<name>/           the run folder, shared by all attempts of the job
published/<model>/     what its publish stages made
cache/                 the attempts' own FINERY_HOME: unfinished stages, and links to those that the server took over
attempts/<attempt>/    the executor's notes and the console log, one folder an attempt
```

An attempt writes `runs`, `published` and `cache`, and may leave anything there: links that lead out, pipes, devices.
Nothing of that is opened by its path: `open_regular` and `plain_files` go down from the job's folder one name at a
time, and take plain files alone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO

from service.jobs.job import Attempt, Job

RECIPE = "recipe.yaml"
INPUTS = "inputs"
REFERENCES = "references.json"
"""In `inputs`: what the paths of the recipe stand for, `{path: "model:NAME@3"}`; of an upload `data/NAME`."""
PUBLISHED = "published"
CACHE = "cache"
MOST_FILES = 20_000
"""Files and folders of one publication or stage."""
MOST_DEPTH = 12
LONGEST_PATH = 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Folders:
    """The places of one job."""

    job: Path
    name: str
    """The recipe's name, which its run folder bears."""

    @property
    def recipe(self) -> Path:
        """The recipe that runs."""
        return self.job / RECIPE

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.job / "runs" / self.name

    @property
    def events(self) -> Path:
        """The stream that the run writes."""
        return self.run / "events.jsonl"

    @property
    def cache(self) -> Path:
        """The attempts' own FINERY_HOME."""
        return self.job / CACHE

    @property
    def begun(self) -> bool:
        """Whether an earlier attempt came far enough to leave a run folder to continue."""
        return (self.run / RECIPE).is_file()

    def record(self, attempt_id: str) -> Path:
        """The executor's folder for an attempt."""
        return self.job / "attempts" / attempt_id


def folders_of(jobs: Path, job: Job) -> Folders:
    """The places of a job below the settings' `jobs` folder."""
    return Folders(jobs / job.id, job.name)


def record_of(jobs: Path, attempt: Attempt) -> dict[str, object]:
    """What is known of an attempt whose handle was never stored: enough to look for it."""
    folder = jobs / attempt.job
    return {
        "attempt_id": attempt.id,
        "fencing_token": attempt.fencing,
        "folder": str(folder),
        "record": str(folder / "attempts" / attempt.id),
    }


class Unfit(OSError):
    """Something that an attempt left and that is not taken: a link, a pipe, too many files; the message says what."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.EINVAL, message)
        self.message = message

    def __str__(self) -> str:
        return self.message


def open_folder(folder: Path, below: Path) -> int:
    """A descriptor of `folder`, reached from `below` without following a link. Raises OSError."""
    at = os.open(below, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in _parts(folder, below):
        try:
            inner = os.open(name, _FOLDER, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    return at


def open_regular(path: Path, below: Path) -> BinaryIO:
    """A plain file for reading, reached from the folder `below` without following a link, and without waiting for a
    pipe.

    Raises FileNotFoundError where nothing is, Unfit for anything but a plain file, OSError.
    """
    parent = open_folder(path.parent, below)
    try:
        return _opened(path.name, parent)
    finally:
        os.close(parent)


def read_regular(path: Path, below: Path, most: int) -> bytes:
    """The content of a plain file of at most so many bytes. Raises OSError, Unfit when it is longer."""
    with open_regular(path, below) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise Unfit(f"'{path.name}' is longer than {most} bytes")
    return content


def plain_files(folder: Path, below: Path, alone: bool = True) -> Iterator[tuple[str, BinaryIO]]:
    """(path relative to `folder`, the open file) of everything in it, names in order.

    Raises Unfit for a link, a pipe, a device, too many files or too deep a folder, and when `alone` for a file that
    has another name somewhere.
    """
    at = open_folder(folder, below)
    try:
        yield from _files(at, "", [0], alone)
    finally:
        os.close(at)


def _files(at: int, place: str, count: list[int], alone: bool) -> Iterator[tuple[str, BinaryIO]]:
    if place.count("/") > MOST_DEPTH:
        raise Unfit(f"folders lie more than {MOST_DEPTH} deep in each other")
    names = []
    with os.scandir(at) as entries:
        for entry in entries:
            count[0] += 1
            if count[0] > MOST_FILES:
                raise Unfit(f"there are more than {MOST_FILES} files")
            names.append(entry.name)
    for name in sorted(names):
        path = f"{place}{name}"
        if len(path) > LONGEST_PATH or not name.isprintable() or "\\" in name:
            raise Unfit("a file's name is too long, or has letters that cannot be shown")
        status = os.stat(name, dir_fd=at, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            inner = os.open(name, _FOLDER, dir_fd=at)
            try:
                yield from _files(inner, f"{path}/", count, alone)
            finally:
                os.close(inner)
            continue
        with _opened(name, at) as file:
            if alone and os.fstat(file.fileno()).st_nlink != 1:
                raise Unfit(f"'{path}' has another name somewhere else")
            yield path, file


def _opened(name: str, at: int) -> BinaryIO:
    try:
        descriptor = os.open(name, _FILE, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):  # a link; a socket or a device
            raise Unfit(f"'{name}' is no plain file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Unfit(f"'{name}' is no plain file")
    return os.fdopen(descriptor, "rb")


def _parts(folder: Path, below: Path) -> tuple[str, ...]:
    parts = PurePath(folder).relative_to(below).parts
    if ".." in parts:
        raise Unfit(f"'{folder}' is not below '{below}'")
    return parts


def led_to(link: Path, *roots: Path) -> Path | None:
    """The folder that a link of an attempt leads to, when it lies below one of `roots`; else None."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):  # nothing there, or links in a circle
        return None
    return target if any(target.is_relative_to(root.resolve()) for root in roots) else None

"""The finished stages of a project: the server takes them over from its jobs, hashes them, and alone writes there.

Each job has a FINERY_HOME of its own, `HOME/jobs/<job>/cache`, where its attempts make stages and leave what is
unfinished. After an attempt is proven dead, `take_over` moves every complete stage of that home into the project's
store, `HOME/cache/<project>/stages`, which attempts of that project read and never write; a link in the job's own
home leads there. What an attempt left is not believed: plain files alone, a record whose fingerprint is the hash of
what it says, a stage of the job's recipe; and a fingerprint that the store has is never replaced. A server that is
killed anywhere does it again:

    jobs/<job>/cache/stages/<fingerprint>        where the attempt finished it
    cache/<project>/incoming/<job>/<fingerprint> out of every attempt's reach: looked through, hashed, made read-only
    cache/<project>/stages/<fingerprint>         one rename later: read by the project's jobs

`server.json` in a stage is the server's record: the job that made it, and size and SHA-256 of every file. Whoever
reuses the stage holds the files against it (pipelines/runs/workspace.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pipelines.core.errors import RecipeError
from service.attempts.environment import shared_stages, stage_cache
from service.attempts.folders import Unfit, folders_of, led_to, open_folder, plain_files, read_regular
from service.executors.records import delete_folder, write_file
from service.jobs.job import Job
from service.safety.network_recipes import read_network
from service.settings import Settings

FINGERPRINT = re.compile(r"[0-9a-f]{32}")
RECORD, HASHES = "stage.json", "server.json"
"""What a run writes into a complete stage, and what the server does (pipelines/runs/workspace.py)."""
MOST_STAGES = 1000
"""Stages that one attempt leaves."""
LARGEST_RECORD = 4 << 20
CHUNK = 1 << 20
TOKENIZER = "tokenizer"
MOST_LINKS = 200_000
"""Links of runs that are looked at, before nothing more is freed."""
DOOMED = ".doomed"

log = logging.getLogger(__name__)


def take_over(settings: Settings, job: Job) -> list[str]:
    """Move the finished stages of a job, none of whose attempts lives, into its project's store; returns their
    fingerprints.

    What does not fit stays where it is, for the job alone, and holds nothing up. Again, nothing happens.
    """
    try:
        return _take_over(settings, job)
    except Exception:
        log.exception("job %s: its finished stages could not be taken over", job.id)
        return []


def _take_over(settings: Settings, job: Job) -> list[str]:
    folders = folders_of(settings.jobs, job)
    store = shared_stages(settings, job.project)
    incoming = store.parent / "incoming" / job.id
    allowed = stage_ids(job)
    taken = []
    try:
        own = open_folder(folders.cache / "stages", folders.job)
    except OSError:  # nothing was made, or something else lies there
        return []
    try:
        # by a server that was killed
        left = sorted(path.name for path in incoming.iterdir()) if incoming.is_dir() else []
        for fingerprint in dict.fromkeys([*left, *_finished(own)]):
            stored = (store / fingerprint).exists()
            if stored and fingerprint not in left:
                continue
            try:
                if stored:  # another job's came while it lay there
                    _lead_to(own, fingerprint, store)
                    delete_folder(incoming / fingerprint)
                    continue
                if fingerprint not in left:
                    _set_aside(own, fingerprint, incoming)
                _take(own, fingerprint, incoming, store, job, allowed)
                taken.append(fingerprint)
            except Unfit as error:
                log.warning("job %s: the stage %s stays its own: %s", job.id, fingerprint, error)
                _give_back(own, fingerprint, incoming)
            except OSError as error:
                log.warning("job %s: the stage %s could not be taken over: %s", job.id, fingerprint, error)
        with contextlib.suppress(OSError):
            incoming.rmdir()
    finally:
        os.close(own)
    return taken


def stage_ids(job: Job) -> frozenset[str] | None:
    """The stages that a job's recipe has, the tokenizer's among them; none when it cannot be read any more; None for
    a study's, whose cells have their own."""
    try:
        data = read_network(job.request.recipe, job.request.overrides).data
    except RecipeError:
        return frozenset()
    if "matrix" in data:
        return None
    stages = data.get("stages")
    ids = {TOKENIZER}
    for stage in stages if isinstance(stages, tuple | list) else ():
        if isinstance(stage, dict):
            ids |= {str(stage[key]) for key in ("id", "stage") if key in stage}
    return frozenset(ids)


def model_in(settings: Settings, job: Job, stage: Path) -> Path | None:
    """The model that a stage of a run folder left, where it is one that may be read: the job's own, or its
    project's store's."""
    folders = folders_of(settings.jobs, job)
    store = shared_stages(settings, job.project)
    folder = led_to(stage, folders.cache / "stages", folders.job / "runs", store)
    if folder is None:
        return None
    if folder.is_relative_to(store.resolve()):
        return (
            folder / "model"
            if (folder / "model" / "config.json").is_file() or (folder / "model" / "adapter_config.json").is_file()
            else None
        )
    try:  # not taken over: it may hold links
        names = {name for name, _ in plain_files(folder, folder.parent, alone=False)}
    except OSError:
        return None
    return folder / "model" if names & {"model/config.json", "model/adapter_config.json"} else None


def _finished(own: int) -> Iterator[str]:
    """Folders that are named like finished stages."""
    with os.scandir(own) as entries:
        for entry in islice(entries, 4 * MOST_STAGES):
            if FINGERPRINT.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield entry.name


def _set_aside(own: int, fingerprint: str, incoming: Path) -> None:
    """Out of the reach of whoever writes the job's folder."""
    incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        os.rename(fingerprint, incoming / fingerprint, src_dir_fd=own)
    except OSError as error:
        if error.errno != 18:  # another file system
            raise
        place = Path(f"/proc/self/fd/{own}")
        torn = incoming / f".{fingerprint}.copy"
        shutil.rmtree(torn, ignore_errors=True)
        for name, source in plain_files(place / fingerprint, place):
            target = torn / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as file:
                shutil.copyfileobj(source, file, CHUNK)
        os.rename(torn, incoming / fingerprint)
        shutil.rmtree(fingerprint, dir_fd=own)


def _take(own: int, fingerprint: str, incoming: Path, store: Path, job: Job, allowed: frozenset[str] | None) -> None:
    """Look through what was set aside, record it, and give it its name. Raises Unfit, OSError."""
    folder = incoming / fingerprint
    if FINGERPRINT.fullmatch(fingerprint) is None or not folder.is_dir() or folder.is_symlink():
        raise Unfit("it is no folder of a stage")
    os.chmod(folder, 0o755)
    for name in (HASHES, f".{HASHES}.tmp"):  # of a server that was killed, or planted
        (folder / name).unlink(missing_ok=True)
    _refuse_foreign(_record(folder), fingerprint, allowed)
    files: dict[str, list[Any]] = {}
    for name, file in plain_files(folder, incoming):
        hashed, size = hashlib.sha256(), 0
        while chunk := file.read(CHUNK):
            hashed.update(chunk)
            size += len(chunk)
        files[name] = [size, hashed.hexdigest()]
        os.fchmod(file.fileno(), 0o444)
    record = {"fingerprint": fingerprint, "job": job.id, "taken": time.time(), "files": files}
    write_file(str(folder), HASHES, json.dumps(record, indent=2).encode())
    os.chmod(folder / HASHES, 0o444)
    store.mkdir(parents=True, exist_ok=True, mode=0o755)
    _lead_to(own, fingerprint, store)
    try:
        os.rename(folder, store / fingerprint)
    except OSError:  # another server of this home was faster: the first one stays
        if (store / fingerprint).is_dir():
            os.unlink(fingerprint, dir_fd=own)
            raise Unfit("the project has it from another job") from None
        raise
    for place, _, _ in os.walk(store / fingerprint, topdown=False):
        os.chmod(place, 0o555)


def _lead_to(own: int, fingerprint: str, store: Path) -> None:
    """A link in the job's own home to the stored stage, unless something lies there."""
    if not os.path.lexists(f"/proc/self/fd/{own}/{fingerprint}"):
        os.symlink(store / fingerprint, fingerprint, dir_fd=own)


def _record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads(read_regular(folder / RECORD, folder, LARGEST_RECORD))
    except (FileNotFoundError, ValueError, RecursionError):
        raise Unfit(f"it has no {RECORD} that can be read") from None
    if not isinstance(record, dict):
        raise Unfit(f"its {RECORD} is no object")
    return record


def _refuse_foreign(record: dict[str, object], fingerprint: str, allowed: frozenset[str] | None) -> None:
    """Raise Unfit unless the fingerprint is the hash of what the record says, and the stage one of the recipe's."""
    parts = [record.get(key) for key in ("identity", "inputs", "data", "versions", "code")]
    try:
        own = digest(parts)
    except (TypeError, ValueError, RecursionError):
        own = ""
    if record.get("fingerprint") != fingerprint or own != fingerprint:
        raise Unfit("its fingerprint is not that of what it says it is")
    if not isinstance(record.get("id"), str) or (allowed is not None and record["id"] not in allowed):
        raise Unfit("it is no stage of the job's recipe")


def digest(parts: list[object]) -> str:
    """The fingerprint of a stage, from what it is, what it reads, its data, the versions and its code
    (pipelines/runs/fingerprints.py)."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _give_back(own: int, fingerprint: str, incoming: Path) -> None:
    """What is not taken over stays with the job."""
    with contextlib.suppress(OSError):
        os.rename(incoming / fingerprint, fingerprint, dst_dir_fd=own)


def free_stages(settings: Settings, clock: Callable[[], float] = time.time, at_once: Collection[str] = ()) -> int:
    """Delete the stages of every project that no job's folder leads to and that are older than the settings allow,
    those of the projects in `at_once` however old they are; returns how many.

    A stage first loses its name, so that no attempt begins to use it; one that an attempt linked to at that moment
    gets it back.
    """
    oldest = clock() - settings.stage_seconds
    doomed = []
    used = _used(settings)
    if used is None:
        return 0
    for folder in sorted(stage_cache(settings).glob("*/stages/*")):
        name = folder.name.removesuffix(DOOMED)
        if FINGERPRINT.fullmatch(name) is None or folder.is_symlink():
            continue
        if folder.name.endswith(DOOMED):  # by a server that was killed
            doomed.append(folder)
        elif name not in used and (folder.parts[-3] in at_once or _taken_at(folder) < oldest):
            os.rename(folder, gone := folder.with_name(f"{name}{DOOMED}"))
            doomed.append(gone)
    used = _used(settings) if doomed else set()
    freed = 0
    for folder in doomed:
        name = folder.name.removesuffix(DOOMED)
        if (used is None or name in used) and not folder.with_name(name).exists():
            os.rename(folder, folder.with_name(name))
            continue
        for place, _, _ in os.walk(folder):
            os.chmod(place, 0o755)
        shutil.rmtree(folder, ignore_errors=True)
        freed += 1
    if freed:
        log.info("%d finished stages that no job uses are deleted", freed)
    return freed


def _taken_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return float("inf")


def _used(settings: Settings) -> set[str] | None:
    """Fingerprints that some job's folder leads to; None when there are too many links to tell. No link is followed."""
    fingerprints: set[str] = set()
    patterns = (
        "cache/stages/*",
        "runs/*/stages/*",
        "runs/*/tokenizer",
        "runs/*/history/*",
        "runs/*/cells/*/stages/*",
        "runs/*/cells/*/tokenizer",
    )
    for job in sorted(settings.jobs.glob("*")) if settings.jobs.is_dir() else ():
        for path in islice((path for pattern in patterns for path in job.glob(pattern)), MOST_LINKS + 1):
            with contextlib.suppress(OSError):
                fingerprints.add(Path(os.readlink(path)).name)
            if len(fingerprints) > MOST_LINKS:
                return None
    return fingerprints


__all__ = ["free_stages", "model_in", "stage_ids", "take_over"]

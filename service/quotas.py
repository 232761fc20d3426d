"""Measures what each project keeps on the disk, and makes room where a project keeps more than it may.

`du` counts: blocks that are taken, hard links once, links not followed, however deep an attempt nests its folders. One
server of a database measures, the one that holds the lease `disk`. Folders of jobs that run are measured in every
round, those of others once after their last change, published models once.

A project that is full takes no more files, jobs and evals (`service.store.disk_usage.refuse_full`), starts no attempt,
and a running job of it ends whose folder grows (`service.attempts.watching`). What can be made again goes first:
finished stages that no job's folder leads to, however young, and the downloads of a project none of whose jobs runs.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from service.attempts.environment import hub_folder, shared_stages
from service.attempts.stage_store import free_stages
from service.executors.records import delete_folder
from service.settings import Settings
from service.store.disk_usage import Kind
from service.store.errors import Unavailable
from service.store.store import Store

ROUND_SECONDS = 10.0
LEASE_SECONDS = 60.0
SHARED_SECONDS = 600.0
"""How often stages and downloads are measured of a project whose jobs do not change."""
FREE_SECONDS = 60.0
"""How often room is made in a project that is full."""
AT_ONCE = 200
"""Folders that one `du` measures."""
MOST = 1000
"""Folders that one round measures; the rest follows in the next."""
DU_SECONDS = 300.0

log = logging.getLogger(__name__)


def sizes(folders: Sequence[Path]) -> dict[Path, int]:
    """Bytes of each folder with all that lies in it, on its own file system; 0 for one that is not there.

    Raises OSError when `du` cannot be run or does not end.
    """
    found: dict[Path, int] = {}
    for begin in range(0, len(folders), AT_ONCE):
        part = [path for path in folders[begin : begin + AT_ONCE] if path.is_dir()]
        if not part:
            continue
        try:  # it says what vanished while it looked, and counts the rest
            ended = subprocess.run(
                ["du", "-skx", "--", *part],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                timeout=DU_SECONDS,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"`du` did not end in {DU_SECONDS:.0f} s") from None
        for line in os.fsdecode(ended.stdout).splitlines():
            kilobytes, _, path = line.partition("\t")
            if kilobytes.isdecimal():
                found[Path(path)] = int(kilobytes) * 1024
    return {path: found.get(path, 0) for path in folders}


class DiskMeter:
    """Rounds of measuring, in a thread of its own."""

    def __init__(self, store: Store, settings: Settings, holder: str) -> None:
        self._store = store
        self._settings = settings
        self._holder = holder
        self._freeing: dict[str, float] = {}
        """Project -> when room was last made in it: looking for what no job uses reads every job's folder."""
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="disk", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def stop(self) -> None:
        """End after the round that is under way."""
        self._stop.set()
        if self.thread.is_alive():
            self.thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._store.acquire("disk", self._holder, LEASE_SECONDS) is not None:
                    self.measure()
            except Unavailable as error:
                log.warning("the disk is not measured: %s", error)
            except Exception:
                log.exception("measuring the disk failed; trying again")
            self._stop.wait(ROUND_SECONDS)

    def measure(self) -> None:
        """One round. Raises OSError, Unavailable."""
        moment = time.time()
        places: dict[tuple[str, Kind, str], Path] = {}
        for project, job in self._store.unmeasured_jobs(MOST):
            places[project, "jobs", job] = self._settings.jobs / job
        for project, model, path in self._store.unmeasured_models(MOST):
            places[project, "models", model] = Path(path)
        changed = {project for project, _, _ in places}
        before = self._store.measured_at("stages")
        for name in [project.name for project in self._store.projects()]:
            if name in changed or moment - before.get(name, 0.0) > SHARED_SECONDS:
                places |= self._shared(name)
        self._keep(places, moment)
        usages = self._store.disk_usages()
        full = [each.project for each in usages if each.full and self._may_free(each.project, moment)]
        if full and self._freed(full):
            self._keep({key: path for name in full for key, path in self._shared(name).items()}, time.time())

    def _shared(self, project: str) -> dict[tuple[str, Kind, str], Path]:
        return {
            (project, "stages", ""): shared_stages(self._settings, project).parent,
            (project, "downloads", ""): hub_folder(self._settings, project),
        }

    def _keep(self, places: dict[tuple[str, Kind, str], Path], moment: float) -> None:
        measured = sizes(list(dict.fromkeys(places.values())))
        self._store.set_disk_usage({key: measured[path] for key, path in places.items()}, moment)

    def _may_free(self, project: str, moment: float) -> bool:
        if moment - self._freeing.get(project, 0.0) < FREE_SECONDS:
            return False
        self._freeing[project] = moment
        return True

    def _freed(self, full: Sequence[str]) -> bool:
        """Delete what these projects can do without; whether there was something."""
        freed = free_stages(self._settings, at_once=full) > 0
        for project in self._store.idle_projects(full):  # none begins: a full project starts no attempt
            folder = hub_folder(self._settings, project)
            doomed = folder.with_name(f".{project}.doomed")
            if folder.is_dir() and not doomed.exists():
                folder.rename(doomed)
            if doomed.exists():
                delete_folder(doomed)
                log.info("downloads of project %s are deleted: it keeps as much on the disk as it may", project)
                freed = True
        return freed

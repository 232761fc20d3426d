"""Where results lie: a run folder for the user, and the stages that runs share.

`FINERY_HOME/stages/<fingerprint>` holds a complete stage; while it is being made it is `<fingerprint>.partial`, kept
over a kill so that its checkpoints serve the next attempt, and renamed when the stage is whole: a stage is complete or
invisible. `runs/<name>/stages/NN-id` are links to them. File locks, which the system drops with the process, keep two
writers apart.

`FINERY_SHARED_STAGES` may name a store that this process only reads, of stages that a server took over from other jobs:
`<fingerprint>/` with the server's record of every file's hash, which is held against the files before they are used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.errors import Busy
from pipelines.core.events import EventLog
from pipelines.core.files import RECORD, UNFINISHED, home, lock, write_json, write_text

HASHES = "server.json"
"""In a stage that a server took over: size and SHA-256 of every file."""
SHARED = "FINERY_SHARED_STAGES"
"""The variable that names a store to read from."""


class StageStore:
    """The stages that runs share, named by fingerprint."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or home()
        self.stages = self.root / "stages"
        self.data = self.root / "data"
        shared = os.environ.get(SHARED)
        self.shared = Path(shared).absolute() if shared else None
        self._held: dict[str, bool] = {}

    def complete(self, fingerprint: str) -> Path | None:
        """The folder of a complete stage, of its own or a shared one. One that lost something since it was
        finished is not complete."""
        folder = self.stages / fingerprint
        if (folder / RECORD).is_file() and not self._leads_to_shared(folder):
            return folder if self.damage(fingerprint) is None else None
        folder = self.shared / fingerprint if self.shared is not None else folder
        if not (folder / RECORD).is_file():
            return None
        if fingerprint not in self._held:
            self._held[fingerprint] = holds(folder)
        return folder if self._held[fingerprint] else None

    def _leads_to_shared(self, folder: Path) -> bool:
        """Whether a server took this stage over, and left a link to it."""
        return (
            self.shared is not None
            and folder.is_symlink()
            and folder.resolve() == (self.shared / folder.name).resolve()
        )

    def damage(self, fingerprint: str) -> str | None:
        """The first file of a finished stage that is gone, or no longer as long as it was; None when all is well."""
        folder = self.stages / fingerprint
        try:
            sizes = json.loads((folder / RECORD).read_text()).get("files", {})
        except FileNotFoundError:
            return None
        except (ValueError, AttributeError):
            return RECORD
        for name, size in sizes.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != size:
                return str(name)
        return None

    @contextmanager
    def attempt(self, fingerprint: str) -> Iterator[Path]:
        """The folder in which a stage is being made; one process at a time, earlier attempts' checkpoints in it. It
        goes where nothing was put into it."""
        with lock(self.stages / f"{fingerprint}.lock"):
            folder = self.stages / f"{fingerprint}.partial"
            folder.mkdir(parents=True, exist_ok=True)
            try:
                yield folder
            finally:
                with suppress(OSError):
                    folder.rmdir()

    def finish(self, fingerprint: str, record: Mapping[str, object]) -> Path:
        """Declare an attempt complete; returns its final folder."""
        partial, final = self.stages / f"{fingerprint}.partial", self.stages / fingerprint
        files = {
            str(path.relative_to(partial)): path.stat().st_size
            for path in sorted(partial.rglob("*"))
            if path.is_file()
            and path.name != RECORD
            and path.suffix != UNFINISHED
            and "checkpoints" not in path.relative_to(partial).parts
        }
        write_json(partial / RECORD, {**record, "files": files})
        if final.is_symlink():  # to a shared stage that is gone
            final.unlink()
        elif final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        descriptor = os.open(self.stages, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return final

    def give_up(self, fingerprint: str) -> None:
        """After a failure or a stop: keep whole checkpoints to continue from, and nothing else."""
        folder = self.stages / f"{fingerprint}.partial"
        whole = {path.parent for path in folder.glob("checkpoints/checkpoint-*/complete.json")}
        if not whole:
            shutil.rmtree(folder, ignore_errors=True)
            return
        for path in [*folder.iterdir(), *(folder / "checkpoints").iterdir()]:
            if path.name == "checkpoints" or path in whole:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def holds(folder: Path) -> bool:
    """Whether a stage that a server took over has the files of its record, all of them and no others, byte for byte."""
    try:
        record = json.loads((folder / HASHES).read_bytes())
        files = {str(name): (int(size), str(hashed)) for name, (size, hashed) in record["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    present = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }
    present.pop(HASHES, None)
    if record.get("fingerprint") != folder.name or present.keys() != files.keys():
        return False
    return all(not path.is_symlink() and path.is_file() and _same(path, *files[name]) for name, path in present.items())


def _same(path: Path, size: int, hashed: str) -> bool:
    if path.stat().st_size != size:
        return False
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == hashed


class RunFolder:
    """`runs/<name>`: what the user looks at."""

    def __init__(self, folder: Path, store: StageStore) -> None:
        self.folder = folder
        self.store = store
        self.events = EventLog(folder / "events.jsonl")
        self.manifest: dict[str, Any] = {}

    @contextmanager
    def open(self, recipe_text: str) -> Iterator[RunFolder]:
        """Make the folder, keep other writers out, put the resolved recipe into it."""
        created = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        with lock(self.folder / ".lock", wait=False):
            write_text(self.folder / "recipe.yaml", recipe_text)
            (self.folder / "stages").mkdir(exist_ok=True)
            if created or not self._registered():
                self._register()
            yield self

    def link(self, name: str, target: Path) -> Path:
        """Point `stages/NN-id` (or `tokenizer`) at a stage's folder; what it pointed at before becomes history."""
        path = self.folder / name
        if path.is_symlink():
            if Path(os.readlink(path)) == target:
                return path
            self._keep(path)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.rename(path)
        return path

    def prune(self, names: set[str]) -> None:
        """Move links of stages that the recipe no longer has to the history."""
        for path in sorted((self.folder / "stages").iterdir()):
            if path.is_symlink() and f"stages/{path.name}" not in names:
                self._keep(path)

    def unlink(self, name: str) -> None:
        """Remove a link to an attempt that is gone."""
        (self.folder / name).unlink(missing_ok=True)

    def _keep(self, path: Path) -> None:
        old = Path(os.readlink(path))
        if old.is_dir() and not old.name.endswith(".partial"):
            history = self.folder / "history"
            history.mkdir(exist_ok=True)
            older = history / f"{path.name}-{old.name[:8]}"
            older.unlink(missing_ok=True)
            path.rename(older)
        else:
            path.unlink()

    def save_manifest(self) -> None:
        """Write `manifest.json` as it stands."""
        write_json(self.folder / "manifest.json", self.manifest)

    def _registry(self) -> Path:
        return self.store.root / "runs.jsonl"

    def _registered(self) -> bool:
        return any(run == self.folder.absolute() for run in registered_runs(self.store.root))

    def _register(self) -> None:
        self.store.root.mkdir(parents=True, exist_ok=True)
        with lock(self.store.root / "runs.lock"), open(self._registry(), "a") as file:
            file.write(json.dumps({"run": str(self.folder.absolute())}) + "\n")


def registered_runs(root: Path) -> list[Path]:
    """Every run folder that ever linked to this home, those that are gone included."""
    path = root / "runs.jsonl"
    runs = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            runs.append(Path(json.loads(line)["run"]))
        except (ValueError, KeyError, TypeError):
            continue
    return list(dict.fromkeys(runs))


@dataclass
class Freed:
    """What `collect` removed, or would remove."""

    folders: list[str]
    bytes: int
    kept: int

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"folders": self.folders, "bytes": self.bytes, "kept": self.kept}


def collect(root: Path, dry_run: bool = False, older_than: float = 0.0) -> Freed:
    """Free the stages, attempts and prepared data that no run uses, and kept hashes of code. `older_than` is in days
    since the last change."""
    used = _used_stages(root)
    freed = Freed([], 0, 0)
    limit = time.time() - older_than * 86400
    under_way = False
    for folder in sorted((root / "stages").glob("*")) if (root / "stages").is_dir() else ():
        if not folder.is_dir():
            continue
        name = folder.name.removesuffix(".partial")
        try:
            with lock(root / "stages" / f"{name}.lock", wait=False):
                if folder.name in used or folder.stat().st_mtime > limit:
                    freed.kept += 1
                    under_way = under_way or folder.name.endswith(".partial")
                    continue
                _free(folder, freed, dry_run)
        except Busy:  # being made right now
            freed.kept += 1
            under_way = True
            continue
        if not dry_run:
            (root / "stages" / f"{name}.lock").unlink(missing_ok=True)
    made_again = [*([] if under_way else (root / "data").glob("*")), *(root / "code").glob("*.json")]
    for path in sorted(made_again):
        if path.stat().st_mtime <= limit:
            _free(path, freed, dry_run)
    return freed


def _free(path: Path, freed: Freed, dry_run: bool) -> None:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file() and not each.is_symlink()]
    freed.bytes += sum(each.stat().st_size for each in files)
    freed.folders.append(str(path))
    if dry_run:
        return
    if path.is_dir():
        doomed = path.with_name(f"{path.name}.doomed")
        path.rename(doomed)  # a half-removed folder must not look like a stage
        shutil.rmtree(doomed)
    else:
        path.unlink()


def _used_stages(root: Path) -> set[str]:
    """Names of the stage folders that some run links to, and of all that these were made from."""
    waiting: list[str] = []
    for run in registered_runs(root):
        for path in [*run.glob("stages/*"), *run.glob("history/*"), run / "tokenizer"]:
            if path.is_symlink():
                waiting.append(Path(os.readlink(path)).name)
    used: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in used:
            continue
        used.add(name)
        record = root / "stages" / name / RECORD
        if record.is_file():
            waiting += [str(each) for each in json.loads(record.read_text()).get("inputs", [])]
    return used

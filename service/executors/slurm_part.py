"""What runs inside a Slurm job: `batch` once a job, on its first node, and `part` once a node, as tasks of its srun.

The batch process claims the attempt: of two jobs that were submitted for it the second ends at once, and so does one
that begins after the service has closed the attempt. Each part keeps a launcher's tree (see `parts`). What the service
wants, and what became of it, passes through the attempt's folder on the file system that all nodes share:

- `claimed.json`: which job runs the attempt; no job, where the service saw to it that none ever will.
- `stop.json` in a part's folder: end, after so many seconds of grace. A part looks every tenth of a second.
- `beat` in a part's folder: touched while the part lives. A part that cannot reach the folder for `lease` seconds ends
  itself, so a service that sees no beat for longer than that knows that nothing of the part lives.

SIGTERM is Slurm's notice of a time limit or of preemption: every part is asked to save and to end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from service.executors.parts import part_folder, start_part
from service.executors.process_tree import descendants
from service.executors.protocol import ExecutorError, Exited, Running
from service.executors.records import SECRETS, read_record, write_record

BATCH, PART = "slurm.json", "part.json"
"""In the attempt's folder: what was submitted. In a part's folder: what it runs."""
CLAIM, REFUSED = "claimed.json", "refused.json"
PAUSE = 0.1


def claim(record: Path, job: str, why: str = "") -> bool:
    """Take the attempt for this job, or for nobody with an empty name; False when it is taken already."""
    temporary = record / f".{CLAIM}.{os.getpid()}.{threading.get_ident()}.{job}"
    try:
        temporary.write_text(json.dumps({"job": job, "why": why}))
        os.link(temporary, record / CLAIM)  # whole or not at all, and once: on NFS too
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def ask_to_stop(folder: Path, grace: float) -> None:
    """Leave word for a part that has not ended."""
    if folder.is_dir() and not (folder / "exit.json").exists():
        with suppress(OSError):  # the part writes the same record, perhaps at this moment
            write_record(str(folder), "stop.json", {"grace": grace})


def batch(record: Path) -> int:
    """Start a part on each node, and pass on what Slurm says. Returns the exit code of the first."""
    job = os.environ["SLURM_JOB_ID"]
    settings = read_record(record, BATCH)
    if settings is None or not claim(record, job):
        print(f"nothing to do: {record} is another job's, or was closed", flush=True)
        return 0
    folders = [part_folder(record, number) for number in range(len(settings["nodes"]))]

    def warned(*_: object) -> None:
        for folder in folders:
            ask_to_stop(folder, float(settings["notice"]))

    signal.signal(signal.SIGTERM, warned)
    command = (
        *("srun", f"--nodes={len(folders)}", f"--ntasks={len(folders)}", "--ntasks-per-node=1", "--overlap"),
        *(f"--cpus-per-task={settings['cpus']}", "--wait=0", "--kill-on-bad-exit=0", "--input=none", *settings["gres"]),
        *(sys.executable, "-m", __spec__.name, "part", str(record)),
    )
    with subprocess.Popen(command, start_new_session=True) as tasks:
        while tasks.poll() is None:
            if len(folders) > 1 and (folders[0] / "exit.json").exists():
                for folder in folders[1:]:  # they wait for stages that will not come
                    ask_to_stop(folder, 0.0)
            time.sleep(PAUSE)
    ended = read_record(record, "exit.json")
    return abs(int(ended["code"])) & 0xFF if ended is not None else tasks.returncode or 1


class PartRunner:
    """Keeps one part: starts it, passes on what it is asked, and ends it when the shared folder is out of reach."""

    def __init__(self, folder: Path, lease: float) -> None:
        self._folder = folder
        self._lease = lease
        self._heard = time.monotonic()
        self._launcher = 0
        self._beat_at = float("-inf")
        self._notice: float | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def run(self, notice: float) -> int:
        """From the start to the end of the part; returns its exit code. Raises ExecutorError when it cannot start."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_notice", notice))
        part = read_record(self._folder, PART)
        if part is None:
            raise ExecutorError(f"{self._folder / PART} cannot be read on this node")
        if (stop_request := read_record(self._folder, "stop.json")) is not None and not stop_request["grace"]:
            return self._never()
        secrets = {path.name: path.read_text(encoding="utf-8") for path in (self._folder / SECRETS).iterdir()}
        devices = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}  # Slurm chose them
        # the job has a cgroup of Slurm's; processes in another one would be out of its sight and of its limits
        executor, handle = start_part(part, secrets, devices, cgroups=False)
        self._launcher = int(handle.record["launcher_pid"])
        done: float | None = None
        while isinstance(condition := executor.poll(handle), Running):
            self._beat()
            stop_request = read_record(self._folder, "stop.json")
            if stop_request is None and self._notice is not None:
                stop_request = {"grace": self._notice}
            if stop_request is not None and stop_request["grace"] != done:
                done = float(stop_request["grace"])
                executor.stop(handle, done)
            time.sleep(PAUSE)
        return abs(condition.code) & 0xFF if isinstance(condition, Exited) else 1

    def _never(self) -> int:
        write_record(str(self._folder), "exit.json", {"code": -signal.SIGKILL, "asked": True, "reason": ""})
        return int(signal.SIGKILL)

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beat_at < self._lease / 10:
            return
        self._beat_at = now
        with suppress(OSError):  # it may pass; if it does not, the lease runs out
            (self._folder / "beat").touch()
            self._heard = now

    def _watch(self) -> None:
        """Touches no file: where the shared file system hangs, only this goes on."""
        while time.monotonic() - self._heard < self._lease:
            time.sleep(min(1.0, self._lease / 10))
        for pid in descendants(self._launcher) if self._launcher else ():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        os._exit(1)  # the tether breaks with the process


def part(record: Path) -> int:
    """Run this node's part."""
    settings = read_record(record, BATCH)
    if settings is None:
        print(f"{record} cannot be read on this node", flush=True)
        return 1
    folder = part_folder(record, settings["nodes"].index(os.environ["SLURMD_NODENAME"]))
    try:
        return PartRunner(folder, float(settings["lease"])).run(float(settings["notice"]))
    except (ExecutorError, OSError) as error:
        print(error, flush=True)
        write_record(str(folder), REFUSED, {"why": str(error)})
        return 1


def main(words: Sequence[str]) -> int:
    """`batch RECORD` or `part RECORD`."""
    os.umask(0o077)
    verb, record = words
    return {"batch": batch, "part": part}[verb](Path(record))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

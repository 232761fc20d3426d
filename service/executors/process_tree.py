"""Trees of processes on Linux: who lives, who descends from whom, and how a whole tree is killed.

The launcher imports this: the standard library only, and of that what loads at once.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
"""As typing's, which takes longer to import than all the rest."""
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    Become = Callable[[Sequence[str], Mapping[str, str]], NoReturn]

MARK = "FINERY_ATTEMPT_ID"
"""In the environment of every process of an attempt: how its remains are found when the launcher itself was killed."""


def execute(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Become a command. Raises OSError where it cannot be started."""
    os.execvpe(command[0], list(command), dict(environment))


def start_time(pid: int) -> int:
    """When a process started, in clock ticks after boot (field 22 of /proc/PID/stat); 0 when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def mark_place(value: str) -> int:
    """Where in this process's memory /proc/PID/environ shows the mark of the environment that it was started with,
    which is `value`; 0 where it is not found."""
    import ctypes

    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    first, last = int(fields[47]), int(fields[48])  # env_start and env_end, fields 50 and 51
    if not first < last:
        return 0
    entry = f"{MARK}={value}\0".encode()
    at = (b"\0" + ctypes.string_at(first, last - first)).find(b"\0" + entry)
    return 0 if at < 0 else first + at + len(MARK) + 1


def write_mark(place: int, value: str, room: int) -> None:
    """Show another mark there. Raises OSError where it does not fit, or where there is no place for one."""
    import ctypes

    content = value.encode()
    if not place or len(content) > room:
        raise OSError(f"the attempt's id {value!r} cannot be shown to /proc")
    ctypes.memmove(place, content.ljust(room, b"\0"), room)


def boot_id() -> str:
    """What tells two boots of a machine apart: process ids and start times mean nothing across one."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def descendants(root: int) -> list[int]:
    """Every process below `root` that is not a zombie, found by walking the parents in /proc."""
    children: dict[int, list[int]] = {}
    alive = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(name))
        if fields[0] not in (b"Z", b"X"):
            alive.add(int(name))
    pids, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        pids += below
        waiting += below
    return [pid for pid in pids if pid in alive]


def own_cgroup() -> str:
    """The folder of this process's cgroup v2; empty where there is none."""
    try:
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file if " - cgroup2 " in line]
        with open("/proc/self/cgroup") as file:
            path = next(line.strip().partition("::")[2] for line in file if line.startswith("0::"))
    except (OSError, StopIteration):
        return ""
    return mounts[0][4] + path.rstrip("/") if mounts else ""


def make_cgroup(name: str, memory: int) -> str:
    """A cgroup of the attempt's own, with a limit on its memory where that is delegated; empty where it may not be
    made."""
    parent = own_cgroup()
    folder = f"{parent}/finery-{name}"
    try:
        os.mkdir(folder)
    except FileExistsError:
        pass
    except OSError:
        return ""
    if not os.path.exists(f"{folder}/cgroup.kill"):  # Linux before 5.14: the sweep below does it
        os.rmdir(folder)
        return ""
    if memory:
        for path, text in (
            (f"{parent}/cgroup.subtree_control", "+memory"),
            (f"{folder}/memory.max", str(memory)),
            (f"{folder}/memory.oom.group", "1"),
        ):
            try:
                with open(path, "w") as file:
                    file.write(text)
            except OSError:
                break
    return folder


def kill_cgroup(folder: str, timeout: float) -> bool:
    """Kill everything in a cgroup in one step; True once it is empty."""
    try:
        with open(f"{folder}/cgroup.kill", "w") as file:
            file.write("1")
    except OSError:
        return not os.path.isdir(folder)
    end = time.monotonic() + timeout
    while True:
        try:
            with open(f"{folder}/cgroup.events") as file:
                if "populated 0" in file.read():
                    os.rmdir(folder)
                    return True
        except FileNotFoundError:
            return True
        except OSError:
            pass
        if time.monotonic() > end:
            return False
        time.sleep(0.005)


def memory_kills(cgroup: str) -> int:
    """How many processes the kernel has killed because memory ran out: of the cgroup, else of the whole machine."""
    for path in (f"{cgroup}/memory.events", "/proc/vmstat"):
        try:
            with open(path) as file:
                return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
        except (OSError, ValueError, StopIteration):
            continue
    return 0


def limits_memory(cgroup: str) -> bool:
    """Whether the kernel limits the memory of this cgroup."""
    try:
        with open(f"{cgroup}/memory.max") as file:
            return bool(cgroup) and file.read().strip() != "max"
    except OSError:
        return False


class MemoryWatch:
    """Finds a tree that takes more memory than it may, where no cgroup limits it: by looking, more often near the
    limit."""

    SELDOM, OFTEN = 0.5, 0.05

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.next_look = 0.0

    def exceeded(self, root: int, without: int = 0) -> bool:
        """Whether all that `root` started, but for one process, takes more. Looks when it is time to."""
        if time.monotonic() < self.next_look:
            return False
        tree = [pid for pid in descendants(root) if pid != without]
        used = sum(_anonymous(pid) for pid in tree)
        if used > self.limit:  # pages that several share were counted for each: the kernel knows their part
            used = _together(tree)
        self.next_look = time.monotonic() + (self.OFTEN if used > self.limit / 2 else self.SELDOM)
        return used > self.limit


def _anonymous(pid: int) -> int:
    """Bytes that only this machine's memory or swap holds: neither programs nor files that can be read again."""
    return _kilobytes(f"/proc/{pid}/status", (b"RssAnon:", b"RssShmem:", b"VmSwap:"))


def _together(tree: list[int]) -> int:
    """Bytes of all these processes, a page that several share once.

    Where one ends between the first reading and the last, its part falls to those that are read later and would count
    twice: those that are left are read anew.
    """
    while True:
        used = sum(_proportional(pid) for pid in tree)
        left = [pid for pid in tree if _anonymous(pid)]
        if len(left) == len(tree):
            return used
        tree = left


def _proportional(pid: int) -> int:
    used = _kilobytes(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:"))
    return used or _anonymous(pid)


def _kilobytes(path: str, names: tuple[bytes, ...]) -> int:
    try:
        with open(path, "rb") as file:
            return 1024 * sum(int(line.split()[1]) for line in file if line.startswith(names))
    except OSError:
        return 0

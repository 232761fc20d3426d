"""Runs in forked children of a warm process: seconds instead of the ten that a fresh interpreter takes to import torch.

Plain functions, importable by the fork server; every one of them runs a whole recipe and may kill its own process.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tests.clean_process import proofs_forked_from_here

QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
}


def server() -> Any:
    """A multiprocessing context whose children start with torch and transformers imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.end_to_end.known_once"])
    before = dict(os.environ)
    os.environ.update(QUIET)  # read when the libraries are imported, before a command could say so itself
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


def fork(function: Callable[..., None], *arguments: Any, seconds: float = 240) -> int:
    """The exit code of a forked child that calls `function`."""
    child = server().Process(target=function, args=arguments)
    child.start()
    child.join(seconds)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("the child hangs")
    return int(child.exitcode)


def fresh(*words: str, home: Path, folder: Path) -> subprocess.Popen[bytes]:
    """`python -m pipelines WORDS` in a fresh interpreter."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines", *words],
        cwd=folder,
        env=os.environ | {"FINERY_HOME": str(home), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def run_recipe(recipe: str, overrides: list[str], folder: str, home: str, death: tuple[str, int] | None = None) -> None:
    """Run a recipe into `folder`; `death` is (place, count): SIGKILL at the count-th passing of the place."""
    os.environ["FINERY_HOME"] = home
    os.chdir(Path(folder).parent)
    from pipelines.core.load import load
    from pipelines.runs.run import run
    from pipelines.runs.workspace import StageStore

    if death is not None:
        _arrange_death(*death)
    run(load(recipe, overrides), Path(folder), StageStore(Path(home)))


def _arrange_death(place: str, count: int, group: bool = False) -> None:
    """Kill this process or its whole group, without any clean-up, when it passes `place` for the `count`-th time."""
    from pipelines.trainers import checkpoints
    from pipelines.trainers.ppo_trainer import PPOTrainer
    from pipelines.trainers.trainer import FineryTrainer

    holder, name = {
        "training step": (FineryTrainer, "training_step"),
        "iteration of ppo": (PPOTrainer, "training_step"),
        "optimizer state being saved": (FineryTrainer, "_save_optimizer_and_scheduler"),
        "checkpoint about to be marked": (checkpoints, "mark_complete"),
        "result about to be saved": (checkpoints, "save_stage"),
    }[place]
    original = getattr(holder, name)
    passed = [0]

    def dying(*arguments: Any, **keywords: Any) -> Any:
        passed[0] += 1
        if passed[0] == count:
            os.kill(0 if group else os.getpid(), signal.SIGKILL)
        return original(*arguments, **keywords)

    setattr(holder, name, dying)


def command(
    words: list[str],
    folder: str,
    said: str,
    limits: dict[str, int] | None = None,
    environment: dict[str, str] | None = None,
) -> None:
    """`python -m pipelines WORDS` in `folder`; what it prints goes to the file `said`. `limits`: bytes of memory beside what is mapped."""
    os.environ.update(environment or {})
    os.chdir(folder)
    _print_to(said)
    if limits is not None:
        limit_memory(**limits)
    from pipelines.__main__ import main

    sys.exit(main(words))


def command_with_forked_proofs(words: list[str], folder: str, said: str, environment: dict[str, str]) -> None:
    """`command`, whose publications are proved in forked children too."""
    with proofs_forked_from_here():
        command(words, folder, said, None, environment)


def command_on_a_small_disk(words: list[str], folder: str, said: str, small: str, size: int, larger: list[str]) -> None:
    """The same while `small` (`home` or `work`, in `folder`) is a disk of `size` KiB; its state is copied to `<small>.full`, then
    the disk grows and the command `larger` is run. Exits with 10 times the first code plus the second.

    The disk is a tmpfs in a mount namespace of this process alone: it goes with it.
    """
    root = Path(folder)
    disk = root / small
    disk.mkdir()
    _own_mounts()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "small", str(disk)], check=True)
    work = root / "work"
    work.mkdir(exist_ok=True)
    os.environ["FINERY_HOME"] = str(root / "home")
    os.chdir(work)
    _print_to(said)
    from pipelines.__main__ import main

    with proofs_forked_from_here():
        first = main(words)
        shutil.copytree(disk, root / f"{small}.full", symlinks=True)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        second = main(larger)
    shutil.copytree(disk, root / f"{small}.grown", symlinks=True)
    sys.exit(10 * first + second)


def command_with_a_read_only(words: list[str], folder: str, said: str, home: str, read_only: str) -> None:
    """The same while the folder `read_only` may not be written, not even by root: it is mounted so for this process alone."""
    _own_mounts()
    subprocess.run(["mount", "--bind", read_only, read_only], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", read_only], check=True)
    command(words, folder, said, None, {"FINERY_HOME": home})


def may_mount(answer: str) -> None:
    """Write into the file `answer` why a process may not have mounts of its own; write none when it may."""
    try:
        _own_mounts()
        with tempfile.TemporaryDirectory() as place:
            subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True, capture_output=True)
            subprocess.run(["umount", place], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        Path(answer).write_text(str(error))


def _own_mounts() -> None:
    """What `unshare --map-root-user --mount` does, here."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    new_user, new_mounts = 0x10000000, 0x00020000
    if libc.unshare(new_user | new_mounts) != 0:
        raise OSError(ctypes.get_errno(), "unshare is refused")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def limit_memory(extra: int) -> None:
    """Refuse this process so many bytes beyond what it has mapped, files that it maps counted."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + extra, mapped + extra))


def _print_to(path: str) -> None:
    """Standard output and error of this process and of its children."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)


def run_on_forked_ranks(
    recipe: str, overrides: list[str], folder: str, home: str, death: tuple[str, int] | None = None
) -> None:
    """As `run_recipe`, with ranks that are forked instead of started by torchrun: everything else of a launch is real."""
    from pipelines.runs import distributed

    distributed.subprocess = types.SimpleNamespace(Popen=_ForkedTorchrun)  # type: ignore[assignment]
    run_recipe(recipe, overrides, folder, home, death)


def run_with_tokenising_noted(recipe: str, overrides: list[str], folder: str, home: str, notes: str) -> None:
    """As `run_on_forked_ranks`; each rank writes into `notes` that it tokenises a text, and which file it maps."""
    from pipelines.data import packing

    tokenised, open_blocks = packing.tokenised, packing.open_blocks

    def note(what: str) -> None:
        with open(notes, "a") as file:
            file.write(f"{os.environ['RANK']} {what}\n")

    def noted(*arguments: Any, **keywords: Any) -> Any:
        note("tokenises")
        return tokenised(*arguments, **keywords)

    def opened(file: Path, size: int) -> Any:
        if (blocks := open_blocks(file, size)) is not None:
            note(f"maps {blocks.filename}")
        return blocks

    packing.tokenised, packing.open_blocks = noted, opened
    run_on_forked_ranks(recipe, overrides, folder, home)


def run_until_all_are_killed(recipe: str, overrides: list[str], folder: str, home: str, death: tuple[str, int]) -> None:
    """As `run_on_forked_ranks`; the first rank that passes the place of `death` takes all, the driver too, with it."""
    os.setsid()
    _arrange_death(*death, group=True)
    run_on_forked_ranks(recipe, overrides, folder, home)


class _ForkedTorchrun:
    """An agent that starts the ranks, waits for them, and ends the others when one has failed."""

    def __init__(self, command: list[str], env: dict[str, str], stdout: Any, stderr: Any, preexec_fn: Any) -> None:
        words = command[command.index("stage") :]
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            preexec_fn()
            os.dup2(stdout.fileno(), 1)
            os.dup2(stderr.fileno(), 2)
            _let_go_of_locks()
            os._exit(_agent(words, env))

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def __enter__(self) -> _ForkedTorchrun:
        return self

    def __exit__(self, *exception: object) -> None:
        while self.poll() is None:
            time.sleep(0.02)


def _let_go_of_locks() -> None:
    """A program that is started has none of the driver's files. With one, a rank that takes longer to die keeps it locked."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the listing's own
            if os.readlink(f"/proc/self/fd/{number}").endswith(".lock"):
                os.dup2(nothing, number)


def _agent(words: list[str], environment: dict[str, str]) -> int:
    size, ranks = int(words[-1]), []
    store, port = _store()
    environment = environment | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            os.environ.update(environment | {name: str(value) for name, value in here.items()})
            from pipelines.__main__ import main

            try:
                code = main(words)
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stderr.flush()
            os._exit(code)
        ranks.append(pid)
    failed = 0
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status and not failed:
            failed = 1
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    os.kill(store, signal.SIGKILL)
    return failed


def _store() -> tuple[int, int]:
    """(process, port) of the store where the ranks meet, as torchrun has one: a port that is found free and taken later may
    be another's by then. In a process of its own, for it has threads, and ends with this one."""
    reader, writer = os.pipe()
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        from torch.distributed import TCPStore

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, str(store.port).encode())
        os.close(writer)
        while os.getppid() == agent:
            time.sleep(1)
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        return pid, int(answer.read())


def command_signalled(
    words: list[str], folder: str, said: str, home: str, place: str, delay: float, number: int
) -> None:
    """`command`, which gets a signal `delay` seconds after it first passed `place`, or the ninth step of training."""
    from pipelines.data.tokenizers.wordpiece import WordPiece
    from pipelines.models import predict
    from pipelines.publishing import verify
    from pipelines.runs import workspace
    from pipelines.trainers.trainer import FineryTrainer

    holder, name = {
        "tokenizer": (WordPiece, "train"),
        "prediction": (predict, "answers"),
        "proof of the publication": (verify, "clean_answers"),
        "stage being finished": (workspace.StageStore, "finish"),
        "training step": (FineryTrainer, "training_step"),
    }[place]
    original, passes = getattr(holder, name), count(1)

    def signalling(*arguments: Any, **keywords: Any) -> Any:
        first = next(passes) == (9 if place == "training step" else 1)
        if first and delay:
            threading.Timer(delay, os.kill, (os.getpid(), number)).start()
        result = original(*arguments, **keywords)
        if first and not delay:
            os.kill(os.getpid(), number)
            time.sleep(0.01)  # the signal is taken here at the latest
        return result

    setattr(holder, name, signalling)
    command(words, folder, said, None, {"FINERY_HOME": home})

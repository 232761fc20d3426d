"""A stage on several processes: what a rank leaves is what the driver raises; a world of another size is refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.core import errors
from pipelines.core.errors import (
    EXIT_STOPPED,
    Busy,
    CommandError,
    DataError,
    Diverged,
    FineryError,
    IncompatibleError,
    ProcessLost,
    StageError,
    Stopped,
)
from pipelines.core.interfaces import World
from pipelines.core.load import loads
from pipelines.core.signals import StopSignal
from pipelines.runs import distributed, hardware
from pipelines.runs.distributed import Heartbeat, MainProcess, barrier, gather
from pipelines.runs.run import run
from pipelines.runs.workspace import StageStore
from service.attempts.watching import outcome_of
from service.executors.protocol import Exited
from service.jobs.states import Reason


@pytest.mark.parametrize(
    "kind", [DataError, Diverged, StageError, Stopped, errors.OutOfMemory, errors.DiskFull, errors.ModelError, Busy]
)
def test_an_error_keeps_its_kind_and_words_on_the_way_to_the_driver(kind: type[FineryError], tmp_path: Path) -> None:
    distributed.write_failure(tmp_path, kind("what happened and what to do"))
    found = distributed.read_failure(tmp_path)
    assert type(found) is kind
    assert str(found) == "what happened and what to do"
    assert list(tmp_path.iterdir()) == []
    assert distributed.read_failure(tmp_path) is None


def test_the_first_rank_that_fails_is_the_one_that_is_heard(tmp_path: Path) -> None:
    distributed.write_failure(tmp_path, DataError("the cause"))
    distributed.write_failure(tmp_path, StageError("connection reset by peer"))
    assert str(distributed.read_failure(tmp_path)) == "the cause"


def test_a_torn_failure_is_none(tmp_path: Path) -> None:
    (tmp_path / distributed.FAILURE).write_text('{"type": "Dat')
    assert distributed.read_failure(tmp_path) is None


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Put a small program in torchrun's place; returns what it was started with."""

    def put(program: str) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def start(command: list[str], **keywords: Any) -> subprocess.Popen[bytes]:
            seen["command"], seen["env"] = command, keywords["env"]
            return subprocess.Popen([sys.executable, "-c", program, *command], **keywords)

        monkeypatch.setattr(distributed, "subprocess", SimpleNamespace(Popen=start))
        return seen

    return put


def test_the_ranks_get_the_stage_and_share_the_cores(
    agent: Callable[[str], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen = agent("pass")
    distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())
    assert seen["command"][1:3] == ["-m", "torch.distributed.run"]
    assert "--nproc_per_node=2" in seen["command"]
    assert seen["command"][-5:] == [str(tmp_path), "mrpc", str(tmp_path), "ddp", "2"]
    assert int(seen["env"]["OMP_NUM_THREADS"]) >= 1
    assert seen["env"]["FINERY_PARENT_PID"] == ""


def test_what_a_rank_left_is_raised(agent: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    agent(
        f'open({str(tmp_path / distributed.FAILURE)!r}, \'w\').write(\'{{"type": "Diverged", "message": "the loss is nan"}}\'); raise SystemExit(1)'
    )
    with pytest.raises(Diverged, match="the loss is nan"):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


def test_a_failure_of_an_earlier_attempt_is_not_heard_again(
    agent: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    distributed.write_failure(tmp_path, DataError("from yesterday"))
    agent("pass")
    distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


def test_ranks_that_end_without_a_word(agent: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "ranks.log").write_text("  exitcode  : -9 (pid: 1), of yesterday\n")
    agent("raise SystemExit(3)")
    with pytest.raises(
        StageError, match=r"ended with exit code 3 and without a word; `finery resume` continues .*ranks.log"
    ):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


@pytest.mark.parametrize("heard", [False, True], ids=["silence", "an echo of the others"])
def test_a_rank_that_was_killed_is_told_with_its_signal(
    heard: bool, agent: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    echo = f'open({str(tmp_path / distributed.FAILURE)!r}, \'w\').write(\'{{"type": "Unforeseen", "message": "connection closed by peer"}}\'); '
    agent(f"{echo if heard else ''}print('failed (exitcode: -9) local_rank: 1 (pid: 71)'); raise SystemExit(1)")
    with pytest.raises(StageError, match=r"killed by SIGKILL, most often because .* memory ran out; `finery resume`"):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


@pytest.mark.parametrize(
    ("kind", "code", "sentence"),
    [
        ("Unforeseen", 7, "one of its processes ended with exit code 7 and without a word; `finery resume` continues"),
        ("Unforeseen", 1, "connection closed by peer"),  # ranks that say what happened end so
        ("DataError", 7, "connection closed by peer"),
    ],
)
def test_a_rank_that_ends_by_itself_without_a_word_is_told_and_not_its_echo(
    kind: str, code: int, sentence: str, agent: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    echo = f'open({str(tmp_path / distributed.FAILURE)!r}, \'w\').write(\'{{"type": "{kind}", "message": "connection closed by peer"}}\'); '
    agent(f"{echo}print('failed (exitcode: {code}) local_rank: 1 (pid: 71)'); raise SystemExit(1)")
    with pytest.raises(FineryError, match=sentence):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


def test_a_killed_rank_is_no_stop_although_the_others_were_stopped_by_torchrun(
    agent: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    echo = f'open({str(tmp_path / distributed.FAILURE)!r}, \'w\').write(\'{{"type": "Stopped", "message": "stopped by SIGTERM"}}\'); '
    agent(f"{echo}print('failed (exitcode: -9) local_rank: 1 (pid: 71)'); raise SystemExit(1)")
    with pytest.raises(ProcessLost, match="one of its processes was killed by SIGKILL"):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


def test_a_rank_that_was_ended_by_a_signal_that_nobody_here_sent_is_lost(
    agent: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    agent(
        f'open({str(tmp_path / distributed.FAILURE)!r}, \'w\').write(\'{{"type": "Stopped", "message": "stopped by SIGTERM"}}\'); raise SystemExit(1)'
    )
    with pytest.raises(ProcessLost, match="one of its processes was killed by SIGTERM"):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_torchrun_s_own_end_by_a_signal_is_a_lost_process(
    number: signal.Signals, agent: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    agent(f"import os; os.kill(os.getpid(), {int(number)})")
    with pytest.raises(ProcessLost, match=f"one of its processes was killed by {number.name}") as raised:
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopSignal())
    last = {"event": "failed", "reason": raised.value.reason, "message": str(raised.value)}
    assert outcome_of(Exited(1, False, None), last, "").reason is Reason.NODE_LOST


def test_a_stop_reaches_the_ranks_and_not_their_agent(agent: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    rank = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(7)); open('ready', 'w'); time.sleep(60)"
    agent(
        f"import os, subprocess, sys; os.chdir({str(tmp_path)!r}); child = subprocess.Popen([sys.executable, '-c', {rank!r}]); "
        "code = child.wait(); open('rank-ended-with', 'w').write(str(code)); raise SystemExit(1)"
    )
    stop = StopSignal()

    class StopAsked(StopSignal):
        @property  # type: ignore[override]
        def requested(self) -> bool:
            return (tmp_path / "ready").exists()

        @requested.setter
        def requested(self, value: bool) -> None: ...

    assert stop.requested is False
    with pytest.raises(Stopped, match="stage 'mrpc' was stopped"):
        distributed.run_ranks(2, tmp_path, "mrpc", tmp_path, StopAsked())
    assert (tmp_path / "rank-ended-with").read_text() == "7"


@pytest.fixture
def second(tmp_path, monkeypatch):
    """The environment of the second of two hosts."""
    folder = tmp_path / "world"
    for name, value in {
        "FINERY_WORLD": str(folder),
        "FINERY_HOSTS": "2",
        "FINERY_HOST": "1",
        "FINERY_ADDRESS": "10.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    return folder


def test_without_a_word_there_is_one_host(monkeypatch):
    monkeypatch.delenv("FINERY_WORLD", raising=False)
    assert distributed.hosts() == distributed.Hosts()
    call = distributed.call_for(Path("runs/a"), "pretrain", Path("stages/x.partial"), 2, "fsdp2", distributed.hosts())
    command = call.command(distributed.hosts())
    assert "--standalone" in command
    assert "--nproc_per_node=2" in command
    assert command[-6:] == ["stage", "runs/a", "pretrain", "stages/x.partial", "fsdp2", "2"]


def test_each_host_starts_its_share_towards_the_first(second, monkeypatch):
    first = distributed.Hosts(2, 0, "10.0.0.1", second)
    call = distributed.call_for(Path("runs/a"), "pretrain", Path("x.partial"), 6, "ddp", first)
    for here, rank in ((first, 0), (distributed.hosts(), 1)):
        command = call.command(here)
        assert {
            "--nnodes=2",
            f"--node_rank={rank}",
            "--nproc_per_node=3",
            "--master_addr=10.0.0.1",
            f"--master_port={call.port}",
        } <= set(command)
        assert command[-1] == "6"
    assert json.loads((second / "0.json").read_text())["run_folder"] == str(Path("runs/a").absolute())
    distributed.call_for(Path("runs/a"), "mrpc", Path("y.partial"), 2, "ddp", first)
    assert sorted(path.name for path in second.iterdir()) == ["0.json", "1.json"]


def test_processes_that_cannot_be_shared_evenly_are_refused(second):
    with pytest.raises(
        StageError, match=r"3 processes cannot be shared evenly by 2 hosts; set launch.num_processes to a multiple of 2"
    ):
        distributed.call_for(
            Path("runs/a"), "pretrain", Path("x"), 3, "ddp", distributed.Hosts(2, 0, "10.0.0.1", second)
        )


def test_auto_counts_the_devices_of_every_host(second):
    import torch

    from pipelines.runs import hardware

    assert hardware.processes("auto") == 2 * max(1, torch.cuda.device_count())
    assert hardware.processes(3) == 3


@pytest.mark.parametrize(("name", "value"), [("FINERY_HOST", ""), ("FINERY_HOST", "2"), ("FINERY_HOSTS", "two")])
def test_hosts_that_are_not_told_who_they_are_are_refused_with_what_is_missing(second, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(CommandError, match=f"{name} to .*it is '{value}'"):
        distributed.hosts()


def test_join_needs_the_service_s_words(monkeypatch, second):
    monkeypatch.setenv("FINERY_HOST", "0")
    with pytest.raises(CommandError, match="join needs FINERY_WORLD"):
        distributed.join()
    monkeypatch.delenv("FINERY_WORLD")
    with pytest.raises(CommandError, match="join needs FINERY_WORLD"):
        distributed.join()


def joined(monkeypatch, commands):
    """Start `join` with these commands in the place of torchrun."""
    monkeypatch.setattr(distributed.Call, "command", lambda call, here: commands[call.stage])
    stop = StopSignal()
    monkeypatch.setattr(
        distributed, "stop_on_signals", lambda stop: stop.deferred()
    )  # handlers belong to the main thread
    found = []
    thread = threading.Thread(target=lambda: found.append(distributed.join(stop)))
    thread.start()
    return stop, thread, found


def test_it_takes_part_in_every_stage_in_turn_until_it_is_stopped(second, monkeypatch, tmp_path):
    note = [sys.executable, "-c", f"open({str(tmp_path / 'order')!r}, 'a').write('STAGE ')"]
    commands = {name: [*note[:2], note[2].replace("STAGE", name)] for name in ("one", "two")}
    stop, thread, found = joined(monkeypatch, commands)
    first = distributed.Hosts(2, 0, "10.0.0.1", second)
    for count, stage in enumerate(("one", "two"), start=1):
        distributed.call_for(tmp_path, stage, tmp_path, 2, "ddp", first)
        limit = time.monotonic() + 20
        while not ((tmp_path / "order").exists() and len((tmp_path / "order").read_text().split()) == count):
            assert time.monotonic() < limit
            time.sleep(0.02)
    stop.requested = True
    thread.join(20)
    assert found == [EXIT_STOPPED]
    assert (tmp_path / "order").read_text() == "one two "


def test_a_share_that_fails_ends_it_with_its_code(second, monkeypatch, tmp_path):
    _, thread, found = joined(monkeypatch, {"one": [sys.executable, "-c", "raise SystemExit(7)"]})
    distributed.call_for(tmp_path, "one", tmp_path, 2, "ddp", distributed.Hosts(2, 0, "10.0.0.1", second))
    thread.join(20)
    assert found == [7]


def test_a_stop_reaches_the_ranks_and_not_torchrun(second, monkeypatch, tmp_path):
    rank = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (open('saved', 'w').close(), sys.exit(0))); open('ready', 'w').close(); time.sleep(100)"
    agent = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {rank!r}]))"
    monkeypatch.chdir(tmp_path)
    stop, thread, found = joined(monkeypatch, {"one": [sys.executable, "-c", agent]})
    distributed.call_for(tmp_path, "one", tmp_path, 2, "ddp", distributed.Hosts(2, 0, "10.0.0.1", second))
    limit = time.monotonic() + 20
    while not os.path.exists("ready"):
        assert time.monotonic() < limit
        time.sleep(0.02)
    stop.requested = True
    thread.join(20)
    assert os.path.exists("saved")
    assert found == [EXIT_STOPPED]


def test_one_process_waits_for_nobody() -> None:
    main = MainProcess(World(), Path())
    barrier(main)()
    assert gather(main)({"a": 1}) == [{"a": 1}]


@pytest.mark.parametrize("asked", [True, False])
def test_a_main_process_that_died_is_not_waited_for_by_one_that_is_to_stop(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed import distributed_c10d

    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: SimpleNamespace(check=lambda keys: False))
    monkeypatch.setattr(Heartbeat, "SECONDS", 0.05)
    (tmp_path / Heartbeat.FOLDER).mkdir()
    (tmp_path / Heartbeat.FOLDER / "0").touch()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="waiting for rank 0"):
        MainProcess(World(1, 2), tmp_path, 100 if asked else 1.0, StopSignal(asked)).wait()
    assert (time.monotonic() - began < 1.0) == asked


PROGRAM = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
import torch.distributed as distributed
from pipelines.core.interfaces import World
from pipelines.runs.distributed import Heartbeat, MainProcess, barrier, gather
rank, port, folder, alone, beats, seconds = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *map(float, sys.argv[4:])
limit = timedelta(seconds=seconds)
distributed.init_process_group(
    "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=limit
)
Heartbeat.SECONDS = 0.1
main = MainProcess(World(rank, 2), folder, seconds)
heart = Heartbeat(folder, rank)
if rank == 1 or beats:
    heart.__enter__()
time.sleep(alone * (1 - rank))
before = time.time()
try:
    barrier(main)()
except RuntimeError as error:
    print(error)
    os._exit(1)
times = gather(main)((before, time.time()))
assert max(entered for entered, _ in times) <= min(left for _, left in times), times
time.sleep(alone * (1 - rank))
print(gather(main)({"rank": rank}))
distributed.destroy_process_group()
os._exit(0)
"""


def two_processes(folder: Path, alone: float, beats: bool) -> list[tuple[int, str]]:
    """(exit code, output) of two ranks, the first of which works alone for so many seconds, twice as long as a
    collective call may take."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [port, str(folder), str(alone), str(int(beats)), str(alone / 2)]
    children = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), *words], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    said = [child.communicate(timeout=120)[0].strip() for child in children]
    return [(child.returncode, text) for child, text in zip(children, said, strict=True)]


@pytest.mark.long
def test_two_processes_collect_in_the_order_of_ranks_however_long_the_main_one_works_alone(tmp_path: Path) -> None:
    assert two_processes(tmp_path, alone=4, beats=True) == [(0, "[{'rank': 0}, {'rank': 1}]")] * 2


@pytest.mark.long
def test_a_main_process_without_a_sign_of_life_is_not_waited_for(tmp_path: Path) -> None:
    _, (code, said) = two_processes(tmp_path, alone=4, beats=False)
    assert (code, said) == (1, "timed out waiting for rank 0")
    assert any(sign in said for sign in distributed.WAITED)


@pytest.fixture
def beating(tmp_path: Path) -> Callable[[int, float, float], None]:
    """Leave the signs of life of a rank: so many seconds since it was alive, and since it moved on."""

    def leave(rank: int, alive: float, step: float) -> None:
        folder = tmp_path / distributed.Heartbeat.FOLDER
        folder.mkdir(exist_ok=True)
        for name, age in ((f"{rank}", alive), (f"{rank}.step", step)):
            (folder / name).touch()
            os.utime(folder / name, (time.time() - age,) * 2)

    return leave


GLOO = RuntimeError("[pair.cc:553] Timed out waiting 60000ms for recv operation to complete")


def test_the_rank_that_the_others_waited_for_is_named(
    beating: Callable[[int, float, float], None], tmp_path: Path
) -> None:
    for rank, step in ((0, 61.0), (1, 60.0), (2, 75.0), (3, 62.0)):
        beating(rank, 1.0, step)
    lost = distributed.absence(GLOO, tmp_path, World(0, 4), 60)
    assert isinstance(lost, ProcessLost)
    assert str(lost).startswith(
        "rank 2 did not answer the others for 60 s (arguments.ddp_timeout); it still runs, but it last moved on at 20"
    )
    beating(3, 40.0, 62.0)
    assert "rank 3 did" in str(lost := distributed.absence(GLOO, tmp_path, World(0, 4), 60))
    assert "it gives no sign of life, and it last moved on" in str(lost)


def test_an_error_about_something_else_names_no_rank(
    beating: Callable[[int, float, float], None], tmp_path: Path
) -> None:
    assert distributed.absence(GLOO, tmp_path, World(0, 2), 60) is None  # the other has ended
    beating(1, 1.0, 70.0)
    assert distributed.absence(RuntimeError("shapes do not match"), tmp_path, World(0, 2), 60) is None


LAUNCHED = """\
name: launched
launch: LAUNCH
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, task: builtin/python-docs}
"""


@pytest.mark.parametrize(
    ("launch", "lacking"),
    [
        (
            "{profile: zero3, num_processes: 2}",
            "the profile zero3 needs the package deepspeed, which is not installed",
        ),
        (
            "{profile: fsdp2}",
            r"the profile fsdp2 needs at least 2 processes, and launch.num_processes: auto is 1 here",
        ),
        (
            "{num_processes: 4, hosts: 2}",
            "launch.hosts is 2, and this run was started on 1; start it on each of 2 hosts",
        ),
    ],
)
def test_a_profile_that_this_machine_cannot_do_is_refused_before_anything_loads(
    launch: str, lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.core.launch.find_spec", lambda name: None)
    monkeypatch.setattr(hardware, "processes", lambda asked: 1 if asked == "auto" else asked)
    with pytest.raises(IncompatibleError, match=lacking):
        run(loads(LAUNCHED.replace("LAUNCH", launch)), tmp_path / "run", StageStore(tmp_path / "home"))
    assert not list((tmp_path / "home").glob("stages/*"))

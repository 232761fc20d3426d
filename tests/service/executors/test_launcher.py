import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from service.executors import launcher, process_tree, records
from service.executors.isolation import NONE
from service.executors.local import LocalExecutor, marked
from service.executors.protocol import Exited, HostCapacity, Placement
from service.executors.records import read_console, tail
from tests.service.executors.worlds import HOST, ended, local_world, printed, until
from tests.words import words_of


@pytest.fixture
def world(tmp_path):
    with local_world(cgroups=True) as world:
        world.folder = tmp_path
        yield world


@pytest.fixture
def start(world):
    handles = []

    def start(script, **more):
        spec = world.spec(world.folder, script, **more)
        spec.folder.mkdir(exist_ok=True)
        handles.append(world.executor.start(spec))
        return spec, handles[-1]

    yield start
    for handle in handles:
        world.executor.kill(handle)


def test_it_imports_nothing_but_light_modules_of_the_standard_library():
    """It starts once for each attempt: what it imports delays every one of them."""
    names = set()
    for module in (launcher, process_tree, records):
        top = ast.parse(Path(module.__file__).read_text()).body
        names |= {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in top if isinstance(node, ast.ImportFrom)}
    ours = {f"service.executors.{name}" for name in ("process_tree", "records")}
    assert names == ours | set(words_of("__future__ ctypes fcntl json os resource select signal sys time"))


def test_a_start_costs_little_processor_time(world):
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    spec = world.spec(world.folder, "exit 0")
    handle = world.executor.start(spec)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended(world.executor, handle)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.2, "20 ms on a quiet machine"


def test_the_console_is_rotated_and_its_end_is_kept(world, start):
    spec, handle = start(
        "i=0; while [ $i -lt 400 ]; do echo line-$i-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; i=$((i+1)); done",
        log_bytes=2000,
        log_files=3,
    )
    ended(world.executor, handle)
    files = sorted((spec.record / "console").iterdir())
    assert 1 < len(files) <= 3
    whole = "".join(f"line-{i}-{'x' * 40}\n" for i in range(400)).encode()
    kept = printed(world.executor, handle)
    assert whole.endswith(kept)
    assert len(kept) >= 2000
    begin = int(files[0].stem)
    assert whole[begin:] == kept, "each file is named by the offset of its first byte"
    middle = begin + 777
    assert b"".join(read_console(spec.record, middle)) == whole[middle:]
    assert tail(spec.record, 60).endswith(f"line-399-{'x' * 40}\n")
    assert len(tail(spec.record, 60)) == 60


def test_what_is_printed_faster_than_it_can_be_kept_does_not_deafen_it(world, start):
    _, handle = start(
        "trap 'exit 75' TERM; while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
        log_bytes=10_000,
        log_files=1,
    )
    time.sleep(0.2)
    world.executor.stop(handle, 20)
    assert ended(world.executor, handle) == Exited(75, "", asked=True)


def test_files_are_the_owner_s_alone(world, start):
    spec, handle = start("touch made")
    ended(world.executor, handle)
    for path in (
        spec.record,
        spec.record / "exit.json",
        spec.record / "launcher.json",
        spec.record / "console",
        spec.folder / "made",
    ):
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_run_leads_a_session_apart_from_the_service_and_dies_first_when_memory_runs_out(world, start):
    _, handle = start("sleep 100")
    child = handle.record["child_pid"]
    assert os.getsid(child) != os.getsid(0)
    assert int(Path(f"/proc/{child}/oom_score_adj").read_text()) == 500
    assert int(Path(f"/proc/{handle.record['launcher_pid']}/oom_score_adj").read_text()) == int(
        Path("/proc/self/oom_score_adj").read_text()
    )


def test_zombies_of_the_attempt_are_reaped_while_it_runs(world, start):
    _, handle = start("for i in 1 2 3 4 5; do (sh -c 'exit 0' &) ; done; echo up; sleep 100")
    until(lambda: printed(world.executor, handle) == b"up\n")

    def zombies():
        mine = handle.record["launcher_pid"]
        fields = [
            path.read_bytes().rpartition(b")")[2].split() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()
        ]
        return [each for each in fields if each[0] == b"Z" and int(each[1]) == mine]

    until(lambda: zombies() == [], 5)


def test_a_frozen_launcher_is_ended_by_force(world, start):
    spec, handle = start("sleep 100 & sleep 100")
    os.kill(handle.record["launcher_pid"], signal.SIGSTOP)
    assert world.executor.kill(handle, timeout=2) is True
    assert marked(spec.attempt_id) == []


def test_another_process_under_a_recycled_id_is_neither_taken_for_it_nor_harmed(world, start):
    spec, handle = start("exit 0")
    ended(world.executor, handle)
    until(lambda: process_tree.start_time(handle.record["launcher_pid"]) == 0)
    (spec.record / "exit.json").unlink()
    with subprocess.Popen(["sleep", "100"]) as stranger:
        record = {**handle.record, "launcher_pid": stranger.pid, "child_pid": stranger.pid}
        recycled = type(handle)("local", handle.attempt_id, 1, record)
        assert world.executor.poll(recycled) == world.executor.poll(handle)
        assert world.executor.kill(recycled) is True
        assert stranger.poll() is None
        stranger.kill()


def test_after_a_reboot_nothing_of_it_lives(world, start):
    spec, handle = start("exit 0")
    ended(world.executor, handle)
    until(lambda: process_tree.start_time(handle.record["launcher_pid"]) == 0)
    (spec.record / "exit.json").unlink()
    earlier = type(handle)("local", handle.attempt_id, 1, {**handle.record, "boot": "another"})
    assert "started anew" in world.executor.poll(earlier).why
    assert world.executor.kill(earlier) is True


def test_what_is_tethered_ends_with_who_started_it(tmp_path):
    code = f"""
import json, sys, time
from pathlib import Path
from service.executors.local import LocalExecutor
from service.executors.protocol import AttemptSpec, HostCapacity
folder = Path({str(tmp_path)!r})
spec = AttemptSpec("attempt-tether-{os.getpid()}", "job", 1, ("/bin/sh", "-c", "sleep 100 & sleep 100"), folder, folder / "attempts" / "a", {{"PATH": "/bin:/usr/bin"}})
print(json.dumps(dict(LocalExecutor(HostCapacity("here", 1, 0), tethered=True).start(spec).record)), flush=True)
time.sleep(100)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.getcwd()}
    ) as starter:
        record = json.loads(starter.stdout.readline())
        until(lambda: len(marked(record["attempt_id"])) == 3)
        starter.kill()
    until((tmp_path / "attempts" / "a" / "exit.json").exists)
    assert json.loads((tmp_path / "attempts" / "a" / "exit.json").read_text())["tether_lost"] is True
    assert marked(record["attempt_id"]) == []


def test_gpus_are_those_of_the_placement_and_none_without_one(tmp_path):
    from dataclasses import replace

    from service.executors.protocol import Gpu

    executor = LocalExecutor(HostCapacity(HOST, 2, 8 << 30, (Gpu(0), Gpu(1), Gpu(2))))
    with local_world(cgroups=True) as world:
        for number, (gpus, seen) in enumerate([((0, 2), b"0,2"), ((), b"")]):
            spec = replace(
                world.spec(tmp_path, 'echo "[$CUDA_VISIBLE_DEVICES]"', job=f"job-{number}"),
                placements=(Placement(HOST, gpus),),
            )
            handle = executor.start(spec)
            ended(executor, handle)
            assert printed(executor, handle) == b"[" + seen + b"]\n"


def test_a_placement_on_another_host_is_refused(world):
    from dataclasses import replace

    from service.executors.protocol import ExecutorError

    for placements in ((Placement("elsewhere"),), (Placement(HOST), Placement("elsewhere"))):
        spec = replace(world.spec(world.folder, "touch started"), placements=placements)
        with pytest.raises(ExecutorError, match=f"runs on {HOST} alone"):
            world.executor.start(spec)
        assert not (spec.folder / "started").exists()


ALLOCATES = "import time; a = bytearray({mib} << 20); a[::4096] = b'x' * len(a[::4096]); print('all', flush=True); time.sleep(0.8)"


@pytest.mark.parametrize("mode", ["none", "bubblewrap", "landlock"])
def test_an_attempt_that_takes_more_memory_than_it_may_is_ended_and_told_so(tmp_path, mode):
    with local_world(cgroups=False, isolation=NONE if mode == "none" else mode) as world:
        executor = LocalExecutor(
            HostCapacity(HOST, 2, 8 << 30), cgroups=False, isolation=world.executor.isolation, attempt_memory=200 << 20
        )
        for number, (mib, end) in enumerate([(400, Exited(-9, "out_of_memory")), (50, Exited(0))]):
            spec = world.spec(
                tmp_path, f'"{sys.executable}" -c "{ALLOCATES.format(mib=mib)}" & wait $!', job=f"job-{number}"
            )
            spec.folder.mkdir()
            handle = executor.start(spec)
            assert ended(executor, handle) == end, printed(executor, handle)
            assert marked(spec.attempt_id) == []


def test_memory_that_processes_share_counts_once(tmp_path):
    """Three children of a process of 120 MB are no 480 MB."""
    code = "import os, time; a = bytearray(120 << 20); [os.fork() for _ in range(2)]; print('up', flush=True); time.sleep(1.2)"
    with local_world(cgroups=False) as world:
        executor = LocalExecutor(HostCapacity(HOST, 2, 8 << 30), cgroups=False, attempt_memory=200 << 20)
        spec = world.spec(tmp_path, f'exec "{sys.executable}" -c "{code}"')
        spec.folder.mkdir()
        handle = executor.start(spec)
        assert ended(executor, handle) == Exited(0), printed(executor, handle)


def test_processes_that_end_while_they_are_counted_count_once(monkeypatch):
    """What one shared falls to those that are read after its end."""
    code = (
        "import os, time; a = bytearray(160 << 20); [os.fork() for _ in range(2)]; os.write(1, b'up'); time.sleep(60)"
    )
    started = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    proportional, parts = process_tree._proportional, {}

    def ends_the_one_before(pid):
        if parts and pid not in parts:
            before = list(parts)[-1]
            os.kill(before, signal.SIGKILL)
            until(lambda: not process_tree.start_time(before))  # its pages go after its own count of them
        part = proportional(pid)
        parts.setdefault(pid, part)
        return part

    try:
        assert started.stdout.read(8) == b"up" * 4
        assert not process_tree.MemoryWatch(150 << 20).exceeded(started.pid)
        monkeypatch.setattr(process_tree, "_proportional", ends_the_one_before)
        assert not process_tree.MemoryWatch(150 << 20).exceeded(started.pid)
        assert sum(parts.values()) > 150 << 20
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def test_the_kernel_s_count_of_memory_kills_is_read(tmp_path):
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n")
    assert process_tree.memory_kills(str(tmp_path)) == 2
    assert process_tree.memory_kills(str(tmp_path / "nothing")) >= 0

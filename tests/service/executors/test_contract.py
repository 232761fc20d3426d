"""What every executor promises. The docker suite runs against an engine stand-in (see engine_stand_in.py), not a real engine."""

import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.executors.isolation import Isolation
from service.executors.landlock import abi
from service.executors.protocol import Executor, ExecutorError, Exited, Lost, Running
from service.executors.registry import EXECUTORS
from tests.service.executors.worlds import (
    alive,
    docker_world,
    ended,
    local_world,
    printed,
    ray_world,
    registered_world,
    slurm_world,
    until,
    warm_world,
)

WORLDS = {
    "local": lambda folder: local_world(cgroups=True),
    "local-without-cgroups": lambda folder: local_world(cgroups=False),
    "local-forked": lambda folder: warm_world(),
    "local-in-bubblewrap": lambda folder: local_world(cgroups=True, isolation="bubblewrap"),
    "local-in-landlock": lambda folder: local_world(cgroups=True, isolation="landlock"),
    "local-in-landlock-without-namespaces": lambda folder: local_world(
        cgroups=False, isolation=Isolation("landlock", (), abi())
    ),
    "docker-on-a-recorded-engine": docker_world,
}
AS_THEY_ARE = [name for name in EXECUTORS if name not in ("local", "docker", "ray", "slurm")]
"""Executors that need nothing around them."""


LONG = ("local-without-cgroups", "local-forked", "local-in-landlock", "ray", "slurm")
"""The rest says as much in less time: no cgroup in the one without namespaces, namespaces in the one of bubblewrap."""


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.long if name in LONG else ())
        for name in (*WORLDS, *AS_THEY_ARE, "ray", "slurm")
    ]
)
def world(request):
    # a unix socket's path may have 107 characters at most; pytest's folders are longer
    later = request.param == "slurm"  # its own processes leave a moment after the attempt's, and may still log
    with tempfile.TemporaryDirectory(prefix="finery-", ignore_cleanup_errors=later) as folder, ExitStack() as stack:
        if request.param == "ray":
            world = ray_world(request.getfixturevalue("ray_cluster"))
        elif request.param == "slurm":
            world = slurm_world(request.getfixturevalue("slurm_daemons"))
        elif request.param in AS_THEY_ARE:
            world = registered_world(Path(folder), request.param)
        else:
            world = stack.enter_context(WORLDS[request.param](Path(folder)))
        world.folder = Path(folder)
        world.handles = []
        yield world
        for handle in world.handles:
            world.executor.kill(handle)


@pytest.fixture
def start(world):
    def start(script, **more):
        spec = world.spec(world.folder, script, **more)
        spec.folder.mkdir(exist_ok=True)
        handle = world.executor.start(spec)
        world.handles.append(handle)
        return spec, handle

    return start


TREE = "sleep 100 & (sleep 100 &) ; echo up; sleep 100"
"""A child, an orphan, and the shell itself."""


def test_it_is_an_executor(world):
    assert isinstance(world.executor, Executor)
    assert world.host in [host.name for host in world.executor.capacity() if host.alive]


def test_an_attempt_runs_in_its_folder_and_its_exit_code_is_told(world, start):
    spec, handle = start("pwd; exit 3")
    assert ended(world.executor, handle) == Exited(3, "", asked=False)
    assert Path(printed(world.executor, handle).decode().strip()).samefile(spec.folder)


def test_the_end_is_told_again_however_often_it_is_asked(world, start):
    _, handle = start("exit 0")
    assert ended(world.executor, handle) == world.executor.poll(handle) == Exited(0)


def test_a_signal_from_elsewhere_is_told_as_a_negative_code(world, start):
    _, handle = start("kill -9 $$")
    assert ended(world.executor, handle) == Exited(-9, "", asked=False)


def test_it_sees_its_environment_and_reads_its_secrets_from_files_that_are_gone_afterwards(world, start, monkeypatch):
    monkeypatch.setenv("OF_THE_SERVICE", "hidden")
    script = 'env; stat -c "mode %a" "$FINERY_SECRETS" "$HF_TOKEN_PATH"; echo "read $(tr a-z A-Z < "$FINERY_SECRETS/HF_TOKEN")"'
    spec, handle = start(script, environment={"GIVEN": "a b"}, secrets={"HF_TOKEN": "s3cret-value"})
    ended(world.executor, handle)
    lines = printed(world.executor, handle).decode().splitlines()
    assert "GIVEN=a b" in lines
    assert "read S3CRET-VALUE" in lines
    assert [line for line in lines if line.startswith("mode ")] == ["mode 700", "mode 600"]
    assert not [line for line in lines if "s3cret-value" in line or line.startswith(("HF_TOKEN=", "OF_THE_SERVICE"))]
    assert not (spec.record / "secrets").exists()
    written = [
        path
        for path in spec.folder.rglob("*")
        if path.is_file() and "console" not in path.parts and b"s3cret-value" in path.read_bytes()
    ]
    assert written == []
    assert "s3cret-value" not in json.dumps(dict(handle.record)) + repr(spec)


def test_both_output_streams_are_kept_in_order_and_read_from_any_byte(world, start):
    _, handle = start("echo one; echo two >&2; echo three")
    ended(world.executor, handle)
    assert printed(world.executor, handle) == b"one\ntwo\nthree\n"
    assert printed(world.executor, handle, after=4) == b"two\nthree\n"
    assert printed(world.executor, handle, after=14) == b""


def test_a_running_attempt_s_log_can_be_read(world, start):
    _, handle = start("echo early; sleep 100")
    until(lambda: printed(world.executor, handle) == b"early\n")
    assert isinstance(world.executor.poll(handle), Running)


def test_starting_twice_starts_once(world, start):
    spec, first = start("echo x >> times; sleep 100")
    until(lambda: (spec.folder / "times").is_file() and (spec.folder / "times").read_text() == "x\n")
    again = world.make().start(spec)
    assert again == first
    assert (spec.folder / "times").read_text() == "x\n"


def test_starting_again_after_the_end_does_not_run_it_again(world, start):
    spec, first = start("echo x >> times")
    ended(world.executor, first)
    assert world.executor.start(spec) == first
    assert world.executor.poll(first) == Exited(0)
    assert (spec.folder / "times").read_text() == "x\n"


def test_a_stop_is_a_sigterm_that_the_attempt_may_answer_in_its_own_time(world, start):
    spec, handle = start("trap 'echo saved; exit 75' TERM; echo ready; while :; do sleep 0.02; done")
    until(lambda: printed(world.executor, handle) == b"ready\n")
    world.executor.stop(handle, grace=20)
    assert ended(world.executor, handle) == Exited(75, "", asked=True)
    assert printed(world.executor, handle) == b"ready\nsaved\n"
    assert alive(spec.attempt_id) == []


def test_what_does_not_stop_in_time_is_killed(world, start):
    spec, handle = start("trap '' TERM; echo ready; while :; do sleep 0.02; done")
    until(lambda: printed(world.executor, handle) == b"ready\n")
    world.executor.stop(handle, grace=0.2)
    assert ended(world.executor, handle) == Exited(-9, "", asked=True)
    assert alive(spec.attempt_id) == []


def test_a_stop_asked_for_by_one_service_is_carried_out_under_the_next(world, start):
    _, handle = start("trap '' TERM; echo ready; while :; do sleep 0.02; done")
    until(lambda: printed(world.executor, handle) == b"ready\n")
    world.executor.stop(handle, grace=0.3)
    assert ended(world.make(), handle) == Exited(-9, "", asked=True)


def test_kill_ends_the_whole_tree_and_says_so(world, start):
    spec, handle = start(TREE)
    until(lambda: len(alive(spec.attempt_id)) >= 4 and printed(world.executor, handle) == b"up\n")
    assert world.executor.kill(handle) is True
    assert alive(spec.attempt_id) == []
    assert world.executor.poll(handle) == Exited(-9, "", asked=True)
    assert world.executor.kill(handle) is True


def test_what_an_attempt_leaves_behind_ends_with_it(world, start):
    spec, handle = start("sleep 100 & (sleep 100 &) ; exit 0")
    assert ended(world.executor, handle) == Exited(0)
    assert alive(spec.attempt_id) == []


def test_an_attempt_whose_keeper_vanished_is_lost_and_can_be_proven_dead(world, start):
    spec, handle = start(TREE)
    until(lambda: len(alive(spec.attempt_id)) >= 4)
    if world.lose is None:
        pytest.skip("nothing here can lose an attempt of it")
    world.lose(handle)
    assert isinstance(ended(world.executor, handle), Lost)
    assert world.executor.kill(handle) is True
    assert alive(spec.attempt_id) == []
    assert isinstance(world.executor.poll(handle), Lost)


def test_a_restarted_service_finds_what_runs_and_what_ended(world, start):
    _, running = start("sleep 100", job="job-1")
    _, done = start("exit 4", job="job-2")
    ended(world.executor, done)
    later = world.make()
    assert later.reattach(json.loads(json.dumps(dict(running.record)))) == running
    assert isinstance(later.poll(running), Running)
    assert later.poll(later.reattach(dict(done.record))) == Exited(4)


def test_a_restarted_service_finds_an_attempt_whose_handle_was_never_stored(world, start):
    spec, handle = start("sleep 100")
    known = {"attempt_id": spec.attempt_id, "fencing_token": 1, "folder": str(spec.folder), "record": str(spec.record)}
    assert world.make().reattach(known) == handle


def test_an_attempt_that_left_no_trace_cannot_start_after_it_was_looked_for(world):
    spec = world.spec(world.folder, "touch started")
    spec.folder.mkdir()
    known = {"attempt_id": spec.attempt_id, "fencing_token": 1, "folder": str(spec.folder), "record": str(spec.record)}
    assert world.executor.reattach(known) is None
    if world.host != "engine-host":  # there is no process between this one and the engine that could come late
        with pytest.raises(ExecutorError, match="already started"):
            world.executor.start(spec)
        assert not (spec.folder / "started").exists()


@pytest.mark.parametrize(
    "world",
    [
        "local",
        "docker-on-a-recorded-engine",
        *AS_THEY_ARE,
        *(pytest.param(name, marks=pytest.mark.long) for name in ("ray", "slurm")),
    ],
    indirect=True,
)
def test_a_second_attempt_of_a_job_cannot_start_beside_the_first(world, start):
    """The launcher waits seconds for the lock, before it isolates anything."""
    spec, _ = start("sleep 100", token=1)
    with pytest.raises(ExecutorError, match="another attempt of this job still runs"):
        start("touch second", token=2)
    assert not (spec.folder / "second").exists()


def test_an_older_attempt_cannot_start_after_a_newer_one(world, start):
    spec, handle = start("exit 0", token=5)
    ended(world.executor, handle)
    with pytest.raises(ExecutorError, match="stale"):
        start("touch older", token=4)
    assert not (spec.folder / "older").exists()


def test_the_next_attempt_starts_as_soon_as_the_last_has_ended(world, start):
    _, first = start("exit 75", token=1)
    ended(world.executor, first)
    _, second = start("exit 0", token=2)
    assert ended(world.executor, second) == Exited(0)


def test_a_command_that_is_not_there_ends_or_is_refused_with_its_name(world):
    spec = world.spec(world.folder, "")
    spec.folder.mkdir()
    spec = type(spec)(**{**vars(spec), "command": ("/no/such/program",)})
    if world.host == "engine-host":  # the engine looks for it before it starts anything
        with pytest.raises(ExecutorError, match="/no/such/program"):
            world.executor.start(spec)
    else:
        handle = world.executor.start(spec)
        assert ended(world.executor, handle) == Exited(127)
        assert b"No such file" in printed(world.executor, handle)


def test_nothing_of_it_is_left_in_this_process(world, start):
    before = len(os.listdir("/proc/self/fd"))
    for job in ("job-1", "job-2", "job-3"):
        _, handle = start("exit 0", job=job)
        ended(world.executor, handle)
    assert len(os.listdir("/proc/self/fd")) <= before + 1

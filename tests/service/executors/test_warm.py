"""Attempts that are forked from a warm interpreter: what they see and leave is what those of a new one do."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from service.executors import local, warm
from service.executors.isolation import NONE, tried
from service.executors.local import LocalExecutor, marked
from service.executors.process_tree import start_time
from service.executors.protocol import AttemptSpec, Exited, HostCapacity, Placement, Sandbox
from tests.conftest import REPOSITORY
from tests.service.executors.worlds import HOST, PROGRAM, ended, printed, until

LOOKS = """
import atexit, json, os, resource, signal, sys, tempfile, threading
with open("/proc/self/environ", "rb") as file:
    shown = [part for part in file.read().split(b"\\0") if part.startswith(b"FINERY_ATTEMPT_ID=")]
files = {}
for name in os.listdir("/proc/self/fd"):
    try:
        files[name] = os.readlink("/proc/self/fd/" + name).partition(":")[0]
    except OSError:
        pass
print(json.dumps({
    "words": sys.argv[1:],
    "environment": dict(os.environ),
    "shown": [each.decode() for each in shown],
    "files": files,
    "signals": {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGTERM", "SIGINT", "SIGPIPE", "SIGCHLD", "SIGHUP")},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "umask": os.umask(0o77),
    "folder": os.getcwd(),
    "files allowed": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "leader": os.getpgid(0) == os.getpid(),
    "threads": threading.active_count(),
    "in main": threading.current_thread() is threading.main_thread(),
    "temporary": tempfile.gettempdir(),
    "input": sys.stdin.read(),
    "flags": str(sys.flags),
    "path": sys.path[1:],
}))
"""
LEAVES = """
import atexit, os, sys, threading, time
atexit.register(print, "at its exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("its thread"))).start()
print("its words", end=" ")
print("its complaint", file=sys.stderr)
sys.exit({code})
"""


@pytest.fixture(params=["none", "landlock"])
def isolation(request):
    given = NONE if request.param == "none" else tried(request.param)
    if isinstance(given, str) or (given.kept and "namespaces" not in given.features):
        pytest.skip(f"this machine does not isolate so: {given}")
    return given


class Both:
    """One executor with a warm interpreter and one without, on the same folder."""

    def __init__(self, folder, isolation, most=1):
        host = HostCapacity(HOST, 2, 8 << 30)
        self.folder = folder
        self.cold = LocalExecutor(host, isolation=isolation)
        self.warm = LocalExecutor(host, isolation=isolation, warm=most)
        self.count = 0

    def spec(self, *words, **variables):
        self.count += 1
        attempt = f"attempt-{os.getpid()}-{time.time_ns()}-{self.count}"
        job = self.folder / f"job-{self.count}"
        return AttemptSpec(
            attempt_id=attempt,
            job_id=job.name,
            fencing_token=1,
            command=(*PROGRAM, *map(str, words)),
            folder=job,
            record=job / "attempts" / attempt,
            environment={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), **variables},
            placements=(Placement(HOST),),
            sandbox=Sandbox(read=(str(REPOSITORY / "tests"),), write=(str(job),), hidden=(str(self.folder),)),
        )

    def run(self, executor, *words, **variables):
        """How an attempt ended and what it printed."""
        handle = executor.start(self.spec(*words, **variables))
        return ended(executor, handle), printed(executor, handle).decode()

    def kept(self):
        return list(self.warm._warm._kept.values())

    def ready(self, **variables):
        """The interpreter that the first attempt leads to."""
        assert self.run(self.warm, "-c", "", **variables)[0] == Exited(0)
        kept = self.kept()[-1]
        until(kept.ready)
        return kept


@pytest.fixture
def both(home, isolation):
    made = Both(home, isolation)
    yield made
    made.warm.close()
    made.cold.close()


@pytest.fixture
def home(tmp_path_factory):
    import tempfile

    # not below /tmp, where an isolated attempt has its own
    with tempfile.TemporaryDirectory(prefix="finery-", dir="/var/tmp") as folder:
        yield Path(folder)


def alike(looked):
    """Without what differs between any two attempts."""
    own = {
        "FINERY_ATTEMPT_ID",
        "FINERY_SECRETS",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "http_proxy",
        "https_proxy",
        "FINERY_EGRESS",
    }
    looked["environment"] = {name: value for name, value in looked["environment"].items() if name not in own}
    looked.pop("folder"), looked.pop("shown")
    return looked


def test_a_forked_attempt_sees_what_one_in_a_new_interpreter_sees(both):
    interpreter = both.ready()
    looks = []
    for executor in (both.cold, both.warm):
        end, text = both.run(executor, "-c", LOOKS, "a word", "--another", OMP_NUM_THREADS="1", FINERY_HOME="/x")
        assert end == Exited(0), text
        looks.append(json.loads(text))
    for number, looked in enumerate(looks):
        assert looked["shown"] == [f"FINERY_ATTEMPT_ID={looked['environment']['FINERY_ATTEMPT_ID']}"]
        assert looked["folder"].endswith(f"job-{number + 2}")
    assert alike(looks[1]) == alike(looks[0])
    assert both.kept() == [interpreter]


def test_an_attempt_that_ends_while_it_is_looked_at_leads_to_an_interpreter_too(both, monkeypatch):
    read, alive, late = local._read, local._alive, []

    def reading(handle, name):
        found = read(handle, name)
        if found is None or late:
            return found
        late.append(name)  # it was not there yet, and the launcher is gone when it is asked for
        return None

    monkeypatch.setattr(local, "_read", reading)
    monkeypatch.setattr(local, "_alive", lambda record, name: not late and alive(record, name))
    assert both.run(both.warm, "-c", "")[0] == Exited(0)
    assert late == ["exit.json"]
    assert len(both.kept()) == 1


@pytest.mark.parametrize("code", [0, 3, "'why'"])
def test_a_forked_attempt_ends_as_one_in_a_new_interpreter_ends(both, code):
    both.ready()
    cold, forked = (both.run(executor, "-c", LEAVES.format(code=code)) for executor in (both.cold, both.warm))
    assert forked[0] == cold[0] == Exited(code if isinstance(code, int) else 1)
    assert sorted(forked[1].split()) == sorted(cold[1].split())


def test_attempts_of_another_environment_have_another_interpreter_and_the_last_used_are_kept(home):
    both = Both(home, NONE, most=2)
    try:
        first, second = both.ready(HF_HOME="/a"), both.ready(HF_HOME="/b")
        both.run(both.warm, "-c", "", HF_HOME="/a", FINERY_HOME="/elsewhere", CUDA_VISIBLE_DEVICES="1")
        assert both.kept() == [second, first]
        third = both.ready(HF_HOME="/c")
        assert both.kept() == [first, third]
        assert second.ended()
    finally:
        both.warm.close()
    assert first.ended()
    assert third.ended()


def test_an_attempt_outlives_its_interpreter_and_the_next_one_starts_anew(both):
    interpreter = both.ready()
    handle = both.warm.start(both.spec("-c", "import time; print('begun', flush=True); time.sleep(60)"))
    until(lambda: printed(both.warm, handle) == b"begun\n")
    interpreter.process.kill()
    interpreter.process.wait()
    assert start_time(handle.record["launcher_pid"]) == handle.record["launcher_start"]
    end, text = both.run(both.warm, "-c", "print('anew')")
    assert (end, text) == (Exited(0), "anew\n")
    until(lambda: both.kept() and both.kept()[0].ready())  # and one is made for those after it
    assert both.kept()[0] is not interpreter
    assert both.warm.kill(handle)
    assert marked(handle.attempt_id) == []


def test_what_is_tethered_is_forked_once_one_needs_the_processor_no_longer_and_ends_with_its_starter(home, isolation):
    both = Both(home, isolation)
    both.warm.close()
    both.warm = LocalExecutor(HostCapacity(HOST, 2, 8 << 30), tethered=True, isolation=isolation, warm=1)
    try:
        assert both.run(both.warm, "-c", "")[0] == Exited(0)
        assert both.kept() == [], "what has ended leads to none"
        wait = both.spec("-c", "import time; print('begun', flush=True); time.sleep(60)")
        first = both.warm.start(wait)
        until(lambda: printed(both.warm, first) == b"begun\n")
        both.warm.keep_warm(first)
        until(lambda: both.kept()[0].ready())
        second = both.warm.start(replace(both.spec(), command=wait.command))
        until(lambda: printed(both.warm, second) == b"begun\n")
        launchers = [Path(f"/proc/{each.record['launcher_pid']}/cmdline").read_bytes() for each in (first, second)]
        assert [b"service.executors.warm" in words for words in launchers] == [False, True]
    finally:
        both.warm.close()
        both.cold.close()
    for handle in (first, second):
        until(lambda handle=handle: (Path(handle.record["record"]) / "exit.json").exists())
        assert marked(handle.attempt_id) == []


def test_a_grandchild_that_the_launcher_can_no_longer_end_is_found_by_its_mark(home):
    both = Both(home, NONE)
    both.warm._cgroups = False
    try:
        both.ready()
        code = "import os, time\nif os.fork(): time.sleep(60)\nos.setsid()\nprint('begun', flush=True)\ntime.sleep(60)"
        handle = both.warm.start(both.spec("-c", code))
        until(lambda: b"begun" in printed(both.warm, handle))
        os.kill(handle.record["launcher_pid"], signal.SIGKILL)
        until(lambda: start_time(handle.record["launcher_pid"]) == 0)
        assert marked(handle.attempt_id)
        assert both.warm.kill(handle)
        assert marked(handle.attempt_id) == []
    finally:
        both.warm.close()


def test_a_proxy_with_a_password_a_token_of_the_hub_and_bwrap_are_served_by_new_interpreters():
    command = [sys.executable, "-m", "anything"]
    places = {"mode": "landlock", "features": ["namespaces", "user"], "egress": {"upstream": "http://proxy:80"}}
    assert warm.may_be_forked({"command": command, "environment": {}, "sandbox": places})
    refused = [
        {"command": command, "environment": {"HF_TOKEN_PATH": "/x"}},
        {"command": command, "environment": {}, "sandbox": places | {"egress": {"upstream": "http://me:secret@proxy"}}},
        {"command": command, "environment": {"http_proxy": "http://me:secret@proxy"}, "sandbox": places},
        {"command": command, "environment": {}, "sandbox": places | {"mode": "bubblewrap"}},
        {"command": command, "environment": {}, "sandbox": places | {"features": []}},
        {"command": ["/bin/sh", "-c", "true"], "environment": {}},
    ]
    assert [warm.may_be_forked(request) for request in refused] == [False] * 6


def test_an_interpreter_ends_with_its_service(home):
    code = f"""
import os, sys, time
from pathlib import Path
from service.executors.isolation import NONE
from tests.service.executors.test_warm import Both
both = Both(Path({str(home)!r}), NONE)
print(both.ready().process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        check=False,
    )
    pid = int(done.stdout)
    until(lambda: start_time(pid) == 0)

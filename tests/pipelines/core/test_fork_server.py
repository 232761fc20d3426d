"""The fork server with a `main` of the test's own, which does what its words say."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import psutil
import pytest

from pipelines.core import fork_server
from pipelines.core.fork_server import ForkServer, ForkServerEnded, can_fork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux only")
REPOSITORY = Path(__file__).resolve().parents[3]


def main(words):
    """What the forked process does."""
    match words:
        case ["exit", code]:
            return int(code)
        case ["say", text]:
            sys.exit(text)
        case ["die"]:
            print("unfinished", end="")
            os.kill(os.getpid(), signal.SIGKILL)
        case ["interrupt"]:
            raise KeyboardInterrupt
        case ["break"]:
            raise ValueError("a bug")
        case ["show"]:
            print(
                json.dumps(
                    {
                        "folder": os.getcwd(),
                        "environment": dict(os.environ),
                        "stdin": sys.stdin.read(),
                        "words": sys.argv[1:],
                        "files": [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.exists()],
                        "handlers": [
                            signal.getsignal(each) is signal.SIG_DFL for each in (signal.SIGTERM, signal.SIGCHLD)
                        ],
                        "ignored": signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
                        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
                        "group": os.getpgid(0),
                        "random": random.random(),
                    }
                )
            )
        case ["wait"]:
            print("ready", flush=True)
            while True:
                time.sleep(60)
    return 0


@pytest.fixture
def server():
    with ForkServer(main) as made:
        yield made


def started(server, folder, *words):
    log = next(path for number in count() if not (path := folder / f"{number}.log").exists())
    log.touch()
    return server.start(words, {}, folder, log)


def waited_for(path, text="ready"):
    end = time.monotonic() + 20
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_ends_as_a_program_does(server, tmp_path):
    words = [("exit", "0"), ("exit", "75"), ("say", "no"), ("die",), ("interrupt",), ("break",)]
    processes = [started(server, tmp_path, *each) for each in words]
    assert [each.wait() for each in processes] == [0, 75, 1, -signal.SIGKILL, -signal.SIGINT, 1]
    said = [(tmp_path / f"{number}.log").read_text() for number in range(len(words))]
    assert said[:4] == ["", "", "no\n", "unfinished"]  # nothing waits in a buffer for a process that is killed
    assert "ValueError: a bug" in said[5]


def test_a_process_has_nothing_of_its_neighbours(tmp_path, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    handled = signal.signal(signal.SIGTERM, lambda *_: None)  # as libraries do
    try:
        server = ForkServer(main)
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.signal(signal.SIGTERM, handled)
    monkeypatch.setenv("LATER", "set in the parent alone")
    held = (tmp_path / "held").open("w")
    inner = tmp_path / "inner"
    inner.mkdir()
    with server, held:
        for number, own in enumerate(("one", "two")):
            assert server.start(["show"], {"OWN": own}, inner, tmp_path / f"{number}.log").wait() == 0
    one, two = (json.loads((tmp_path / f"{number}.log").read_text()) for number in range(2))
    assert one["environment"] == {"OWN": "one"}
    assert (one["folder"], one["words"], one["stdin"]) == (str(inner), ["show"], "")
    assert one["handlers"] == [True, True]
    assert (one["ignored"], one["blocked"], one["group"]) == (True, [], os.getpgid(0))
    assert str(tmp_path / "0.log") in one["files"]
    assert str(held.name) not in one["files"] + two["files"]
    assert one["random"] != two["random"]


def test_a_signal_reaches_a_process_that_has_not_yet_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server, "die_with_parent", lambda *_: time.sleep(0.3))  # what a process does first
    with ForkServer(main) as server:
        process = started(server, tmp_path, "exit", "0")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
        process.send_signal(signal.SIGTERM)  # to nobody


def test_a_server_that_is_killed_takes_its_processes_along(server, tmp_path):
    process = started(server, tmp_path, "wait")
    waited_for(tmp_path / "0.log")
    assert process.poll() is None
    child = psutil.Process(process.pid)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ForkServerEnded):
        process.wait()
    with pytest.raises(ForkServerEnded):
        started(server, tmp_path, "exit", "0")
    psutil.wait_procs([child], timeout=20)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_parent_that_is_killed_leaves_neither_server_nor_process(tmp_path):
    script = (
        "import os, sys; from pathlib import Path\n"
        "from tests.pipelines.core.test_fork_server import *\n"
        "server, place = ForkServer(main), Path(sys.argv[1])\n"
        "process = started(server, place, 'wait')\n"
        "print(server.pid, process.pid, flush=True); process.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, cwd=REPOSITORY)
    assert parent.stdout is not None
    family = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    waited_for(tmp_path / "0.log")
    parent.kill()
    parent.communicate()
    psutil.wait_procs(family, timeout=20)
    assert [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []


def test_a_process_with_threads_is_not_forked(monkeypatch):
    import threading

    before = threading.active_count()  # other tests of this process may have left some
    monkeypatch.setattr(threading, "active_count", lambda count=threading.active_count: count() - before + 1)
    assert can_fork()
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    try:
        assert not can_fork()
    finally:
        go_on.set()
        thread.join()

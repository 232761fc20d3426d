import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from pipelines.core.errors import EXIT_STOPPED, CommandError, StageError
from pipelines.core.signals import StopSignal
from pipelines.runs import distributed


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
    call = distributed.call_for(Path("runs/a"), "pretrain", Path("stages/x.partial"), 2, distributed.hosts())
    command = call.command(distributed.hosts())
    assert "--standalone" in command
    assert "--nproc_per_node=2" in command
    assert command[-5:] == ["stage", "runs/a", "pretrain", "stages/x.partial", "2"]


def test_each_host_starts_its_share_towards_the_first(second, monkeypatch):
    first = distributed.Hosts(2, 0, "10.0.0.1", second)
    call = distributed.call_for(Path("runs/a"), "pretrain", Path("x.partial"), 6, first)
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
    distributed.call_for(Path("runs/a"), "mrpc", Path("y.partial"), 2, first)
    assert sorted(path.name for path in second.iterdir()) == ["0.json", "1.json"]


def test_processes_that_cannot_be_shared_evenly_are_refused(second):
    with pytest.raises(
        StageError, match=r"3 processes cannot be shared evenly by 2 hosts; set launch.num_processes to a multiple of 2"
    ):
        distributed.call_for(Path("runs/a"), "pretrain", Path("x"), 3, distributed.Hosts(2, 0, "10.0.0.1", second))


def test_auto_counts_the_devices_of_every_host(second):
    import torch

    from pipelines.runs import hardware

    assert hardware.processes("auto") == 2 * max(1, torch.cuda.device_count())
    assert hardware.processes(3) == 3


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
        distributed.call_for(tmp_path, stage, tmp_path, 2, first)
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
    distributed.call_for(tmp_path, "one", tmp_path, 2, distributed.Hosts(2, 0, "10.0.0.1", second))
    thread.join(20)
    assert found == [7]


def test_a_stop_reaches_the_ranks_and_not_torchrun(second, monkeypatch, tmp_path):
    rank = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (open('saved', 'w').close(), sys.exit(0))); open('ready', 'w').close(); time.sleep(100)"
    agent = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {rank!r}]))"
    monkeypatch.chdir(tmp_path)
    stop, thread, found = joined(monkeypatch, {"one": [sys.executable, "-c", agent]})
    distributed.call_for(tmp_path, "one", tmp_path, 2, distributed.Hosts(2, 0, "10.0.0.1", second))
    limit = time.monotonic() + 20
    while not os.path.exists("ready"):
        assert time.monotonic() < limit
        time.sleep(0.02)
    stop.requested = True
    thread.join(20)
    assert os.path.exists("saved")
    assert found == [EXIT_STOPPED]

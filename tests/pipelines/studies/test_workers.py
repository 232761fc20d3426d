import fcntl
import json
import os
import runpy
import signal
import sys
import threading
import time

import pytest

from pipelines.core.fork_server import ForkServer, can_fork
from pipelines.core.load import loads
from pipelines.core.signals import StopSignal
from pipelines.runs.run import run
from pipelines.studies import workers
from pipelines.studies import workers as study_workers
from pipelines.studies.workers import DeviceSlot, WaitingRun, Workers, slots

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[2])
wish = (folder / "wish").read_text()
stop = []
signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
(folder / "seen").write_text(json.dumps({"began": time.time(), **{name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "FINERY_PARENT_PID")}}))
def event(**fields):
    with open(folder / "events.jsonl", "a") as file:
        file.write(json.dumps({"id": 7, "time": "x", **fields}) + "\\n")
if wish == "done":
    time.sleep(0.3)
elif wish == "fail":
    event(event="failed", message="stage 'a': no such column", reason="data_error")
    sys.exit(1)
elif wish == "refuse":
    print("noise")
    print("finery: the recipe is wrong", file=sys.stderr)
    sys.exit(2)
elif wish == "die":
    os.kill(os.getpid(), signal.SIGKILL)
elif wish == "wait":
    while not stop:
        time.sleep(0.01)
    event(event="stopped", message="stopped at step 3", reason="stopped")
    sys.exit(75)
(folder / "ended").write_text(str(time.time()))
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    script = tmp_path / "pretend.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(study_workers, "PIPELINES", (sys.executable, str(script)))
    return script


@pytest.fixture(params=["new", "forked"])
def server(request, script):
    """What the runs are forked from, or None where each is a new process."""
    if request.param == "new":
        yield None
        return
    if not can_fork():
        pytest.skip("runs are not forked here")
    with ForkServer(lambda words: runpy.run_path(str(script)) and 0) as made:
        yield made


@pytest.fixture
def runs(tmp_path, script):

    def make(*wishes):
        made = []
        for number, wish in enumerate(wishes):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            (folder / "wish").write_text(wish)
            made.append(WaitingRun(str(number), folder))
        return made

    return make


def seen(folder):
    import json

    return json.loads((folder / "seen").read_text())


def test_each_end_is_told_with_its_reason(runs, server):
    workers = Workers([DeviceSlot()], StopSignal(), server)
    ended = {each.name: each for each in workers.do(runs("done", "fail", "refuse", "die"))}
    assert [ended[name].code for name in "0123"] == [0, 1, 2, -signal.SIGKILL]
    assert (ended["1"].message, ended["1"].reason) == ("stage 'a': no such column", "data_error")
    assert ended["2"].message == "the recipe is wrong"
    assert "killed by SIGKILL; the likely cause" in ended["3"].message


def test_one_slot_does_one_run_at_a_time_and_two_do_two(runs):
    made = runs("done", "done")
    list(Workers([DeviceSlot()], StopSignal()).do(made[:]))
    first, second = (run.folder for run in made)
    assert seen(second)["began"] >= float((first / "ended").read_text())
    list(Workers([DeviceSlot(), DeviceSlot()], StopSignal()).do(made[:]))
    assert seen(second)["began"] < float((first / "ended").read_text())


def test_what_begins_with_a_training_on_its_way_comes_last(runs):
    made = runs("wait", "done", "done", "done", "done")
    began = [run._replace(begins_with=shared) for run, shared in zip(made, ("a", "a", "b", "b", ""), strict=True)]
    names = []
    workers = Workers([DeviceSlot(), DeviceSlot()], StopSignal())

    def started(name):
        names.append(name)
        if name == "1":  # nothing else is left
            while not (made[0].folder / "seen").exists():
                time.sleep(0.01)
            workers.running[0].process.terminate()

    assert [each.name for each in workers.do(began, started=started)][:3] == ["2", "4", "3"]
    assert names == ["0", "2", "4", "3", "1"]


def test_the_training_that_most_others_wait_for_is_begun_first(runs):
    made = runs("done", "done", "wait", "done", "done")
    began = [run._replace(begins_with=shared) for run, shared in zip(made, ("", "a", "b", "b", "b"), strict=True)]
    names = []
    workers = Workers([DeviceSlot(), DeviceSlot()], StopSignal())

    def started(name):
        names.append(name)
        if name == "3":  # nothing else is left
            while not (made[2].folder / "seen").exists():
                time.sleep(0.01)
            workers.running[0].process.terminate()

    list(workers.do(began, started=started))
    assert names == ["2", "0", "1", "3", "4"]


def test_runs_may_be_added_while_others_are_on_their_way(runs):
    first, second, third = runs("done", "done", "done")
    waiting, ended = [first], []
    for end in Workers([DeviceSlot()], StopSignal()).do(waiting):
        ended.append(end.name)
        waiting += {"0": [second, third]}.get(end.name, [])
    assert ended == ["0", "1", "2"]
    assert waiting == []


def test_a_run_sees_its_devices_and_its_parent(runs, server):
    made = runs("done", "done")
    list(Workers([DeviceSlot(("0",)), DeviceSlot(("2", "3"))], StopSignal(), server).do(made[:]))
    assert {seen(run.folder)["CUDA_VISIBLE_DEVICES"] for run in made} == {"0", "2,3"}
    assert {seen(run.folder)["FINERY_PARENT_PID"] for run in made} == {str(server.pid if server else os.getpid())}


def test_a_stop_reaches_every_run_once_and_no_other_starts(runs, server):
    made, stop = runs("wait", "wait", "done"), StopSignal()
    began = []

    def ask():
        while not all((run.folder / "seen").exists() for run in made[:2]):
            time.sleep(0.01)
        stop.requested = True

    asking = threading.Thread(target=ask)
    asking.start()
    ended = list(Workers([DeviceSlot(), DeviceSlot()], stop, server).do(made[:], started=began.append))
    asking.join()
    assert began == ["0", "1"]
    assert [(each.code, each.message) for each in ended] == [(75, "stopped at step 3")] * 2
    assert not (made[2].folder / "seen").exists()


def test_runs_of_a_server_that_is_lost_are_started_anew(runs, script):
    made, told = runs("wait", "done", "done"), []
    with ForkServer(lambda words: runpy.run_path(str(script)) and 0) as server:

        def lose(name):
            if name == "1" and not told:
                while not (made[0].folder / "seen").exists():
                    time.sleep(0.01)
                (made[0].folder / "wish").write_text("done")
                os.kill(server.pid, signal.SIGKILL)

        workers = Workers([DeviceSlot(), DeviceSlot()], StopSignal(), server)
        ended = list(workers.do(made[:], started=lose, warn=told.append))
    assert sorted((each.name, each.code) for each in ended) == [("0", 0), ("1", 0), ("2", 0)]
    assert told == [study_workers.SERVER_LOST]
    assert seen(made[2].folder)["FINERY_PARENT_PID"] == str(os.getpid())


def test_a_stop_holds_though_the_server_is_lost(runs, script):
    made, stop = runs("wait", "done"), StopSignal()
    with ForkServer(lambda words: runpy.run_path(str(script)) and 0) as server:

        def lose(name):
            while not (made[0].folder / "seen").exists():
                time.sleep(0.01)
            os.kill(server.pid, signal.SIGKILL)
            stop.requested = True

        ended = list(Workers([DeviceSlot()], stop, server).do(made[:], started=lose))
    assert [(each.name, each.code) for each in ended] == [("0", 75)]
    assert not (made[1].folder / "seen").exists()


def test_what_cannot_be_forked_is_started_anew(runs, script, monkeypatch):
    fork, parent = os.fork, os.getpid()

    def refused():
        if os.getpid() != parent:
            raise BlockingIOError("no place for another process")
        return fork()

    monkeypatch.setattr(os, "fork", refused)
    made = runs("done")
    with ForkServer(lambda words: runpy.run_path(str(script)) and 0) as server:
        assert [each.code for each in Workers([DeviceSlot()], StopSignal(), server).do(made[:])] == [0]
    assert seen(made[0].folder)["FINERY_PARENT_PID"] == str(parent)


def test_a_run_waits_for_a_folder_that_is_still_written(runs):
    made = runs("done")
    free = []
    with open(made[0].folder / ".lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Timer(0.4, lambda: (free.append(time.time()), fcntl.flock(file, fcntl.LOCK_UN))).start()
        list(Workers([DeviceSlot()], StopSignal()).do(made[:]))
    assert seen(made[0].folder)["began"] >= free[0]


def test_an_error_of_the_reader_leaves_no_run_behind(runs, server):
    made = runs("wait", "wait")
    workers = Workers([DeviceSlot(), DeviceSlot()], StopSignal(), server)

    def broken(name):
        if name == "1":
            while not (made[0].folder / "seen").exists():
                time.sleep(0.01)
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        list(workers.do(made[:], started=broken))
    assert workers.running == []


def test_on_a_cpu_there_is_one_slot_or_as_many_as_asked(monkeypatch):
    monkeypatch.setattr(study_workers, "_gpus", list)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert slots(None, "auto") == [DeviceSlot()]
    two = slots(2, "auto")
    assert len(two) == 2
    assert two[0].threads == max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.mark.parametrize(
    ("gpus", "parallel", "processes", "expected"),
    [
        (4, None, "auto", [("0",), ("1",), ("2",), ("3",)]),
        (4, 2, "auto", [("0",), ("1",)]),
        (4, None, 2, [("0", "1"), ("2", "3")]),
        (3, None, 2, [("0", "1")]),
        (2, None, 4, [("0", "1")]),
    ],
)
def test_each_run_gets_its_own_gpus(monkeypatch, gpus, parallel, processes, expected):
    monkeypatch.setattr(study_workers, "_gpus", lambda: [str(number) for number in range(gpus)])
    assert [slot.devices for slot in slots(parallel, processes)] == expected


RECIPE = """\
name: small
model: {architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}}
tokenizer: {train: wordpiece, vocab_size: 300}
stages:
  - {stage: supervised, max_length: 16, arguments: {max_steps: 1},
     task: {kind: classification, columns: [text], label: label, train: rows.csv, validation: rows.csv}}
"""


def small(folder, **words):
    (folder / "rows.csv").write_text("text,label\n" + "the cat saw a dog,yes\na dog runs,no\n" * 8)
    return loads(RECIPE, folder=folder, **words)


@pytest.fixture
def done(tmp_path):
    recipe = small(tmp_path)
    return recipe, run(recipe, tmp_path / "small")


def test_a_finished_run_is_complete_until_something_of_it_changes(done, tmp_path, monkeypatch):
    recipe, folder = done
    before = sorted((path, path.lstat().st_mtime_ns) for path in folder.rglob("*"))
    assert workers.is_complete(recipe, folder, 1)
    assert sorted((path, path.lstat().st_mtime_ns) for path in folder.rglob("*")) == before  # it only looked
    assert not workers.is_complete(small(tmp_path, overrides=["stages.supervised.max_length=32"]), folder, 1)
    assert not workers.is_complete(recipe, folder, 2)  # twice the processes, twice the batch
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.runs.fingerprints.versions", lambda: {"torch": "9"})
        assert not workers.is_complete(recipe, folder, 1)
    weights = folder / "stages" / "01-supervised" / "model" / "model.safetensors"
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1])
    assert not workers.is_complete(recipe, folder, 1)
    weights.write_bytes(kept)
    assert workers.is_complete(recipe, folder, 1)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["finished"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert not workers.is_complete(recipe, folder, 1)


def test_no_folder_is_not_is_complete(tmp_path):
    assert not workers.is_complete(small(tmp_path), tmp_path / "nowhere", 1)

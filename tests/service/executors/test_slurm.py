"""What only a Slurm cluster can do to an attempt, on two nodes of a real one; the contract suite runs there too."""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.core.errors import CommandError
from service.executors.process_tree import descendants
from service.executors.protocol import ExecutorError, Exited, Gpu, Lost, Placement, Running
from service.executors.records import read_record, write_record
from service.executors.slurm import SlurmExecutor, slurm
from service.executors.slurm_cluster import SlurmCluster, capacity_of, gpus_of, options_of, parse_node
from service.settings import Settings
from tests.conftest import REPOSITORY
from tests.service.executors.worlds import alive, ended, keepers, printed, slurm_world, until

NODE = (
    "NodeName=gpu-7 Arch=x86_64 CoresPerSocket=16 CPUAlloc=12 CPUEfctv=62 CPUTot=64 CPULoad=3.1 AvailableFeatures=a100 "
    "Gres=gpu:a100:4(S:0-1) GresDrain=N/A GresUsed=gpu:a100:3(IDX:0-2) NodeAddr=10.1.0.7 NodeHostName=gpu-7 "
    "Version=22.05.8 OS=Linux 6.1.0 State=Up RealMemory=512000 AllocMem=100000 FreeMem=400000 State=%s "
    "Partitions=main,gpu BootTime=2026-11-01T00:00:00 Reason=none"
).replace("OS=Linux 6.1.0 State=Up ", "OS=Linux 6.1.0 ")


def submitted(world, folder, script, start=True, **more):
    spec = world.spec(folder, script, **{key: value for key, value in more.items() if key != "placements"})
    if "placements" in more:
        spec = replace(spec, placements=more["placements"])
    spec.folder.mkdir(parents=True, exist_ok=True)
    return (spec, world.executor.start(spec)) if start else spec


def test_a_job_runs_ends_and_is_stopped_and_nothing_that_a_recipe_names_reaches_a_shell(slurm_daemons, tmp_path):
    world = slurm_world(slurm_daemons)
    hostile = "job $(touch hacked) %j ;'\"`touch hacked`"
    spec, handle = submitted(
        world,
        tmp_path,
        'echo "$GIVEN"; echo "$CUDA_VISIBLE_DEVICES"; cat "$FINERY_SECRETS/HF_TOKEN" >copy; exit 3',
        job=hostile,
        environment={"GIVEN": "$(touch hacked)\n--wrap"},
        secrets={"HF_TOKEN": "s3cret-value"},
        placements=(Placement("node1", (1,), 2, 300 << 20),),
    )
    shown = slurm_daemons.ask("scontrol", "show", "job", handle.record["job"]) + slurm_daemons.ask(
        "scontrol", "write", "batch_script", handle.record["job"], "-"
    )
    assert ended(world.executor, handle) == Exited(3)
    assert printed(world.executor, handle) == b"$(touch hacked)\n--wrap\n0\n", "Slurm chose the first GPU"
    assert (spec.folder / "copy").read_text() == "s3cret-value"
    assert list(tmp_path.rglob("hacked")) == []
    assert "s3cret-value" not in shown
    assert "touch hacked" in shown  # in the name of the attempt's folder, an argument
    assert 'exec "$@"' in shown
    for given in ("Requeue=0", "MinMemoryNode=556M", "CPUs/Task=2", "TresPerNode=gres:gpu:1", "ReqNodeList=node1"):
        assert given in shown
    _, handle = submitted(world, tmp_path, "trap 'echo saved; exit 75' TERM; echo ready; while :; do sleep 0.02; done")
    until(lambda: printed(world.executor, handle) == b"ready\n")
    world.executor.stop(handle, grace=20)
    assert ended(world.executor, handle) == Exited(75, asked=True)
    until(lambda: slurm_daemons.ask("squeue", "--noheader", f"--job={handle.record['job']}") == "")


def test_without_slurm_s_commands_or_its_controller_the_first_look_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExecutorError, match="scontrol is not installed on this machine; install Slurm's client"):
        SlurmExecutor().capacity()


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("slurm_options", "wrap=id", "may not name 'wrap'; allowed are constraint, exclude, exclusive,"),
        ("slurm_options", "--uid=0", "may not name 'uid'"),
        ("slurm_options", "qos=$(id)", "gives qos the value"),
        ("slurm_partition", "a b", "FINERY_SLURM_PARTITION is 'a b', which is no name of Slurm's"),
        ("slurm_account", "--uid=0", "FINERY_SLURM_ACCOUNT"),
    ],
)
def test_what_may_not_be_handed_to_sbatch_is_refused(setting, value, sentence, tmp_path):
    with pytest.raises(CommandError, match=sentence.replace("$", r"\$").replace("(", r"\(")):
        slurm(Settings(home=tmp_path, executor="slurm", **{setting: value}))


def test_options_become_words_for_sbatch():
    assert options_of("qos=high --constraint=a100|h100 exclusive") == (
        "--qos=high",
        "--constraint=a100|h100",
        "--exclusive",
    )
    assert SlurmCluster("gpu", "lab", ("--exclusive",)).words == ("--partition=gpu", "--account=lab", "--exclusive")


def test_a_node_offers_what_jobs_of_others_leave():
    node = parse_node(NODE % "MIXED")
    assert (node.name, node.address, node.partitions, node.alive) == ("gpu-7", "10.1.0.7", ("main", "gpu"), True)
    host = capacity_of(node, cpus=8, memory=60000 << 20, gpus=1)  # of 12 cores, 100,000 MiB and 3 GPUs in use
    assert (host.cpus, host.memory) == (62 - 4, (512000 - 40000) << 20)
    assert host.gpus == (Gpu(0, 0, "a100"), Gpu(1, 0, "a100"))
    drained = capacity_of(parse_node(NODE % "MIXED+DRAIN"), cpus=8, memory=1 << 30, gpus=1)
    assert (drained.alive, drained.cpus, len(drained.gpus)) == (True, 8, 1), "nothing new, and what runs goes on"
    assert not capacity_of(parse_node(NODE % "DOWN*"), 0, 0, 0).alive
    assert not capacity_of(parse_node(NODE % "IDLE*"), 0, 0, 0).alive, "it does not respond"
    assert capacity_of(parse_node(NODE % "IDLE+CLOUD+POWERED_DOWN"), 0, 0, 0).cpus == 50


def test_gpus_are_read_as_slurm_writes_them():
    assert gpus_of("gpu:a100:4(S:0-1),gpu:2,craynetwork:1") == [("a100", 4), ("", 2)]
    assert gpus_of("gpu:(null):2(IDX:0-1)") == [("", 2)]
    assert gpus_of("(null)") == []


@pytest.mark.long
def test_a_service_that_died_before_it_knew_the_job_s_number_finds_the_job(slurm_daemons, tmp_path):
    world = slurm_world(slurm_daemons)
    spec, handle = submitted(world, tmp_path, "echo x >> times; sleep 100")
    number = handle.record["job"]
    until((spec.folder / "times").exists)
    (spec.record / "claimed.json").unlink()  # as if it had not begun yet
    write_record(str(spec.record), "slurm.json", {**handle.record, "job": ""})
    known = {"attempt_id": spec.attempt_id, "fencing_token": 1, "folder": str(spec.folder), "record": str(spec.record)}
    assert world.make().reattach(known).record["job"] == number
    write_record(str(spec.record), "slurm.json", {**handle.record, "job": ""})
    assert world.make().start(spec).record["job"] == number
    write_record(str(spec.record), "claimed.json", {"job": number, "why": ""})
    assert world.executor.kill(handle) is True
    assert (spec.folder / "times").read_text() == "x\n"


@pytest.mark.long
def test_two_jobs_that_were_submitted_for_one_attempt_run_it_once(slurm_daemons, tmp_path):
    world = slurm_world(slurm_daemons)
    spec, handle = submitted(world, tmp_path, "echo x >> times; sleep 2")
    second = world.executor._submit(spec, [])
    assert second != handle.record["job"]
    assert ended(world.executor, handle) == Exited(0)
    until(lambda: slurm_daemons.ask("squeue", "--noheader", f"--job={second}") == "")
    assert (spec.folder / "times").read_text() == "x\n"


@pytest.mark.long
def test_an_attempt_that_waits_in_slurm_s_queue_is_stopped_killed_or_cancelled_by_others(slurm_daemons, tmp_path):
    world = slurm_world(slurm_daemons)
    whole = (Placement("node2", (), 8),)
    _, first = submitted(world, tmp_path, "sleep 100", job="job-1", placements=whole)
    until(lambda: keepers(first))
    waiting = {}
    for job in ("job-2", "job-3", "job-4"):
        _, waiting[job] = submitted(world, tmp_path, "touch ran", job=job, placements=whole)
        assert isinstance(world.executor.poll(waiting[job]), Running)
    world.executor.stop(waiting["job-2"], grace=20)
    assert ended(world.executor, waiting["job-2"]) == Exited(-15, asked=True)
    assert world.executor.kill(waiting["job-3"], 1.0) is True
    assert world.executor.poll(waiting["job-3"]) == Exited(-9, asked=True)
    slurm_daemons.ask("scancel", waiting["job-4"].record["job"])
    condition = ended(world.executor, waiting["job-4"])
    assert isinstance(condition, Lost)
    assert "ended before it began (CANCELLED" in condition.why
    assert "on a file system that they share with the server" in condition.why
    assert world.executor.kill(waiting["job-4"], 1.0) is True
    assert world.executor.poll(waiting["job-4"]) == condition
    assert world.executor.kill(first) is True
    time.sleep(1)
    assert list(tmp_path.rglob("ran")) == []
    assert slurm_daemons.ask("squeue", "--noheader", "--states=pending") == ""


@pytest.mark.long
def test_the_capacity_is_what_jobs_of_others_leave(slurm_daemons, tmp_path):
    world = slurm_world(slurm_daemons)
    assert [(host.cpus, len(host.gpus)) for host in world.executor.capacity()] == [(8, 2), (8, 0)]
    _, own = submitted(world, tmp_path, "sleep 100", placements=(Placement("node1", (0,), 3, 300 << 20),))
    other = slurm_daemons.ask(
        *("sbatch", "--parsable", "--nodelist=node1", "--cpus-per-task=2", "--gres=gpu:1", "--mem=1000M"),
        *("--output=/dev/null", "--wrap=sleep 100"),
    ).strip()
    until(lambda: slurm_daemons.ask("squeue", "--noheader", "--states=running").count("node1") == 2)
    _, waiting = submitted(world, tmp_path, "sleep 100", job="job-2", placements=(Placement("node1", (), 8),))
    (first, second) = world.make().capacity()
    assert (first.cpus, len(first.gpus), first.memory) == (6, 1, 15000 << 20)
    assert (second.cpus, second.memory) == (8, 16000 << 20)
    slurm_daemons.ask("scancel", other)
    until(lambda: world.executor.capacity()[0].cpus == 8)
    assert world.executor.kill(own)
    assert world.executor.kill(waiting)


@pytest.mark.long
@pytest.mark.parametrize("how", ["time limit", "preemption"])
def test_slurm_s_notice_lets_an_attempt_save_and_end(slurm_daemons, tmp_path, how):
    world = slurm_world(slurm_daemons)
    script = "trap 'echo saved; exit 75' TERM; echo ready; while :; do sleep 0.02; done"
    _, handle = submitted(world, tmp_path, script, placements=(Placement("node1", (), 8),))
    until(lambda: printed(world.executor, handle) == b"ready\n")
    if how == "time limit":  # what --signal=B:TERM does; minutes are the shortest limits
        slurm_daemons.ask("scancel", "--batch", "--signal=TERM", handle.record["job"])
    else:
        slurm_daemons.ask(
            "sbatch", "--partition=urgent", "--nodelist=node1", "--cpus-per-task=8", "--output=/dev/null", "--wrap=true"
        )
    assert ended(world.executor, handle) == Exited(75, asked=True)
    assert printed(world.executor, handle) == b"ready\nsaved\n"


@pytest.mark.long
def test_a_job_s_time_limit_is_told_to_slurm_with_time_to_save(slurm_daemons, tmp_path):
    world = slurm_world(slurm_daemons)
    spec = replace(submitted(world, tmp_path, "exit 0", start=False), seconds=600.0)
    handle = world.executor.start(spec)
    assert "TimeLimit=00:12:00" in slurm_daemons.ask("scontrol", "show", "job", handle.record["job"])
    assert ended(world.executor, handle) == Exited(0)


@pytest.mark.long
def test_a_part_that_cannot_reach_the_attempt_s_folder_ends_itself(slurm_daemons, tmp_path):
    world = slurm_world(slurm_daemons)
    spec, handle = submitted(world, tmp_path, "sleep 300 & sleep 300")
    until((spec.record / "beat").exists)
    began = time.monotonic()
    spec.record.rename(spec.record.with_name("away"))
    until(lambda: alive(spec.attempt_id) == [], seconds=30)
    assert time.monotonic() - began > slurm_daemons.lease / 2
    slurm_daemons.ask("scancel", handle.record["job"])


@pytest.mark.long
def test_slurmctld_is_away_for_a_while(own_slurm_daemons, tmp_path):
    world = slurm_world(own_slurm_daemons)
    _, running = submitted(world, tmp_path, "echo up; sleep 100", job="job-1")
    _, ending = submitted(world, tmp_path, "sleep 3; exit 4", job="job-2")
    until(lambda: printed(world.executor, running) == b"up\n" and keepers(ending))
    own_slurm_daemons.end("slurmctld")
    spec = submitted(world, tmp_path, "echo x >> times", start=False, job="job-3")
    known = {"attempt_id": spec.attempt_id, "fencing_token": 1, "folder": str(spec.folder), "record": str(spec.record)}
    with pytest.raises(ExecutorError, match="Slurm refused or did not answer"):
        world.executor.start(spec)
    with pytest.raises(ExecutorError, match="Slurm refused or did not answer"):
        world.executor.reattach(known)
    assert isinstance(world.executor.poll(running), Running)
    assert ended(world.executor, ending, seconds=60) == Exited(4), "its record needs no controller"
    until(lambda: [host.alive for host in world.executor.capacity()] == [False, False], seconds=60)
    own_slurm_daemons.start_controller()
    until(lambda: all(host.alive for host in world.executor.capacity()), seconds=60)
    assert isinstance(world.executor.poll(running), Running)
    handle = world.make().start(spec)
    assert ended(world.executor, handle, seconds=60) == Exited(0)
    assert (spec.folder / "times").read_text() == "x\n"
    assert world.executor.kill(running) is True


@pytest.mark.long
def test_sbatch_s_answer_is_lost_and_the_attempt_is_neither_lost_nor_doubled(own_slurm_daemons, tmp_path, monkeypatch):
    world = slurm_world(own_slurm_daemons)
    world.executor.capacity()
    real = world.executor._cluster.run

    def cut_off(*words, **more):
        answer = real(*words, **more)
        if words[0] == "sbatch":
            own_slurm_daemons.end("slurmctld")
            raise ExecutorError("Slurm does not answer: sbatch said nothing for 45 s")
        return answer

    monkeypatch.setattr(world.executor._cluster, "run", cut_off)
    spec = submitted(world, tmp_path, "echo x >> times; sleep 1", start=False)
    known = {"attempt_id": spec.attempt_id, "fencing_token": 1, "folder": str(spec.folder), "record": str(spec.record)}
    with pytest.raises(ExecutorError, match="sbatch said nothing"):
        world.executor.start(spec)
    later = world.make()
    if read_record(spec.record, "claimed.json") is None:
        with pytest.raises(ExecutorError, match="Slurm"):
            later.reattach(known)
    own_slurm_daemons.start_controller()
    handle = later.start(spec)
    assert later.reattach(known) is not None
    assert ended(later, handle, seconds=60) == Exited(0)
    time.sleep(2)
    assert (spec.folder / "times").read_text() == "x\n"


@pytest.mark.long
def test_a_node_vanishes_and_its_attempt_goes_on_elsewhere(own_slurm_daemons, tmp_path):
    world = slurm_world(own_slurm_daemons)
    spec, handle = submitted(world, tmp_path, "echo x >> times; sleep 100", placements=(Placement("node2"),), token=1)
    _, other = submitted(world, tmp_path, "echo up; sleep 100", job="job-2")
    until((spec.folder / "times").exists)
    own_slurm_daemons.end("node2", signal.SIGKILL)
    launcher = read_record(spec.record, "launcher.json")["launcher_pid"]
    for pid in [*descendants(launcher), launcher, *keepers(handle), *_steps(handle)]:  # as if the power had failed
        os.kill(pid, signal.SIGKILL)
    condition = ended(world.executor, handle, seconds=60)
    assert isinstance(condition, Lost)
    assert "nothing was heard from node node2 for" in condition.why or "ended from outside" in condition.why
    assert world.executor.kill(handle, timeout=60) is True
    until(lambda: {host.name: host.alive for host in world.executor.capacity()}["node2"] is False, seconds=60)
    assert isinstance(world.executor.poll(other), Running), "the other node does not feel it"
    _, again = submitted(world, tmp_path, "echo x >> times", placements=(Placement("node1"),), token=2)
    assert ended(world.executor, again) == Exited(0)
    assert (spec.folder / "times").read_text() == "x\nx\n"
    assert world.executor.kill(other) is True


def _steps(handle):
    """Slurm's own processes around an attempt's job."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"slurmstepd: [{handle.record['job']}." in line or ("srun" in line and handle.attempt_id in line):
            found.append(int(path.parent.name))
    return found


@pytest.mark.long
def test_a_home_that_the_nodes_do_not_share_is_refused_at_the_start(slurm_daemons, tmp_path, monkeypatch):
    assert [host.name for host in SlurmExecutor(home=tmp_path).capacity()] == ["node1", "node2"]
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Path, "write_text", lambda *_: 0)  # the file is not there, as on a node with a disk of its own
    with pytest.raises(ExecutorError, match=r"nodes do not see .*: the slurm executor needs the service's home on"):
        SlurmExecutor(home=tmp_path).capacity()


RECIPE = """\
name: wide
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}
tokenizer: {train: wordpiece, vocab_size: 600}
launch: {num_processes: 2, mixed_precision: "no"}
stages:
  - stage: pretrain
    objective: masked_lm
    datasets: [{path: builtin/python-docs}]
    block_size: 32
    max_train_samples: 100
    arguments: {max_steps: 4, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1}
"""


@pytest.mark.long
def test_one_attempt_over_two_nodes_learns_what_two_processes_of_one_node_learn(slurm_daemons, tmp_path):
    world = slurm_world(slurm_daemons)
    losses = {}
    for name, nodes in (("one", ["node1"]), ("two", ["node2", "node1"])):
        environment = {
            "FINERY_HOME": str(tmp_path / f"home-{name}"),
            "PYTHONPATH": str(REPOSITORY),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "HOME": str(tmp_path),
        }
        spec = submitted(world, tmp_path, "", start=False, job=f"job-{name}", environment=environment)
        spec = replace(
            spec,
            command=(sys.executable, "-m", "pipelines", "run", "recipe.yaml"),
            placements=tuple(Placement(node) for node in nodes),
        )
        (spec.folder / "recipe.yaml").write_text(RECIPE)
        handle = world.executor.start(spec)
        assert ended(world.executor, handle, seconds=300) == Exited(0), printed(world.executor, handle).decode()
        lines = (spec.folder / "runs" / "wide" / "events.jsonl").read_text().splitlines()
        metrics = [event["metrics"] for event in map(json.loads, lines) if event["event"] == "metric"]
        losses[name] = [each["loss"] for each in metrics if "loss" in each]
        assert (spec.record / "world" / "0.json").exists() == (name == "two")
        assert alive(spec.attempt_id) == []
    assert len(losses["one"]) == 4
    assert losses["two"] == losses["one"]

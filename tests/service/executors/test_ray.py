"""What only a cluster can lose: a node, its head, and a service that falls silent. On two real nodes of this machine."""

import json
import os
import sys
import time
from dataclasses import replace

import pytest

from pipelines.core.errors import CommandError
from service.executors.protocol import ExecutorError, Exited, Lost, Placement, Running
from service.executors.ray import RayExecutor, ray
from service.executors.records import write_record
from service.settings import Settings
from tests.conftest import REPOSITORY
from tests.service.executors.worlds import RayCluster, alive, ended, printed, ray_world, until


@pytest.mark.parametrize("address", ["10.0.0.5:6379", "ray.example.org:6379"])
def test_a_cluster_on_the_network_must_ask_for_a_token(address, monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    settings = Settings(home=tmp_path, executor="ray", ray_address=address)
    with pytest.raises(CommandError, match="RAY_AUTH_MODE=token"):
        ray(settings)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert isinstance(ray(settings), RayExecutor)


def test_a_service_that_reaches_no_cluster_says_so_and_has_no_hosts(monkeypatch):
    executor = RayExecutor("127.0.0.1:1")
    monkeypatch.setattr(executor._link, "ask", lambda *_, **__: (_ for _ in ()).throw(ExecutorError("no answer")))
    assert executor.capacity() == ()


def test_an_attempt_of_which_nothing_was_heard_counts_as_dead_only_when_its_lease_has_run_out(tmp_path, monkeypatch):
    executor = RayExecutor("127.0.0.1:1", lease=10.0)
    monkeypatch.setattr(executor._link, "ask", lambda *_, **__: (_ for _ in ()).throw(ExecutorError("no answer")))
    record = tmp_path / "attempts" / "attempt-1"
    record.mkdir(parents=True)
    told = {"attempt_id": "attempt-1", "fencing_token": 1, "record": str(record), "parts": 2, "lease": 10.0}
    write_record(str(record), "ray.json", told)
    handle = executor.reattach({"attempt_id": "attempt-1", "fencing_token": 1, "record": str(record)})
    (record / "beat").touch()
    assert executor.kill(handle, 0.1) is False
    write_record(str(record), "exit.json", {"code": 0, "reason": "", "asked": False})
    assert executor.kill(handle, 0.1) is False, "the second host has not said that it is done"
    long_ago = time.time() - 10.0 * 1.25 - 6.0
    os.utime(record / "beat", (long_ago, long_ago))
    assert executor.kill(handle, 0.1) is True


@pytest.fixture
def own_cluster(monkeypatch):
    """A cluster to be broken."""
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "8")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    cluster = RayCluster()
    yield cluster
    cluster.close()


@pytest.mark.long
def test_a_node_vanishes_and_then_the_head(own_cluster, tmp_path):
    world = ray_world(own_cluster)
    first, second = own_cluster.hosts()
    tree = "sleep 300 & (sleep 300 &) ; echo up; sleep 300"
    handles = {}

    def first_lives():  # asked for all the time, as a service does: its lease is six seconds
        assert isinstance(world.executor.poll(handles[first]), Running), "the other node does not feel it"
        return True

    for job, host in (("job-1", first), ("job-2", second)):
        spec = replace(world.spec(tmp_path, tree, job=job), placements=(Placement(host),))
        spec.folder.mkdir()
        handles[host] = world.executor.start(spec)
        until(lambda spec=spec: first_lives() and len(alive(spec.attempt_id)) >= 4)

    own_cluster.second.kill_raylet()
    until(lambda: first_lives() and not isinstance(world.executor.poll(handles[second]), Running), seconds=60)
    assert isinstance(world.executor.poll(handles[second]), Lost)
    until(lambda: first_lives() and world.executor.kill(handles[second], timeout=1), seconds=60)
    assert alive(handles[second].attempt_id) == []
    until(lambda: first_lives() and own_cluster.hosts() == [first], seconds=60)

    own_cluster.cluster.head_node.kill_gcs_server()
    condition = ended(world.executor, handles[first], seconds=90)
    assert isinstance(condition, Lost)
    limit = time.monotonic() + 60
    while not world.executor.kill(handles[first], timeout=5):
        assert time.monotonic() < limit
    assert alive(handles[first].attempt_id) == []
    assert [host.alive for host in world.executor.capacity()] in ([False], [False, False]), (
        "there is nothing to place on until it is back"
    )


@pytest.mark.long
def test_an_attempt_that_no_service_asks_for_ends_when_its_lease_has_run_out(ray_cluster, tmp_path):
    world = ray_world(ray_cluster)
    spec = world.spec(tmp_path, "echo up; sleep 300")
    spec.folder.mkdir()
    handle = world.executor.start(spec)
    assert isinstance(world.executor.poll(handle), Running)
    began = time.monotonic()
    until(lambda: alive(spec.attempt_id) == [], seconds=60)
    assert time.monotonic() - began > ray_cluster.lease / 2
    assert isinstance(world.executor.poll(handle), Lost)


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
def test_one_attempt_over_two_hosts_learns_what_two_processes_of_one_host_learn(ray_cluster, tmp_path):
    world = ray_world(ray_cluster)
    losses = {}
    for name, hosts in (("one", ray_cluster.hosts()[:1]), ("two", ray_cluster.hosts())):
        environment = {
            "FINERY_HOME": str(tmp_path / f"home-{name}"),
            "PYTHONPATH": str(REPOSITORY),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "HOME": str(tmp_path),
        }
        spec = world.spec(tmp_path, "", job=f"job-{name}", environment=environment)
        spec = replace(
            spec,
            command=(sys.executable, "-m", "pipelines", "run", "recipe.yaml"),
            placements=tuple(Placement(host) for host in hosts),
        )
        spec.folder.mkdir()
        (spec.folder / "recipe.yaml").write_text(RECIPE)
        handle = world.executor.start(spec)
        assert ended(world.executor, handle, seconds=300) == Exited(0), printed(world.executor, handle).decode()
        events = [
            json.loads(line) for line in (spec.folder / "runs" / "wide" / "events.jsonl").read_text().splitlines()
        ]
        losses[name] = [
            event["metrics"]["loss"] for event in events if event["event"] == "metric" and "loss" in event["metrics"]
        ]
        announced = spec.record / "world" / "0.json"
        assert announced.exists() == (name == "two")
        assert alive(spec.attempt_id) == []
    assert len(losses["one"]) == 4
    assert losses["two"] == losses["one"]


@pytest.mark.long
def test_each_host_of_a_cluster_isolates_what_it_runs(ray_cluster, tmp_path):
    """On one host wholly; over two hosts, whose ranks need the hosts' network, by files alone."""
    from service.executors.isolation import isolation_of
    from service.executors.protocol import Sandbox

    if not isolation_of("auto").kept:
        pytest.skip("this machine does not isolate")
    world = ray_world(ray_cluster)
    world.executor._wanted = "auto"
    secret = tmp_path / "home" / "admin.token"
    for number, hosts in enumerate((ray_cluster.hosts()[:1], ray_cluster.hosts())):
        folder = tmp_path / "home" / f"job-{number}"
        (folder / "runs").mkdir(parents=True)
        secret.write_text("hidden")
        spec = world.spec(
            tmp_path / "home",
            f"cat {secret} && echo READ; touch planted && echo PLANTED; echo x > runs/made",
            job=f"job-{number}",
        )
        places = Sandbox(write=(str(folder / "runs"),), hidden=(str(tmp_path / "home"),))
        spec = replace(spec, placements=tuple(Placement(host) for host in hosts), sandbox=places)
        handle = world.executor.start(spec)
        ended(world.executor, handle, 60)
        text = printed(world.executor, handle).decode()
        assert (folder / "runs" / "made").read_text() == "x\n", text
        assert "READ" not in text
        assert "hidden" not in text
        assert not (folder / "planted").exists()


def test_a_host_that_cannot_isolate_refuses_what_must_be(monkeypatch):
    from service.executors import parts
    from service.executors.isolation import NONE, Isolation

    monkeypatch.setattr(parts, "isolation_of", lambda wanted: NONE)
    with pytest.raises(ExecutorError, match="cannot isolate attempts"):
        parts.isolation_for("auto", 1)
    assert parts.isolation_for("none", 1) == NONE
    monkeypatch.setattr(parts, "isolation_of", lambda wanted: Isolation("bubblewrap"))
    monkeypatch.setattr(parts, "abi", lambda: 4)
    assert parts.isolation_for("auto", 1).mode == "bubblewrap"
    assert parts.isolation_for("auto", 2) == Isolation("landlock", (), 4)
    monkeypatch.setattr(parts, "abi", lambda: 0)
    with pytest.raises(ExecutorError, match="cannot isolate attempts"):
        parts.isolation_for("auto", 2)

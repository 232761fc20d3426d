"""What the docker executor asks of the engine. The engine is a stand-in (see engine_stand_in.py): it checks names of fields and no more."""

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from service.executors.docker import DockerClient, DockerExecutor, container_name, docker
from service.executors.protocol import ExecutorError, Exited, Gpu, Placement, Running
from service.settings import Settings
from tests.service.executors.worlds import docker_world, ended, printed, until


@pytest.fixture
def world():
    with tempfile.TemporaryDirectory(prefix="finery-") as folder, docker_world(Path(folder)) as world:
        world.folder = Path(folder)
        yield world


def started(world, spec):
    spec.folder.mkdir(exist_ok=True)
    return world.executor.start(spec)


def created(world):
    return next(body for verb, path, query, body in world.engine.seen if path == "/containers/create")


def test_the_container_has_the_attempt_s_part_of_the_host_and_no_rights_beyond(world):
    spec = replace(
        world.spec(world.folder, "exit 0"), placements=(Placement("engine-host", (1, 3), cpus=4, memory=8 << 30),)
    )
    started(world, spec)
    body = created(world)
    host = body["HostConfig"]
    assert host["DeviceRequests"] == [{"Driver": "nvidia", "DeviceIDs": ["1", "3"], "Capabilities": [["gpu"]]}]
    assert (host["NanoCpus"], host["Memory"]) == (4_000_000_000, 8 << 30)
    assert (host["CapDrop"], host["SecurityOpt"], host["Init"], host["RestartPolicy"]) == (
        ["ALL"],
        ["no-new-privileges"],
        True,
        {"Name": "no"},
    )
    assert body["Labels"] == {"finery": spec.attempt_id, "finery.job": "job-1", "finery.fencing": "1"}
    assert (body["Image"], body["WorkingDir"]) == ("finery:test", str(spec.folder))


def test_the_image_s_own_interpreter_and_paths_stand_in_for_this_machine_s(world):
    spec = replace(
        world.spec(world.folder, "", environment={"HOME": "/root", "LANG": "C"}),
        command=("/opt/x/bin/python3", "-c", "print(1)"),
    )
    with suppress(ExecutorError):  # the stand-in may have no program `python`
        started(world, spec)
    body = created(world)
    assert body["Entrypoint"] == ["python"]
    assert not [entry for entry in body["Env"] if entry.startswith(("PATH=", "HOME="))]


def test_an_ended_container_is_removed_and_its_log_and_end_are_kept(world):
    spec = world.spec(world.folder, "echo said; exit 3")
    handle = started(world, spec)
    assert ended(world.executor, handle) == Exited(3)
    assert world.engine.containers == {}
    assert printed(world.executor, handle) == b"said\n"
    assert world.make().poll(handle) == Exited(3)


def test_an_engine_that_does_not_answer_for_a_while_is_not_a_lost_attempt(world):
    handle = started(world, world.spec(world.folder, "sleep 100"))
    world.engine.broken = True
    with pytest.raises(ExecutorError, match="engine is broken"):
        world.executor.poll(handle)
    world.engine.broken = False
    assert isinstance(world.executor.poll(handle), Running)


def test_a_stop_that_the_engine_did_not_take_begins_when_it_takes_it(world):
    handle = started(world, world.spec(world.folder, "trap 'exit 75' TERM; echo up; while :; do sleep 0.02; done"))
    until(lambda: printed(world.executor, handle) == b"up\n")
    world.engine.broken = True
    with pytest.raises(ExecutorError, match="engine is broken"):
        world.executor.stop(handle, grace=0.0)
    world.engine.broken = False
    assert isinstance(world.executor.poll(handle), Running), "the kill waits for a SIGTERM that was taken"
    world.executor.stop(handle, grace=20.0)
    assert ended(world.executor, handle) == Exited(75, asked=True)


def test_a_second_stop_gives_no_more_time(world):
    handle = started(world, world.spec(world.folder, "trap '' TERM; echo up; while :; do sleep 0.02; done"))
    until(lambda: printed(world.executor, handle) == b"up\n")
    world.executor.stop(handle, grace=0.5)
    world.executor.stop(handle, grace=500.0)
    assert ended(world.executor, handle) == Exited(-9, asked=True)


def test_no_engine_is_told_in_one_sentence(tmp_path):
    with pytest.raises(ExecutorError, match=r"no Docker engine answers at unix:///.*choose another executor"):
        DockerExecutor(DockerClient(f"unix://{tmp_path}/none.sock"), "finery").capacity()


def test_a_container_that_was_made_and_never_started_is_removed_when_it_is_looked_for(world):
    spec = world.spec(world.folder, "touch started")
    spec.folder.mkdir()
    world.engine.containers[container_name(spec.attempt_id)] = type(
        "Created",
        (),
        {
            "configuration": {"Labels": {}},
            "process": None,
            "state": lambda self: {"Status": "created", "Running": False},
        },
    )()
    assert (
        world.executor.reattach(
            {"attempt_id": spec.attempt_id, "fencing_token": 1, "record": str(spec.record), "folder": str(spec.folder)}
        )
        is None
    )
    assert world.engine.containers == {}


def test_memory_that_ran_out_is_told(world, monkeypatch):
    handle = started(world, world.spec(world.folder, "kill -9 $$"))
    container = world.engine.containers[container_name(handle.attempt_id)]
    container.process.wait()
    state = container.state()
    monkeypatch.setattr(container, "state", lambda: {**state, "OOMKilled": True})
    assert world.executor.poll(handle) == Exited(-9, "out_of_memory")


def test_data_is_mounted_where_it_is_here_but_never_the_home(tmp_path, monkeypatch):
    for name in ("data/sets", "home/secrets"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("FINERY_DATA", f"{tmp_path / 'data'}:{tmp_path}")
    made = docker(
        Settings(home=tmp_path / "home", executor="docker", docker_host="tcp://127.0.0.1:1", image="finery:1")
    )
    assert made._mounts == [f"{tmp_path / 'data'}:{tmp_path / 'data'}:ro"]
    assert (made.isolation.mode, made._network) == ("container", "bridge")
    assert made._gpus == () or isinstance(made._gpus[0], Gpu)


def test_an_attempt_s_own_places_are_mounted_and_nothing_beside_them(world):
    from service.executors.protocol import Sandbox

    spec = world.spec(world.folder, "exit 0")
    (spec.folder / "inputs").mkdir(parents=True)
    secrets = spec.record / "secrets"
    places = Sandbox(
        read=(str(spec.folder / "inputs"), str(secrets), str(spec.folder / "gone")), write=(str(spec.folder / "runs"),)
    )
    started(world, replace(spec, sandbox=places))
    host = created(world)["HostConfig"]
    here = f"{world.folder}:{world.folder}"  # the stand-in's own
    inputs, runs = spec.folder / "inputs", spec.folder / "runs"
    assert host["Binds"] == [here, f"{inputs}:{inputs}:ro", f"{secrets}:{secrets}:ro", f"{runs}:{runs}"]
    assert (host["PidsLimit"], host["IpcMode"], host["NetworkMode"]) == (4096, "private", "bridge")


@pytest.mark.parametrize("name", ["host", "container:other", ""])
def test_a_network_that_is_the_host_s_own_is_refused(name):
    with pytest.raises(ValueError, match="docker_network"):
        Settings(docker_network=name)


def test_memory_has_a_limit_without_the_job_naming_one(tmp_path):
    with docker_world(tmp_path) as world:
        executor = DockerExecutor(DockerClient(world.engine.address), "finery:test", attempt_memory=None)
        spec = world.spec(tmp_path, "exit 0")
        spec.folder.mkdir()
        executor.start(spec)
        assert created(world)["HostConfig"]["Memory"] == created(world)["HostConfig"]["MemorySwap"] == 7 << 30

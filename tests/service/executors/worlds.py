"""The executors that the contract suite runs on, each with what it needs around it."""

import os
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.executors.docker import DockerClient, DockerExecutor, container_name
from service.executors.isolation import NONE, tried
from service.executors.local import LocalExecutor, marked
from service.executors.process_tree import start_time
from service.executors.protocol import AttemptSpec, HostCapacity, Placement, Running
from service.executors.ray import AgentLink, RayExecutor
from service.executors.registry import executor_of
from service.executors.slurm import SlurmExecutor
from service.settings import Settings
from tests.conftest import REPOSITORY
from tests.service.executors.engine_stand_in import EngineStandIn

HOST = "here"
PROGRAM = (sys.executable, "-m", "tests.service.executors.program")
"""Does what the words after it say, in the interpreter that calls it."""


class World:
    """An executor, how to make another object for the same attempts (a restarted service), and how to lose an attempt."""

    def __init__(self, make, lose, host=HOST):
        self.make = make
        self.executor = make()
        self.lose = lose
        self.host = host
        self.count = 0
        self.before = ()
        self.environment = {}

    def spec(self, folder, script, *, token=1, attempt=None, job="job-1", environment=None, secrets=None, **more):
        """An attempt that runs a shell script in `folder`/`job`."""
        self.count += 1
        attempt = attempt or f"attempt-{os.getpid()}-{time.time_ns()}-{self.count}"
        return AttemptSpec(
            attempt_id=attempt,
            job_id=job,
            fencing_token=token,
            command=(*self.before, "/bin/sh", "-c", script),
            folder=folder / job,
            record=folder / job / "attempts" / attempt,
            environment={"PATH": os.environ["PATH"], **self.environment, **(environment or {})},
            secrets=secrets or {},
            placements=(Placement(self.host),),
            **more,
        )


def registered_world(folder, name):
    """An executor as the registry makes it, on the first of its hosts."""
    settings = Settings(home=folder, executor=name)
    world = World(lambda: executor_of(settings), lose=None)
    world.host = world.executor.capacity()[0].name
    return world


def ended(executor, handle, seconds=20.0):
    """The condition in which an attempt ends."""
    limit = time.monotonic() + seconds
    while isinstance(condition := executor.poll(handle), Running):
        assert time.monotonic() < limit, "it did not end"
        time.sleep(0.01)
    return condition


def until(condition, seconds=20.0, pause=0.01):
    """Wait until `condition()` is true."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(pause)


def printed(executor, handle, after=0):
    return b"".join(executor.logs(handle, after))


def alive(attempt_id):
    """Processes of the attempt that live, wherever they are."""
    return marked(attempt_id)


@contextmanager
def local_world(cgroups, isolation=NONE):
    if isinstance(isolation, str):
        isolation = tried(isolation)
        if isinstance(isolation, str):
            pytest.skip(f"this machine does not isolate so: {isolation}")
    host = HostCapacity(HOST, 2, 8 << 30)

    def lose(handle):
        os.kill(handle.record["launcher_pid"], 9)
        until(lambda: start_time(handle.record["launcher_pid"]) == 0)

    yield World(lambda: LocalExecutor(host, cgroups=cgroups, isolation=isolation), lose)


@contextmanager
def warm_world():
    """On this machine, each attempt forked from an interpreter that is warm already."""
    host = HostCapacity(HOST, 2, 8 << 30)
    with local_world(cgroups=False) as world, tempfile.TemporaryDirectory(prefix="finery-") as folder:
        world.executor = LocalExecutor(host, cgroups=False, warm=1)
        world.make = lambda: LocalExecutor(host, cgroups=False)
        world.before, world.environment = PROGRAM, {"PYTHONPATH": str(REPOSITORY)}
        ended(world.executor, world.executor.start(world.spec(Path(folder), "true")))
        kept = list(world.executor._warm._kept.values())
        until(kept[0].ready)
        yield world
        assert list(world.executor._warm._kept.values()) == kept
        world.executor.close()


def ray_world(cluster):
    """On a node of a real Ray cluster; all executors share one agent, which takes seconds to start."""

    def make():
        executor = RayExecutor(cluster.address, lease=cluster.lease)
        executor._link.close()
        executor._link = cluster.link
        executor.capacity()
        return executor

    def lose(handle):
        cluster.link.ask("kill", attempt_id=handle.attempt_id, count=1)
        until(lambda: (Path(handle.record["record"]) / "exit.json").exists())

    return World(make, lose, host=cluster.hosts()[0])


class RayCluster:
    """Two nodes of a real cluster on this machine, with a head that is missed after seconds instead of a minute."""

    lease = 6.0

    def __init__(self):
        for last in (False, False, True):
            try:
                self._begin()
                break
            except Exception as error:  # Ray raises no narrower one
                if last or "timed out during startup" not in str(error):  # within 30 s, however busy the machine is
                    raise

    def _begin(self):
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 << 20},
        )
        try:
            self.second = cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
        except Exception:
            cluster.shutdown()
            raise
        self.cluster = cluster
        self.address = self.cluster.address
        self.link = AgentLink(self.address)

    def hosts(self):
        """Names of the living nodes, the head's first."""
        head = self.cluster.head_node.node_id
        nodes = [node for node in self.link.ask("nodes") if node["alive"]]
        return [f"{node['host']}-{node['id'][:8]}" for node in sorted(nodes, key=lambda node: node["id"] != head)]

    def close(self):
        self.link.close()
        self.cluster.shutdown()


def slurm_world(daemons):
    """On a node of a real Slurm cluster."""

    def lose(handle):
        for pid in keepers(handle):
            os.kill(pid, 9)
        until(lambda: (Path(handle.record["record"]) / "exit.json").exists())

    return World(lambda: SlurmExecutor(lease=daemons.lease, notice=5.0), lose, host="node1")


def keepers(handle):
    """The processes between Slurm and the launchers of an attempt."""
    words = [b"part", str(handle.record["record"]).encode()]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        if line[-2:] == words and b"srun" not in line[0]:
            found.append(int(path.parent.name))
    return found


@contextmanager
def docker_world(folder):
    with EngineStandIn(folder / "docker.sock") as engine:

        def make():
            return DockerExecutor(DockerClient(engine.address), "finery:test", [f"{folder}:{folder}"])

        def lose(handle):
            container = engine.containers.pop(container_name(handle.attempt_id))
            container.signal(9)
            container.process.wait()
            until(
                lambda: not alive(handle.attempt_id)
            )  # the kernel ends a container's last process before an engine forgets it

        world = World(make, lose, host="engine-host")
        world.engine = engine
        yield world

import os

import pytest

from pipelines.core.errors import CommandError
from service.executors import hosts
from service.executors.protocol import Gpu, HostCapacity, Placement

TOLD = "0, 143771, NVIDIA H200\n1, 143771, NVIDIA H200\nmoments later\n2, [N/A], broken\n3, 24576, NVIDIA GeForce RTX 4090, OC\n"


def test_the_driver_s_lines_are_read_and_others_left_out():
    assert hosts.parse_gpus(TOLD) == (
        Gpu(0, 143771 << 20, "NVIDIA H200"),
        Gpu(1, 143771 << 20, "NVIDIA H200"),
        Gpu(3, 24576 << 20, "NVIDIA GeForce RTX 4090, OC"),
    )


@pytest.fixture
def driver(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{TOLD}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_devices_of_this_machine_are_those_that_it_may_see(driver, monkeypatch):
    assert [gpu.index for gpu in hosts.gpus_here()] == [0, 1, 3]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert [gpu.index for gpu in hosts.gpus_here()] == [1, 3]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert hosts.gpus_here() == ()


def test_a_driver_that_fails_means_no_devices(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hosts.gpus_here() == ()


def test_a_server_may_be_given_some_of_them(driver):
    assert [gpu.index for gpu in hosts.this_host(gpus="3,0").gpus] == [3, 0]
    assert hosts.this_host(gpus="").gpus == ()
    with pytest.raises(CommandError, match="--gpus names 7, but this machine has 0, 1, 3"):
        hosts.this_host(gpus="0,7")


def test_cores_and_memory_are_found_or_given():
    here = hosts.this_host()
    assert here.cpus == len(os.sched_getaffinity(0))
    assert 0 < here.memory <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (hosts.this_host(cpus=1, memory=5).cpus, hosts.this_host(cpus=1, memory=5).memory) == (1, 5)


GIB = 1 << 30


@pytest.mark.parametrize(
    ("host", "here", "setting", "limit"),
    [
        (HostCapacity("h", 64, 512 * GIB), Placement("h", memory=3 * GIB), None, 3 * GIB),  # what the job names
        (HostCapacity("h", 64, 512 * GIB), Placement("h", memory=3 * GIB), 5 * GIB, 3 * GIB),
        (HostCapacity("h", 64, 512 * GIB), Placement("h"), 5 * GIB, 5 * GIB),
        (HostCapacity("h", 64, 512 * GIB), Placement("h"), 0, 0),
        (
            HostCapacity("h", 64, 512 * GIB),
            Placement("h", cpus=1),
            None,
            8 * GIB,
        ),  # a 64th would not hold torch and its data
        (
            HostCapacity("h", 64, 512 * GIB, tuple(map(Gpu, range(8)))),
            Placement("h", (0, 1)),
            None,
            int(512 * GIB * 0.95 / 4),
        ),
        (HostCapacity("h", 2, 8 * GIB), Placement("h"), None, 7 * GIB),
        (HostCapacity("h", 1, 1 * GIB), Placement("h"), None, GIB // 2),
        (HostCapacity("h", 1, 0), Placement("h"), None, 0),
    ],
)
def test_an_attempt_has_a_limit_of_memory_also_when_its_job_names_none(host, here, setting, limit):
    assert abs(hosts.memory_limit(host, here, setting) - limit) <= 1

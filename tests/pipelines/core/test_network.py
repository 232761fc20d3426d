import json

import pytest

from pipelines.core.network import (
    AllReduce,
    NetworkMeasurement,
    keep_measurement,
    measurement_for,
    network_file,
    read_network,
)


def measured(hosts=1, processes=4, backend="nccl", time="2026-11-23T10:00:00+00:00", seconds=1.5):
    rows = (AllReduce(4096, 60e-6), AllReduce(1_000_000_000, seconds))
    return NetworkMeasurement(hosts, processes, backend, "NVIDIA H100", time, rows)


def test_latency_and_bandwidth_are_those_of_a_ring():
    """Of 4 ranks: 6 steps; each link carries 2 * 3/4 of 1 GB in 1.5 s, which is 1 GB/s."""
    assert measured().latency_seconds == pytest.approx(10e-6)
    assert measured().bytes_per_second == pytest.approx(1e9)


def test_the_newest_measurement_of_each_world_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FINERY_HOME", str(tmp_path / "home"))
    assert read_network() == ()
    keep_measurement(measured(time="2026-11-23T10:00:00+00:00"))
    keep_measurement(measured(hosts=2, processes=16, time="2026-11-23T11:00:00+00:00"))
    keep_measurement(measured(time="2026-11-23T12:00:00+00:00", seconds=3.0))
    assert [(each.hosts, each.bytes_per_second) for each in read_network()] == [(1, 0.5e9), (2, 1.25e9)]
    assert json.loads(network_file().read_text())["measurements"][0]["device"] == "NVIDIA H100"
    network_file().write_text('{"measurements": [{"other": 1}]}')
    assert read_network() == ()


def test_a_plan_finds_the_measurement_nearest_to_its_world():
    measurements = [measured(), measured(processes=8), measured(hosts=2, processes=16), measured(backend="gloo")]
    assert measurement_for(1, 8, "nccl", measurements) == measurements[1]
    assert measurement_for(64, 512, "nccl", measurements) == measurements[2], "between hosts, as it is"
    assert measurement_for(2, 4, "gloo", measurements) is None, "one host says nothing of a network"

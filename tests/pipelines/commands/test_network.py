import json
import os
import subprocess
import sys

import pytest

from pipelines.commands import network
from pipelines.core.errors import CommandError, StageError
from pipelines.core.network import NETWORK, read_network
from tests.conftest import REPOSITORY

HOST = {"host": "a", "number": 0, "gpus": 0, "python": "3.12.1", "torch": "2.13.0", "finery": "0.1.0", "behind": 0.1}


def found(findings):
    return {each["what"]: (each["verdict"], each["found"]) for each in findings}


def test_hosts_with_other_versions_or_clocks_are_named():
    findings = found(network.checks([HOST, {**HOST, "host": "b", "torch": "2.12.0", "behind": -90.0}], {}))
    assert findings["torch"] == ("lacks", "a has 2.13.0, b has 2.12.0")
    assert findings["Clocks"] == ("note", "90 s apart")
    assert findings["Shared folder"] == ("good", "all 2 hosts write and read it: a, b")
    assert "python" not in findings


@pytest.mark.parametrize(
    ("environment", "count", "name", "verdict", "sentence"),
    [
        ({"NCCL_SOCKET_IFNAME": "ib0"}, 2, "NCCL_SOCKET_IFNAME", "lacks", "ib0, which this host does not have"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, 2, "NCCL", "good", "NCCL_SOCKET_IFNAME=eth"),
        ({"NCCL_SOCKET_IFNAME": "^docker"}, 2, "NCCL", "good", "NCCL_SOCKET_IFNAME=^docker"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, 2, "GLOO_SOCKET_IFNAME", "lacks", "lo, which reaches no other host"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, 1, "NCCL", "good", "GLOO_SOCKET_IFNAME=lo"),
        ({"NCCL_DEBUG": "INFO"}, 2, "NCCL_DEBUG", "note", "INFO"),
        ({}, 2, "NCCL", "good", "no NCCL_… or GLOO_… variable is set: interfaces are chosen by the libraries"),
    ],
)
def test_what_nccl_was_told_is_held_against_this_host(environment, count, name, verdict, sentence):
    assert found(network.nccl(environment, {"lo", "eth0"}, count)) == {name: (verdict, sentence)}


def test_a_world_that_cannot_be_measured_is_refused(monkeypatch):
    monkeypatch.delenv("FINERY_WORLD", raising=False)
    with pytest.raises(CommandError, match=r"--processes 1 cannot be measured on 1 host: name at least two"):
        network.answer({"processes": 1})


def test_a_host_that_does_not_come_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "MEET_SECONDS", 0.5)
    for name, value in {"WORLD": str(tmp_path), "HOSTS": "3", "HOST": "0", "ADDRESS": "127.0.0.1"}.items():
        monkeypatch.setenv(f"FINERY_{name}", value)
    (tmp_path / "doctor").mkdir()
    (tmp_path / "doctor" / "ready-1.json").write_text("{}")  # of an earlier meeting
    with pytest.raises(StageError, match=r"host 1, 2 did not come within 0 s.*FINERY_WORLD=.* that they share"):
        network.answer({})
    assert list(tmp_path.iterdir()) == []


def test_a_later_host_names_those_that_did_not_come(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "MEET_SECONDS", 0.5)
    for name, value in {"WORLD": str(tmp_path), "HOSTS": "3", "HOST": "2", "ADDRESS": "127.0.0.1"}.items():
        monkeypatch.setenv(f"FINERY_{name}", value)
    with pytest.raises(StageError, match=r"host 0, 1 did not come within 0 s"):
        network.answer({})


@pytest.mark.long
def test_two_hosts_meet_in_a_folder_and_measure(tmp_path):
    """Two processes of this machine stand for two hosts, by the same variables."""
    children = []
    for number in (1, 0):
        environment = {
            **os.environ,
            "FINERY_WORLD": str(tmp_path / "world"),
            "FINERY_HOSTS": "2",
            "FINERY_HOST": str(number),
            "FINERY_ADDRESS": "127.0.0.1",
            "FINERY_HOME": str(tmp_path / f"home-{number}"),
        }
        command = (sys.executable, "-m", "pipelines", "network", '{"processes": 4}')
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        children.append(subprocess.Popen(command, env=environment, cwd=REPOSITORY, **pipes))
    said = [child.communicate(timeout=300) for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    answer = json.loads(said[1][0])
    assert found(answer["findings"])["Shared folder"][0] == "good"
    assert found(answer["findings"])["Rendezvous"] == ("note", "at 127.0.0.1, an address of this machine alone")
    (kept,) = read_network(tmp_path / "home-0" / NETWORK)
    assert (kept.hosts, kept.processes, kept.backend, kept.device) == (2, 4, "gloo", "cpu")
    assert [each.bytes for each in kept.all_reduce] == list(network.SIZES)
    assert kept.all_reduce[-1].seconds > kept.all_reduce[0].seconds > 0
    assert "measured; the first host shows and keeps it" in said[0][0]
    assert not (tmp_path / "home-1" / "network.json").exists()
    assert list((tmp_path / "world").iterdir()) == []

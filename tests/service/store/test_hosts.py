from dataclasses import replace

import pytest

from service.jobs.job import GpuSlot, Host, HostShare, JobRequest, Resources
from service.store.errors import NotFound

HOST = Host(
    "here",
    cpus=4,
    memory=5 << 40,
    slots=(GpuSlot(0, "H200", 141 << 30, "u0"), GpuSlot(1, "H200", 141 << 30, "u1")),
    info={"driver": "1"},
)


def test_a_host_is_as_it_was_reported_last(store):
    store.report_host(HOST)
    assert [replace(host, seen=0.0) for host in store.hosts()] == [HOST]
    fewer = replace(HOST, cpus=8, slots=(HOST.slots[1], GpuSlot(2, "A100", 80 << 30)))
    store.report_host(fewer)
    assert [replace(host, seen=0.0) for host in store.hosts()] == [fewer]


def test_a_gpu_that_vanished_stays_held_by_its_attempt_and_comes_back(store):
    store.report_host(HOST)
    job = store.submit(JobRequest("name: x\n", "p", resources=Resources(gpus=1)))[0]
    attempt = store.start(job.id, (HostShare("here", (0,)),), executor="local", holder="me", lease_seconds=30)
    store.report_host(replace(HOST, slots=HOST.slots[1:]))
    assert store.slot_holders() == {("here", 0): attempt.id}
    store.report_host(HOST)
    assert len(store.hosts()[0].slots) == 2
    assert store.slot_holders() == {("here", 0): attempt.id}


def test_draining_is_the_admins_word_and_a_report_does_not_end_it(store):
    store.report_host(HOST)
    store.set_host_state("here", "draining")
    store.report_host(HOST)
    assert store.hosts()[0].state == "draining"
    store.report_host(replace(HOST, state="down"))
    assert store.hosts()[0].state == "down"
    store.report_host(HOST)
    assert store.hosts()[0].state == "up"


def test_unknown_hosts_and_states_are_refused(store):
    with pytest.raises(NotFound, match="there is no host 'nowhere'"):
        store.set_host_state("nowhere", "up")
    with pytest.raises(ValueError, match="state is 'off', must be one of up, draining, down"):
        store.set_host_state("here", "off")

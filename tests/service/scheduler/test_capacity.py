from hypothesis import given, settings
from hypothesis import strategies as st

from service.jobs.job import GpuSlot, Host, HostShare, Resources
from service.scheduler.capacity import Capacity
from service.scheduler.queue import RunningJob
from tests.service.scheduler.worlds import clusters, needs, obvious_place, picture


@settings(max_examples=150, deadline=None)
@given(clusters(), needs)
def test_a_place_is_found_exactly_when_trying_everything_finds_one(cluster, resources):
    machines, running = cluster
    found = Capacity(machines, running).place(resources)
    assert (found is None) is (obvious_place(machines, running, resources) is None)
    if found is not None:
        assert len(found) == resources.hosts


@settings(max_examples=100, deadline=None)
@given(clusters(), st.data())
def test_jobs_that_end_leave_what_would_be_there_without_them(cluster, data):
    machines, running = cluster
    capacity = Capacity(machines, running)
    gone = data.draw(st.sets(st.sampled_from([job.id for job in running]))) if running else set()
    for identifier in sorted(gone):
        capacity.free(identifier)
    assert picture(capacity) == picture(Capacity(machines, [job for job in running if job.id not in gone]))


def test_a_job_on_a_host_or_gpu_that_is_gone_is_known_and_harms_nothing():
    needs = Resources(gpus=1)
    lost = RunningJob("lost", (HostShare("gone", (0,)),), "p", resources=needs)
    odd = RunningJob("odd", (HostShare("h", (7,)),), "p", resources=needs)
    capacity = Capacity([Host("h", cpus=4, slots=(GpuSlot(0), GpuSlot(1)))], [lost, odd])
    assert capacity.projects["p"].gpus == 2
    assert capacity.place(Resources(gpus=2)) == (HostShare("h", (0, 1)),)
    capacity.free("lost")
    capacity.free("odd")
    assert capacity.rooms["h"].gpus == [0, 1]
    assert capacity.projects == {}


def test_equal_hosts_are_preferred_for_a_job_over_several():
    hosts = [
        Host("a1", cpus=1, slots=(GpuSlot(0, "A"),)),
        Host("b1", cpus=8, slots=(GpuSlot(0, "B"),)),
        Host("b2", cpus=8, slots=(GpuSlot(0, "B"),)),
    ]
    assert [part.host for part in Capacity(hosts).place(Resources(gpus=1, hosts=2))] == ["b1", "b2"]
    assert [part.host for part in Capacity(hosts[:2]).place(Resources(gpus=1, hosts=2))] == ["a1", "b1"]

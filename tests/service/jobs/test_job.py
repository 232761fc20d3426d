import threading
import time
from dataclasses import replace

import pytest

from service.jobs import job
from service.jobs.job import GpuSlot, JobRequest, Resources


def test_the_digest_sees_what_is_asked_and_not_who_asks_or_the_key():
    request = JobRequest("name: x", "p")
    assert replace(request, idempotency_key="a", submitted_by="t").digest() == request.digest()
    for other in (
        {"recipe": "name: y"},
        {"overrides": ("seed=1",)},
        {"priority": 1},
        {"resources": Resources(gpus=1)},
        {"depends_on": ("j",)},
    ):
        assert replace(request, **other).digest() != request.digest()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"priority": 1001}, "priority is 1001, must lie between -1000 and 1000"),
        ({"expected_seconds": 0.0}, "expected_seconds is 0.0, must be above 0"),
        ({"idempotency_key": "k" * 256}, "the idempotency key has 256 characters"),
    ],
)
def test_an_impossible_request_is_refused_with_a_sentence(values, message):
    with pytest.raises(ValueError, match=message):
        JobRequest("name: x", "p", **values)


@pytest.mark.parametrize("field", ["gpus", "gpu_memory", "cpus", "memory"])
def test_resources_are_never_negative(field):
    with pytest.raises(ValueError, match=f"{field} is -1, must be at least 0"):
        Resources(**{field: -1})


def test_a_gpu_suits_by_part_of_its_name_and_by_its_size():
    slot = GpuSlot(0, "NVIDIA H200", 141 << 30)
    assert Resources(gpus=1, gpu_kind="h200", gpu_memory=100 << 30).suits(slot)
    assert not Resources(gpus=1, gpu_kind="a100").suits(slot)
    assert not Resources(gpus=1, gpu_memory=142 << 30).suits(slot)


def test_ids_of_one_process_strictly_increase_over_threads_and_when_the_clock_goes_back(monkeypatch):
    made: list[list[str]] = [[] for _ in range(4)]

    def make(place):
        for _ in range(500):
            made[place].append(job.new_id("job"))

    threads = [threading.Thread(target=make, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [identifier for each in made for identifier in each]
    assert len(set(everything)) == 2000
    assert all(each == sorted(each) for each in made)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert job.new_id("job") > max(everything)


def test_the_spelling_is_that_of_a_ulid(monkeypatch):
    """01ARZ3NDEKTSV4RRFFQ69G5FAV of github.com/ulid/spec was made at 1469922850259 ms."""
    monkeypatch.setattr(job, "_last", 0)
    monkeypatch.setattr(time, "time_ns", lambda: 1469922850259 * 1_000_000)
    assert job.new_id("job").startswith("job-01arz3ndek")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "job-",
        "job-01arz3ndektsv4rrffq69g5fa",
        "01arz3ndektsv4rrffq69g5fav",
        "job-81arz3ndektsv4rrffq69g5fav",
        "job-01arz3ndektsv4rrffq69g5fal",
    ],
)
def test_what_is_no_id_is_refused(wrong):
    assert not job.PATTERN.match(wrong)

from dataclasses import replace

import pytest

from service.jobs.job import JobRequest, Resources, Slot


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
    slot = Slot(0, "NVIDIA H200", 141 << 30)
    assert Resources(gpus=1, gpu_kind="h200", gpu_memory=100 << 30).suits(slot)
    assert not Resources(gpus=1, gpu_kind="a100").suits(slot)
    assert not Resources(gpus=1, gpu_memory=142 << 30).suits(slot)

import threading
import time

import pytest

from service.jobs import job


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


def test_an_id_tells_when_it_was_made():
    before = time.time()
    assert before - 0.001 <= job.made_at(job.new_id("attempt")) <= time.time() + 2.0  # it counts on after a burst


def test_the_spelling_is_that_of_a_ulid():
    """01ARZ3NDEKTSV4RRFFQ69G5FAV of github.com/ulid/spec was made at 1469922850259 ms."""
    assert job.made_at("job-01arz3ndektsv4rrffq69g5fav") == 1469922850.259


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
    with pytest.raises(ValueError, match="is no id"):
        job.made_at(wrong)

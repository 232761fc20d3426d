import threading
import time
from datetime import UTC, datetime

import pytest

from pipelines.core.events import EventLog, read_events
from service.jobs.job import HostShare, JobRequest
from service.jobs.states import Ending, Move, State
from service.store.changes import JOBS, job_topic
from service.store.events import progress_after
from service.store.store import Store


@pytest.fixture
def attempt(store):
    job = store.submit(JobRequest("name: x\n", "p"))[0]
    return store.start(job.id, (HostShare("here"),), executor="local", holder="me", lease_seconds=30)


def test_lines_of_a_run_are_taken_in_once_and_numbered_on(store, attempt, tmp_path):
    log = EventLog(tmp_path / "events.jsonl", "mrpc")
    log.emit("started")
    log.emit("metric", step=10, metrics={"loss": float("nan"), "word": "a\0b é"})
    lines = list(read_events(log.path))
    assert store.ingest(attempt.id, attempt.fencing, lines, 100) == 2
    assert store.ingest(attempt.id, attempt.fencing, lines, 100) == 0
    log.emit("metric", step=20, metrics={"loss": 0.5})
    assert store.ingest(attempt.id, attempt.fencing, list(read_events(log.path)), 150) == 1
    events = store.events_after(attempt.job)
    assert [event.id for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event.event for event in events] == ["state", "state", "state", "started", "metric", "metric"]
    assert (events[4].stage, events[4].step, events[4].attempt) == ("mrpc", 10, attempt.id)
    assert events[4].fields["metrics"]["loss"] == "nan"
    assert events[4].time == datetime.fromisoformat(lines[1]["time"]).timestamp()
    kept = store.attempt(attempt.id)
    assert (kept.ingested, kept.offset) == (3, 150)


def test_text_that_a_database_might_refuse_is_taken(store, attempt):
    store.ingest(
        attempt.id,
        attempt.fencing,
        [{"id": 1, "event": "sample", "stage": "s\0", "text": "half a pair \ud800, a NUL \0"}],
        1,
    )
    event = store.events_after(attempt.job)[-1]
    assert event.stage == "s"
    assert event.fields["text"].startswith("half a pair")


def test_the_first_line_makes_a_starting_job_run_and_no_other_state(store, attempt):
    store.ingest(attempt.id, attempt.fencing, [], 0)
    assert store.job(attempt.job).state is State.STARTING
    store.ingest(attempt.id, attempt.fencing, [{"id": 1, "event": "started"}], 5)
    running = store.job(attempt.job)
    assert running.state is State.RUNNING
    assert running.started is not None
    store.move(attempt.job, Move.PAUSE)
    store.ingest(attempt.id, attempt.fencing, [{"id": 2, "event": "progress", "step": 1}], 9)
    assert store.job(attempt.job).state is State.PAUSING


def test_the_next_attempt_goes_on_where_the_last_one_stopped_reading(store, attempt):
    store.ingest(attempt.id, attempt.fencing, [{"id": 1, "event": "started"}], 40)
    store.end_attempt(attempt.id, attempt.fencing, Ending(Move.STOPPED))
    second = store.start(attempt.job, (HostShare("here"),), executor="local", holder="me", lease_seconds=30)
    assert (second.ingested, second.offset) == (1, 40)
    assert store.ingest(second.id, second.fencing, [{"id": 1, "event": "started"}], 40) == 0
    assert store.ingest(second.id, second.fencing, [{"id": 2, "event": "progress"}], 80) == 1


def test_ids_have_no_gaps_when_many_write_at_once(store, attempt):
    def write():
        for _ in range(5):
            store.set_priority(attempt.job, 7)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.id for event in store.events_after(attempt.job)] == list(range(1, 23))


def test_a_reader_goes_on_from_any_id_and_may_ask_for_kinds(store, attempt):
    kinds = ["sample", "warning", "sample", "warning", "sample"]
    events = [{"id": number + 1, "event": kind, "number": number} for number, kind in enumerate(kinds)]
    store.ingest(attempt.id, attempt.fencing, events, 50)
    assert [event.id for event in store.events_after(attempt.job, 4, limit=2)] == [5, 6]
    assert [event.fields["number"] for event in store.events_after(attempt.job, kinds=["warning"])] == [1, 3]


def test_who_waits_is_woken_by_another_process_within_a_moment(store, attempt):
    other = Store(store.engine.url.render_as_string(hide_password=False))
    topic, woken = job_topic(attempt.job), []
    store.changes.version(topic)
    time.sleep(0.6)  # the listener is up
    seen = store.changes.version(topic)
    waiter = threading.Thread(target=lambda: woken.append((store.changes.wait(topic, seen, 10), time.monotonic())))
    waiter.start()
    written = time.monotonic()
    other.ingest(attempt.id, attempt.fencing, [{"id": 1, "event": "started"}], 9)
    waiter.join()
    other.close()
    ((version, moment),) = woken
    assert version != seen
    assert moment - written < 1.0


def test_callbacks_hear_of_their_topic_until_they_end(store, attempt):
    heard = []
    end = store.changes.subscribe(job_topic(attempt.job), lambda: heard.append("job"))
    store.changes.subscribe(JOBS, lambda: heard.append("any"))
    store.ingest(attempt.id, attempt.fencing, [{"id": 1, "event": "started"}], 9)
    assert {"job", "any"} <= set(heard)
    end()
    heard.clear()
    store.changes.touch({job_topic(attempt.job)})
    assert heard == []


def test_an_unreadable_time_becomes_now(store, attempt):
    store.ingest(attempt.id, attempt.fencing, [{"id": 1, "event": "started", "time": "yesterday"}], 1)
    assert abs(store.events_after(attempt.job)[-1].time - datetime.now(UTC).timestamp()) < 60


def test_progress_keeps_the_newest_of_a_stage_and_begins_anew_with_the_next():
    events = [
        {"event": "progress", "stage": "a", "step": 1, "total": 9},
        {"event": "metric", "stage": "a", "step": 2, "metrics": {"loss": 0.5, "other": 1}},
        {"event": "checkpoint", "stage": "a", "step": 2, "path": "x"},
    ]
    first = progress_after({}, events)
    assert first == {"stage": "a", "step": 2, "total": 9, "loss": 0.5, "checkpoint": 2}
    assert progress_after(first, [{"event": "started", "stage": "b"}]) == {"stage": "b"}
    assert progress_after(first, [{"event": "warning", "stage": "b", "message": "m"}]) == first


def test_progress_says_anew_what_is_counted_and_how_far_it_is():
    before = {"stage": "a", "step": 40, "total": 60, "what": "examples", "loss": 0.5}
    assert progress_after(before, [{"event": "progress", "stage": "a", "what": "saving"}]) == {
        "stage": "a",
        "loss": 0.5,
        "what": "saving",
    }
    assert progress_after(
        before, [{"event": "metric", "stage": "a", "step": 41, "metrics": {"loss": 0.4}}]
    ) == before | {"step": 41, "loss": 0.4}

"""Whatever an attempt writes into its events: it ends, the store keeps what is well-formed, and every page and route shows it."""

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from pipelines.core.events import EVENTS
from service.attempts import ingesting
from service.attempts.folders import folders_of
from service.attempts.ingesting import (
    LONGEST_LINE,
    EventBatch,
    Intake,
    event_of,
    finished_stages,
    newest_event,
    plain_scores,
    read_batch,
)
from service.attempts.watching import Watcher
from service.executors.protocol import Exited
from service.jobs.job import HostShare, JobRequest
from service.jobs.states import AttemptState, Ending, Move, Reason, State
from service.safety.redaction import Redactor
from service.settings import read_settings
from service.store.store import open_store
from service.web.sessions import COOKIE, Sessions
from tests.covering import examples
from tests.service.databases import fresh_postgresql, missing
from tests.service.served import RECIPE, Served
from tests.words import words_of

SETTINGS = examples(5, 60, suppress_health_check=[HealthCheck.function_scoped_fixture])
GOOD = {
    "id": 1,
    "time": "2026-11-21T10:00:00+00:00",
    "event": "metric",
    "stage": "s",
    "step": 1,
    "metrics": {"loss": 0.5},
}
ODD = [
    b'{"id": 2, "event": "stage_finished", "stage": "s", "seconds": "a while"}',
    b'{"id": 2, "event": "stage_finished", "stage": "s", "seconds": {"a": 1}}',
    b'{"id": 2, "event": "stage_finished", "stage": "s", "metrics": [1]}',
    b'{"id": 2, "event": "stage_finished", "stage": "s", "metrics": "x", "reused": "yes"}',
    b'{"id": 2, "event": "stage_finished", "stage": "s", "fingerprint": {"a": 1}}',
    b'{"id": 2, "event": "stage_finished", "stage": ["s"]}',
    b'{"id": 2, "event": "stage_finished", "stage": "' + b"s" * 3000 + b'"}',
    b'{"id": 2, "event": "metric", "stage": "s", "step": "three"}',
    b'{"id": 2, "event": "metric", "stage": "s", "step": -1}',
    b'{"id": 2, "event": "metric", "stage": "s", "step": 1e308}',
    b'{"id": %d, "event": "started"}' % 2**70,
    b'{"id": %d, "event": "started"}' % 2**62,
    b'{"id": -5, "event": "started"}',
    b'{"id": 0, "event": "started"}',
    b'{"id": true, "event": "started"}',
    b'{"id": 2.5, "event": "started"}',
    b'{"id": NaN, "event": "started"}',
    b'{"id": Infinity, "event": "started"}',
    b'{"event": "started"}',
    b'{"id": 2}',
    b'{"id": 2, "event": "state", "state": "succeeded"}',
    b'{"id": 2, "event": "priority", "priority": "x"}',
    b'{"id": 2, "event": {"a": 1}}',
    b'{"id": 2, "event": "started", "x": ' + b"9" * 60_000 + b"}",
    b'{"id": 2, "event": "started", "x": ' + b"[" * 40 + b"]" * 40 + b"}",
    b"[" * 200_000 + b"]" * 200_000,
    b'{"id": 2, "event": "metric", "metrics": {' + b",".join(b'"m%d": 1' % n for n in range(30_000)) + b"}}",
    b'{"id": 2, "event": "metric", "metrics": {"' + b"n" * 5000 + b'": 1}}',
    b'{"id": 2, "event": "cell", "cell": "../../../../etc", "status": "done"}',
    b'{"id": 2, "event": "cell", "cell": {"a": 1}, "status": "done"}',
    b'{"id": 2, "event": "cell", "cell": "cells/..", "status": ["done"], "labels": []}',
    b'{"id": 2, "event": "cell", "cell": "cells/01", "labels": 3}',
    b'{"id": 2, "event": "failed", "message": {"a": 1}}',
    b'{"id": 2, "event": "progress", "total": "many"}',
    b'{"id": 2, "event": "progress", "what": 3}',
    b'{"id": 2, "event": "started", "x": "' + b"y" * LONGEST_LINE + b'"}',
    b"\xff\xfe\x00",
    b"null",
    b"3",
    b'"x"',
    b"[]",
    b"{",
    b'{"id": 2, "event": "started"}}',
    b"\x00" * 50,
]
"""Lines that are no events."""
TAKEN = [
    b'{"id": 2, "event": "metric", "stage": "s", "step": 1, "metrics": {"loss": NaN, "x": Infinity, "y": -Infinity, "z": 1e999}}',
    b'{"id": 2, "event": "metric", "stage": "s", "step": 1, "metrics": {"loss": 1%s}}' % (b"0" * 400),
    b'{"id": 2, "event": "sample", "text": "half \\ud800 a pair, a NUL \\u0000", "a\\u0000b\\udfff": 1, "labels": [1, 2]}',
    b'{"id": 2, "event": "started", "time": "0001-01-01T00:00:00+14:00"}',
    b'{"id": 2, "event": "started", "time": "9999-12-31T23:59:59"}',
    b'{"id": 2, "event": "started", "time": {"a": 1}}',
    b'{"id": 2, "event": "started", "time": "2026-11-21"}',
    b'{"id": 2, "event": "stage_finished", "stage": "s", "seconds": null, "metrics": null, "reused": null, "fingerprint": null}',
    b'{"id": 2, "event": "stage_finished", "stage": "e", "metrics": {"b": {"a\\u0000": 1, "a": 2, "huge": 1e308, "t": "x", "n": {"d": 1}}}}',
    b'{"id": 2, "event": "stage_finished", "stage": "../../x", "metrics": {"b": {}}}',
    b'{"id": 2, "event": "progress", "stage": "s", "step": 5, "total": 0, "what": "<script>", "loss": "nan"}',
    b'{"id": 2, "event": "metric", "stage": "s", "step": 3, "metrics": {"loss": {"deep": [1]}, "learning_rate": [], "epoch": {"x": 1}}}',
    b'{"id": 2, "event": "cell", "cell": "cells/01", "status": "done", "labels": {"seed": 3, "x": {"y": 1}}, "seconds": 1}',
    b'{"id": 2, "event": "checkpoint", "stage": "s", "step": 2.0, "path": "a/b", "attempt": {"x": 1}, "id2": 1}',
]
"""Lines that are events, with values that a database, a page or JSON would not take as they are."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.just(2**70)
    | st.just("\0\ud800")
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(
    words_of(
        "stage step total metrics seconds reused fingerprint cell status labels message what time loss path reason"
    )
)
lines = st.one_of(
    st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"")),
    st.builds(
        lambda number, event, more: json.dumps({"id": number, "event": event, **more}).encode(),
        st.integers(1, 40) | scalars, st.sampled_from([*EVENTS, "state"]), st.dictionaries(fields, values, max_size=5),
    ),
    st.sampled_from(ODD + TAKEN),
)  # fmt: skip


class World:
    """A store with everything that shows it."""

    def __init__(self, home, url):
        self.settings = read_settings({}, home=home, database_url=url, burst=10**9, requests_per_second=10**9)
        self.store = open_store(self.settings)
        self.served = Served(self.settings, self.store)
        self.sessions = self.served.app.state.web_sessions = Sessions(self.store, home)
        token = next(each for each in self.store.tokens("acme") if each.role == "viewer")
        self.served.nobody.cookies.set(COOKIE, self.sessions.make(token)[0])

    def begun(self, recipe=RECIPE):
        job = self.store.submit(JobRequest(recipe, "acme", name="demo", kind="openai"))[0]
        attempt = self.store.start(job.id, (HostShare("here"),), executor="local", holder="me", lease_seconds=1e6)
        folders = folders_of(self.settings.jobs, job)
        folders.run.mkdir(parents=True)
        return self.store.attempt_started(
            attempt.id, attempt.fencing, {"fencing_token": attempt.fencing, "record": str(folders.record(attempt.id))}
        ), folders

    def seen_to_its_end(self, attempt, job, code=1):
        """What a watcher does when the process has ended."""
        executor = type("Gone", (), {"name": "local", "poll": lambda self, handle: Exited(code, False, None)})()
        watcher = Watcher(self.store, self.settings, executor, "me")
        watcher._look(attempt, self.store.job(job))
        assert watcher._errors == {}
        watcher.stop()

    def shown(self, job):
        """Every route and page that shows a job answers."""
        for address in ("", "/attempts", "/stages", "/events?limit=500", "/metrics", "/cells", "/logs"):
            answer = self.served.viewer.get(f"/api/v1/jobs/{job}{address}")
            assert answer.status_code == 200, (address, answer.text)
        assert self.served.viewer.get("/api/v1/jobs").status_code == 200
        assert self.served.viewer.get(f"/v1/fine_tuning/jobs/ft{job}").status_code == 200
        assert self.served.viewer.get(f"/v1/fine_tuning/jobs/ft{job}/events").status_code == 200
        for page in ("/jobs", f"/jobs/{job}"):
            assert self.served.nobody.get(page).status_code == 200


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request, tmp_path_factory, migrated_sqlite):
    home = tmp_path_factory.mktemp("home")
    if request.param == "sqlite":
        shutil.copy(migrated_sqlite, home / "finery.db")
        made = World(home, "")
        yield made
        made.store.close()
        return
    if missing():
        pytest.skip(missing())
    with fresh_postgresql() as url:
        made = World(home, url)
        yield made
        made.store.close()


@SETTINGS
@given(written=st.lists(lines, max_size=12), torn=st.binary(max_size=20))
@example(written=ODD, torn=b"")
@example(
    written=[line.replace(b'"id": 2', b'"id": %d' % number) for number, line in enumerate(TAKEN, 2)], torn=b'{"id": 3'
)
def test_no_bytes_in_the_events_stop_an_attempt_from_ending(world, written, torn):
    attempt, folders = world.begun()
    good = json.dumps(GOOD).encode()
    folders.events.write_bytes(b"\n".join([good, *written]) + b"\n" + torn)
    world.seen_to_its_end(attempt, attempt.job)
    assert world.store.attempt(attempt.id).state is AttemptState.ENDED
    events = world.store.events_after(attempt.job)
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert any(event.event == "metric" and event.fields["metrics"] == {"loss": 0.5} for event in events)
    assert [event.fields.get("state") for event in events if event.event == "state"][:3] == [
        "queued",
        "starting",
        "running",
    ]
    world.shown(attempt.job)


@pytest.mark.parametrize("line", ODD, ids=range(len(ODD)))
def test_an_odd_line_is_skipped(line):
    with pytest.raises(ValueError, match=r"^it|^its"):
        event_of(line, 10_000)


@pytest.mark.parametrize("line", TAKEN, ids=range(len(TAKEN)))
def test_what_would_not_fit_is_made_to_fit(line):
    event = event_of(line, 10_000)
    assert json.loads(json.dumps(event, allow_nan=False).encode()) == event
    assert "\\u0000" not in json.dumps(event)


def test_odd_lines_leave_one_warning_whatever_their_number_and_are_counted(world):
    attempt, folders = world.begun()
    intake = Intake(world.store, folders, attempt, Redactor())
    folders.events.write_bytes(json.dumps(GOOD).encode() + b"\n" + ODD[0] + b"\n")
    intake.take(attempt.fencing)
    with open(folders.events, "ab") as file:
        file.write(b"\n".join(ODD[:10] * 500) + b"\n")
    Intake(world.store, folders, world.store.attempt(attempt.id), Redactor()).take(attempt.fencing, batches=None)
    warnings = [event.fields["message"] for event in world.store.events_after(attempt.job) if event.event == "warning"]
    assert warnings == [
        "a line of events.jsonl is skipped, because its seconds is no number of seconds; any further ones are skipped without a word"
    ]
    assert world.store.attempt(attempt.id).skipped_lines == 5001
    world.store.end_attempt(attempt.id, attempt.fencing, Ending(Move.FAIL, Reason.INTERNAL))


def test_repeated_ids_are_taken_once(world):
    attempt, folders = world.begun()
    line = json.dumps(GOOD).encode()
    folders.events.write_bytes(b"\n".join([line, line, line.replace(b'"id": 1', b'"id": 2'), line]) + b"\n")
    assert Intake(world.store, folders, attempt, Redactor()).take(attempt.fencing) == 2
    world.store.end_attempt(attempt.id, attempt.fencing, Ending(Move.FAIL, Reason.INTERNAL))


def test_a_line_without_an_end_is_passed_over_piece_by_piece(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"x" * (3 * LONGEST_LINE) + b"\n" + json.dumps(GOOD).encode() + b"\n")
    offset, events, most = 0, [], 0
    while (batch := read_batch(path, offset)).offset != offset:
        most, offset, events = max(most, batch.offset - offset), batch.offset, events + batch.events
    assert [event["id"] for event in events] == [1]
    assert most <= 2 * LONGEST_LINE


def test_the_last_word_is_found_behind_odd_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    said = {**GOOD, "id": 7, "event": "failed", "message": "x", "reason": "diverged"}
    path.write_bytes(
        b"z" * (3 * LONGEST_LINE) + b"\n" + json.dumps(said).encode() + b"\n" + b"\n".join(ODD[:8]) + b'\n{"id": 8, "ev'
    )
    assert newest_event(path)["reason"] == "diverged"


def test_a_link_a_pipe_or_a_folder_in_place_of_the_events_is_not_opened(tmp_path):
    other = tmp_path / "of-another-job.jsonl"
    other.write_bytes(json.dumps(GOOD).encode() + b"\n")
    link, pipe, folder = (tmp_path / name for name in ("link", "pipe", "folder"))
    link.symlink_to(other)
    os.mkfifo(pipe)
    folder.mkdir()
    for place in (link, pipe, folder):
        assert read_batch(place, 0) == EventBatch([], 0)
        assert newest_event(place) is None


def test_a_linked_folder_on_the_way_to_the_events_is_not_entered(tmp_path):
    mine, theirs = tmp_path / "job-mine", tmp_path / "job-theirs" / "runs" / "tiny"
    theirs.mkdir(parents=True)
    (theirs / "events.jsonl").write_bytes(json.dumps({**GOOD, "stage": "secret"}).encode() + b"\n")
    (mine / "runs").mkdir(parents=True)
    (mine / "runs" / "tiny").symlink_to(theirs)
    path = mine / "runs" / "tiny" / "events.jsonl"
    assert read_batch(theirs / "events.jsonl", 0, below=tmp_path).events, "the probe itself works"
    assert read_batch(path, 0, below=mine) == EventBatch([], 0)
    assert newest_event(path, below=mine) is None
    assert list(finished_stages(path, mine)) == []


@pytest.mark.parametrize("mode", ["w", "a"], ids=["cut off", "continued"])
def test_a_cell_s_events_that_change_while_they_are_read_are_not_read_for_ever(tmp_path, monkeypatch, mode):
    path, read = tmp_path / "events.jsonl", []

    def changing(place, offset, below):
        read.append(offset)
        assert len(read) < 2_000, "it reads for ever"
        with open(path, mode) as file:
            file.write(json.dumps({**GOOD, "event": "stage_finished", "more": "x" * (len(read) % 2)}) + "\n")
        return read_batch(place, offset, below=below)

    monkeypatch.setattr(ingesting, "read_batch", changing)
    assert [stage for stage, _ in finished_stages(path, tmp_path)] == ["s"]


def test_all_of_a_long_stream_of_a_cell_is_looked_through(tmp_path):
    path = tmp_path / "events.jsonl"
    with open(path, "w") as file:
        for number in range(1, 61):
            file.write(json.dumps({**GOOD, "id": number, "event": "stage_finished", "stage": f"s{number}"}) + "\n")
            file.write(json.dumps({**GOOD, "id": number, "event": "sample", "text": "x" * (LONGEST_LINE - 500)}) + "\n")
    assert len(dict(finished_stages(path, tmp_path))) == 60


@given(values)
@example({"b": {"a": float("nan"), "c": 10**400, "d": True, "e": 0.5}, "x" * 500: {"a": 1}, "\0": {"\ud800": 1}})
def test_scores_of_a_publication_are_numbers_under_short_names(scores):
    found = plain_scores(scores)
    json.dumps(found, allow_nan=False).encode()
    assert all(isinstance(value, float) for of in found.values() for value in of.values())


@pytest.mark.parametrize("mark", [{"fingerprint": "../../../x"}, {"fingerprint": 3.5}, {"fingerprint": "a" * 500}, {}])
def test_an_odd_publication_ends_the_attempt_and_leaves_nothing(world, mark):
    attempt, folders = world.begun()
    folders.events.write_bytes(json.dumps(GOOD).encode() + b"\n")
    place = folders.job / "published" / "m"
    place.mkdir(parents=True)
    (place / "publication.json").write_text(json.dumps({"complete": True, **mark}))
    (place / "manifest.json").write_text(
        json.dumps({"stages": [{"stage": "evaluate", "metrics": {"b": {"f": 10**30}}}]})
    )
    executor = type("Gone", (), {"name": "local", "poll": lambda self, handle: Exited(0, False, None)})()
    watcher = Watcher(world.store, world.settings, executor, "me")
    for _ in range(12):
        if world.store.attempt(attempt.id).state is not AttemptState.ENDED:
            watcher._look(attempt, world.store.job(attempt.job))
    watcher.stop()
    assert world.store.attempt(attempt.id).state is AttemptState.ENDED
    assert world.store.job(attempt.job).over or world.store.job(attempt.job).state is State.QUEUED
    assert world.store.models("acme") == []
    assert not list(Path(world.settings.models).glob("**/publication.json"))

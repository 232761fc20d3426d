"""The trail is written with the change or not at all, is never changed, and ends by age alone."""

import threading

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from service.jobs.job import JobRequest
from service.jobs.states import IllegalTransition, Move
from service.store import audit as trail
from service.store.audit import FAILURE_SECONDS, MOST_FAILURES, Actor, acting, identify, plain
from service.store.errors import NotFound
from tests.words import words_of

SOMEBODY = Actor("token-1", "submitter", "p", {"client": ("192.0.2.7", 1234), "state": {"request_id": "req-9"}})


def submitted(store):
    return store.submit(JobRequest("name: x\n", "p", name="x"))[0]


def test_a_row_says_who_did_what_from_where(store):
    with acting(SOMEBODY):
        job = submitted(store)
        store.move(job.id, Move.CANCEL)
    cancel, submit = store.audit()
    assert (submit.action, submit.kind, submit.thing, submit.project) == ("job.submit", "job", job.id, "p")
    assert (submit.actor, submit.role, submit.actor_project, submit.address, submit.request) == tuple(
        words_of("token-1 submitter p 192.0.2.7 req-9")
    )
    assert dict(submit.details) == {"name": "x", "via": "api"}
    assert (cancel.action, dict(cancel.details)) == ("job.cancel", {"was": "queued"})


def test_without_a_request_it_is_the_server_itself(store):
    submitted(store)
    assert [(row.actor, row.address) for row in store.audit()] == [("finery", "")]


def test_moves_of_the_service_stand_in_the_events_and_not_in_the_trail(store):
    job = submitted(store)
    store.move(job.id, Move.FAIL)
    assert [row.action for row in store.audit(thing=job.id)] == ["job.submit"]


def test_what_fails_leaves_no_row(store):
    job = submitted(store)
    with pytest.raises(IllegalTransition):
        store.move(job.id, Move.RESUME)
    with pytest.raises(NotFound):
        store.revoke_token("token-none")
    with pytest.raises(NotFound):
        store.mark_deleted("model-none")
    with pytest.raises(ZeroDivisionError):
        store.record("secret.put", "secret", "HF_TOKEN", "p", doing=lambda: 1 / 0)
    assert [row.action for row in store.audit()] == ["job.submit"]


def test_a_change_whose_row_cannot_be_written_is_not_made(store, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no row")

    job = submitted(store)
    monkeypatch.setattr("service.store.jobs.note", broken)
    with pytest.raises(RuntimeError):
        store.move(job.id, Move.CANCEL)
    with pytest.raises(RuntimeError):
        submitted(store)
    assert str(store.job(job.id).state) == "queued"
    assert len(store.jobs()) == 1


def test_revoking_twice_is_one_row(store):
    token = store.add_token("abc", "0" * 64, project="p", role="admin")
    for _ in range(2):
        store.revoke_token(token.id)
    assert [row.action for row in store.audit(thing=token.id)] == ["token.revoke", "token.create"]


def test_the_database_itself_refuses_to_change_a_row(store):
    submitted(store)
    with pytest.raises(DBAPIError, match="append-only"):
        store.write(lambda transaction: transaction.execute(text("UPDATE audit SET actor = 'somebody else'")))
    assert store.audit()[0].actor == "finery"


def test_rows_are_deleted_by_age_alone(store, monkeypatch):
    monkeypatch.setattr(trail, "now", lambda: 100.0)
    submitted(store)
    monkeypatch.undo()
    kept = submitted(store)
    assert store.forget_audit(200.0) == 1
    assert [row.thing for row in store.audit()] == [kept.id]
    names = [name for name in dir(store) if "audit" in name]
    assert sorted(names) == ["audit", "forget_audit"], "a new function of the trail must not change rows"


def test_threads_that_serve_one_request_share_its_actor_and_those_of_another_do_not(store):
    import contextvars

    seen = []
    with acting(Actor("")):
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(identify, "token-2", "admin", "q"))
        thread.start()
        thread.join()
        seen.append(trail.actor().name)
    other = threading.Thread(target=lambda: seen.append(trail.actor().name))
    other.start()
    other.join()
    assert seen == ["token-2", "finery"]


def test_texts_are_one_line_and_short():
    assert plain("a\nb\x1b[31m\u202ec\x00\ud800") == "a\ufffdb\ufffd[31m\ufffdc\ufffd\ufffd"
    assert len(plain("x" * 10_000)) == 501
    assert plain(["a\r", 3]) == ["a\ufffd", 3]
    assert (plain(True), plain(2**70)) == (True, 2**70)


def test_wrong_tokens_are_written_once_an_hour_for_each_address_and_so_often_in_all(store, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(trail.time, "monotonic", lambda: clock[0])
    assert [store.login_failed("192.0.2.1") for _ in range(100)] == [True, *[False] * 99]
    written = [store.login_failed(f"192.0.2.{number}") for number in range(2, 200)]
    assert sum(written) == MOST_FAILURES - 1
    rows = store.audit(action="login.failed", limit=500)
    assert len(rows) == MOST_FAILURES
    clock[0] += FAILURE_SECONDS + 1
    assert store.login_failed("192.0.2.1", "abc")
    newest = store.audit(action="login.failed", limit=1)[0]
    assert newest.thing == "abc"
    assert newest.details["others_since_last_row"] == 198 - (MOST_FAILURES - 1)
    assert len(store._failures) < 10, "addresses that were forgotten take no memory"


def test_addresses_that_were_not_written_take_no_memory(store):
    for number in range(3000):
        store.login_failed(f"2001:db8::{number:x}")
    assert len(store._failures) <= MOST_FAILURES + 1

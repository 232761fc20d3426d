import resource
import threading
import time

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine.base import RootTransaction
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

from service.jobs.job import JobRequest
from service.jobs.states import Move, State
from service.store import database
from service.store.database import plain_json
from service.store.errors import NoSpace, Unavailable
from service.store.store import Store


def test_what_is_written_is_on_the_disk_before_it_counts(store):
    if store.engine.dialect.name == "postgresql":
        assert store.read(lambda transaction: transaction.execute(text("SHOW synchronous_commit")).scalar()) == "on"
    else:
        asked = {
            name: store.read(lambda transaction, name=name: transaction.execute(text(f"PRAGMA {name}")).scalar())
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
        assert asked == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_a_transaction_that_raises_leaves_nothing_and_wakes_nobody(store, monkeypatch):
    heard = []
    monkeypatch.setattr(store.changes, "touch", heard.append)

    def work(transaction):
        transaction.execute(text("INSERT INTO projects (name, weight, settings, created) VALUES ('p', 1, '{}', 0)"))
        transaction.topics.add("jobs")
        raise KeyError("no")

    with pytest.raises(KeyError):
        store.write(work)
    assert store.projects() == []
    assert heard == []
    store.set_project("p", weight=2.0)
    assert heard == [{"queue"}]


def test_a_mistake_in_a_statement_is_raised_at_once(store):
    store.ensure_project("p")
    begun = time.monotonic()
    with pytest.raises(IntegrityError):
        store.write(
            lambda transaction: transaction.execute(
                text("INSERT INTO projects (name, weight, settings, created) VALUES ('p', 1, '{}', 0)")
            )
        )
    with pytest.raises(DBAPIError, match="nowhere"):
        store.read(lambda transaction: transaction.execute(text("SELECT * FROM nowhere")))
    assert time.monotonic() - begun < database.BUSY_SECONDS / 2


def test_a_connection_that_breaks_in_the_middle_is_tried_again(store):
    if store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no server that could go away")
    tries = []

    def work(transaction):
        tries.append(1)
        transaction.execute(text("INSERT INTO projects (name, weight, settings, created) VALUES ('p', 1, '{}', 0)"))
        if len(tries) == 1:
            transaction.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return "done"

    assert store.write(work) == "done"
    assert len(tries) == 2
    assert [project.name for project in store.projects()] == ["p"]


def test_connections_that_broke_while_idle_are_not_noticed(store):
    if store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no server that could go away")
    store.ensure_project("p")
    other = Store(store.engine.url.render_as_string(hide_password=False))
    end = text(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    assert other.read(lambda transaction: transaction.execute(end).scalar()) > 0
    other.close()
    assert store.project("p").name == "p"
    assert store.submit(JobRequest("name: x\n", "p"))[1]


@pytest.mark.parametrize("written", [True, False])
def test_a_commit_in_doubt_is_repeated_only_when_that_changes_nothing(store, monkeypatch, written):
    """The connection breaks at the commit, once before and once after the database has written it."""
    commit, broken = RootTransaction.commit, []

    def breaks_once(self):
        if not broken:
            broken.append(1)
            if written:
                commit(self)
            raise OperationalError("COMMIT", {}, ConnectionError("gone"), connection_invalidated=True)
        commit(self)

    monkeypatch.setattr(RootTransaction, "commit", breaks_once)
    job, created = store.submit(JobRequest("name: x\n", "p"))
    assert created
    assert store.count()[State.QUEUED] == 1
    broken.clear()
    with pytest.raises(Unavailable, match="look whether it is there before sending it again"):
        store.move(job.id, Move.CANCEL)
    assert store.job(job.id).state is (State.CANCELLED if written else State.QUEUED)


def test_who_cannot_write_for_too_long_is_told_so(store, monkeypatch):
    if store.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL writers do not lock the whole database")
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.3)
    impatient = Store(store.engine.url.render_as_string())
    gate, done = threading.Event(), threading.Event()

    def hold(transaction):
        gate.set()
        done.wait(10)

    holder = threading.Thread(target=lambda: store.write(hold))
    holder.start()
    gate.wait(5)
    try:
        assert impatient.projects() == []  # readers are not in its way
        with pytest.raises(Unavailable, match="the database does not answer: database is locked"):
            impatient.ensure_project("p")
    finally:
        done.set()
        holder.join()
        impatient.close()


def test_a_store_knows_whether_its_database_answers(store):
    assert store.healthy()
    assert not Store("postgresql+psycopg://nobody@127.0.0.1:1/none").healthy()


def test_a_database_that_may_not_be_written_is_told_apart_from_a_full_one(store):
    postgresql = store.engine.dialect.name == "postgresql"
    statement = "SET default_transaction_read_only = on" if postgresql else "PRAGMA query_only = ON"
    reader = Store(store.engine.url.render_as_string(hide_password=False))

    @event.listens_for(reader.engine, "connect")
    def forbid(connection, _):
        connection.cursor().execute(statement)
        connection.commit()

    with pytest.raises(
        Unavailable, match="standby, or it was set to be read-only" if postgresql else "is mounted read-only"
    ) as raised:
        reader.ensure_project("p")
    assert not isinstance(raised.value, NoSpace)
    assert not reader.writable()
    assert reader.projects() == []
    reader.close()


def test_whether_it_can_be_written_is_found_by_writing_and_changes_nothing(store, monkeypatch):
    def state(transaction):
        about = "SELECT version_num, xmin FROM alembic_version" if transaction.postgresql else "PRAGMA user_version"
        return tuple(transaction.execute(text(about)).one())

    before = store.read(state)
    if store.engine.dialect.name == "postgresql":
        assert store.writable()
        after = store.read(state)
        assert after[0] == before[0]
        assert after[1] != before[1], "the row was written"
        return
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    impatient = Store(store.engine.url.render_as_string())
    assert impatient.writable()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # no file takes another byte
    try:
        assert not impatient.writable()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert impatient.writable()
    assert impatient.read(state) == before
    impatient.close()


def test_who_asks_often_whether_it_can_be_written_is_told_without_a_write(store, monkeypatch):
    assert store.writable()
    monkeypatch.setattr(store, "write", lambda *_: pytest.fail("it wrote again"))
    assert store.writable(within=60.0)


def test_a_pool_without_a_free_connection_is_a_database_that_does_not_answer(store, monkeypatch):
    def wait():
        raise NoConnection("QueuePool limit of size 10 overflow 20 reached")

    monkeypatch.setattr(store.engine, "connect", wait)
    with pytest.raises(Unavailable, match="every connection to it is in use"):
        store.projects()


def test_json_has_no_numbers_that_a_database_refuses():
    assert (
        plain_json({"a": [float("nan"), float("inf"), 1.5], "b": "\0"}) == '{"a": ["nan", "inf", 1.5], "b": "\\u0000"}'
    )

import threading
from importlib import import_module
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, select, text

from service.jobs.job import GpuSlot, Host, HostShare, JobRequest
from service.jobs.states import Ending, Move
from service.settings import read_settings
from service.store import store as migrating
from service.store import tables
from service.store.errors import Unavailable
from service.store.store import FOLDER, NEWEST, SchemaTooNew, Store, current, downgrade, open_store, upgrade
from tests.service.databases import fresh_postgresql, missing

SINCE = {
    "0001": {"projects", "tokens", "jobs", "attempts", "leases", "events", "hosts", "gpu_slots"},
    "0002": {"stage_results", "files", "models", "scores"},
}
"""Revision -> the tables that it adds, of the steps that are taken down and up below."""


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request, tmp_path):
    """A store on a database without a schema."""
    if request.param == "sqlite":
        opened = Store(f"sqlite:///{tmp_path / 'finery.db'}")
        yield opened
        opened.close()
        return
    reason = missing()
    if reason:
        pytest.skip(reason)
    with fresh_postgresql() as url:
        opened = Store(read_settings({}, database_url=url).url)
        yield opened
        opened.close()


def filled(store):
    """Something in every table."""
    store.report_host(Host("here", slots=(GpuSlot(0, "H200", 1 << 37),)))
    store.add_token("abc", "0" * 64, project="p", role="admin")
    store.create_file("p", "train.jsonl", "fine-tune")
    job = store.submit(JobRequest("name: é\n", "p", idempotency_key="k"))[0]
    attempt = store.start(job.id, (HostShare("here", (0,)),), executor="local", holder="me", lease_seconds=30)
    store.record_stage(attempt.id, attempt.fencing, "evaluate", metrics={"glue/mrpc": {"f1": 0.5}}, with_scores=True)
    model = store.publish_model(attempt.id, attempt.fencing, name="m", fingerprint="f", path="/m")
    other = store.publish_model(attempt.id, attempt.fencing, name="m", fingerprint="g", path="/n")
    store.set_alias(model.id, "production")
    store.keep_comparison(other.id, model.id, {"benchmarks": []})
    store.end_attempt(attempt.id, attempt.fencing, Ending(Move.SUCCEED))
    store.end_session("nonce", 4e9)
    store.grant("p", "m", ["p"])
    store.add_run(store.add_eval("p", "e", {}, [], {}), "r", {}, {}, "m", [({"a": 1}, {})], "submitter")
    store.set_disk_usage({("p", "jobs", job.id): 1 << 40})


def contents(store, names, columns=None):
    """Every row of these tables, as far as the schema has the columns; `columns` is what `columns_of` found."""
    found = {}
    with store.engine.connect() as connection:
        for name in sorted(names):
            table = tables.metadata.tables[name]
            kept = [table.c[column] for column in (columns or columns_of(store))[name]]
            found[name] = sorted(map(repr, connection.execute(select(*kept))))
    return found


def columns_of(store):
    """The columns of every table that the database has now."""
    there = inspect(store.engine)
    return {
        name: sorted(column["name"] for column in there.get_columns(name))
        for name in there.get_table_names()
        if name in tables.metadata.tables
    }


def test_the_steps_lead_to_the_tables_of_the_code(empty):
    upgrade(empty)
    assert current(empty) == NEWEST
    with empty.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []


def test_each_step_down_and_up_keeps_what_the_older_schema_knows(empty):
    upgrade(empty)
    filled(empty)
    before = contents(empty, tables.metadata.tables)
    assert all(before.values()), "a table is empty: this would prove nothing about it"
    downgrade(empty, "0002")
    second = {name: contents(empty, [name]) for name in SINCE["0001"] | SINCE["0002"]}
    older = columns_of(empty)
    upgrade(empty)
    assert {name: contents(empty, [name], older) for name in SINCE["0001"] | SINCE["0002"]} == second
    assert all(contents(empty, SINCE["0001"] | SINCE["0002"]).values())
    downgrade(empty, "0001")
    assert set(inspect(empty.engine).get_table_names()) - {"alembic_version"} == SINCE["0001"]
    older = columns_of(empty)
    kept = contents(empty, SINCE["0001"])
    upgrade(empty)
    assert contents(empty, SINCE["0001"], older) == kept
    assert not any(contents(empty, SINCE["0002"]).values())
    assert empty.submit(JobRequest("name: é\n", "p", idempotency_key="k"))[1] is False
    downgrade(empty, "base")
    assert set(inspect(empty.engine).get_table_names()) == {"alembic_version"}
    upgrade(empty)
    filled(empty)


def test_data_of_an_older_schema_is_there_after_the_upgrade(empty):
    upgrade(empty)
    job = empty.submit(JobRequest("name: old\n", "p"))[0]
    file = empty.create_file("p", "train.jsonl", "data", bytes=7)
    downgrade(empty, "0002")  # nothing of the newest schema is left but these rows
    upgrade(empty)
    assert empty.file(file.id) == file
    assert empty.job(job.id) == job
    attempt = empty.start(job.id, (HostShare("here"),), executor="local", holder="me", lease_seconds=30)
    empty.record_stage(attempt.id, attempt.fencing, "a")
    assert [result.stage for result in empty.stage_results(job.id)] == ["a"]


def test_what_was_published_before_versions_is_numbered_in_its_order_and_numbers_go_on(empty):
    upgrade(empty)
    job = empty.submit(JobRequest("name: old\n", "p"))[0]
    attempt = empty.start(job.id, (HostShare("here"),), executor="local", holder="me", lease_seconds=30)

    def publish(name, fingerprint):
        return empty.publish_model(attempt.id, attempt.fencing, name=name, fingerprint=fingerprint, path="/m")

    before = [publish("m", "f"), publish("other", "f"), publish("m", "g")]
    downgrade(empty, "0005")
    assert "version" not in columns_of(empty)["models"]
    upgrade(empty)
    assert [(each.name, each.version, each.id) for each in empty.models("p")] == [
        ("m", 2, before[2].id),
        ("other", 1, before[1].id),
        ("m", 1, before[0].id),
    ]
    assert publish("m", "h").version == 3
    assert empty.model("p", "m@1") == before[0]
    assert empty.job(job.id).request.models == {}


def test_several_servers_that_start_at_once_migrate_once(empty):
    address = empty.engine.url.render_as_string(hide_password=False)
    stores = [Store(address) for _ in range(3)]
    failures = []

    def migrate(store):
        try:
            upgrade(store)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=migrate, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert failures == []
    assert current(empty) == NEWEST


def test_a_database_of_a_later_version_is_refused_and_left_alone(empty):
    upgrade(empty)
    with empty.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(
        SchemaTooNew, match=f"the database has schema 9999, this version of finery knows up to {NEWEST}"
    ):
        upgrade(empty)


def test_a_migrated_database_opens_without_loading_alembic(migrated_sqlite, monkeypatch):
    monkeypatch.setattr(migrating, "_config", None)  # what every use of Alembic needs
    open_store(read_settings({}, home=migrated_sqlite.parent)).close()


def test_a_server_that_is_not_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr("service.store.database.BUSY_SECONDS", 0.2)
    with pytest.raises(Unavailable, match=r"cannot open the database postgresql\+psycopg://nobody@127.0.0.1:1/none: "):
        open_store(read_settings({}, database_url="postgresql://nobody@127.0.0.1:1/none"))


def test_the_newest_step_is_the_one_that_the_code_expects_and_the_steps_form_a_chain():
    names = sorted(path.stem for path in (FOLDER / "versions").glob("[0-9]*.py"))
    steps = [import_module(f"service.store.migrations.versions.{name}") for name in names]
    assert [step.revision for step in steps] == [name.partition("_")[0] for name in names]
    assert [step.down_revision for step in steps] == [None, *(step.revision for step in steps[:-1])]
    assert steps[-1].revision == NEWEST
    assert Path(FOLDER / "script.py.mako").is_file()

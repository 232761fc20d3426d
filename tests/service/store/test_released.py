"""From each schema that a server ever ran with, an upgrade keeps every row, and the service goes on with them."""

import os
import signal
import subprocess
import sys
import time

import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, select
from starlette.testclient import TestClient

from service.api.app import equip
from service.settings import read_settings
from service.store import tables
from service.store.evals import bytes_of
from service.store.store import NEWEST, Store, current, open_store
from tests.service.databases import fresh_postgresql, missing
from tests.service.served import RECIPE, YAML, application, checker
from tests.service.store.released import TOKEN, dump_of, filled_at, load, revisions

BOTH = ("sqlite", "postgresql")
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def url(request, tmp_path):
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'finery.db'}"
        return
    if reason := missing():
        pytest.skip(reason)
    with fresh_postgresql() as made:
        yield made


def bring_back(url, revision):
    """The database as a server with this schema left it."""
    dump = dump_of(revision, url.partition(":")[0])
    if dump.exists():
        load(dump.read_text(), url)
    else:
        filled_at(url, revision)


def rows(store, columns=None):
    """Every row of every table that is there, of the columns that are there, or of these."""
    there = MetaData()
    there.reflect(store.engine)
    columns = columns or {table.name: [column.name for column in table.columns] for table in there.sorted_tables}
    with store.engine.connect() as connection:
        return columns, {
            name: sorted(
                map(repr, connection.execute(select(*(there.tables[name].c[each] for each in sorted(kept)))).all())
            )
            for name, kept in columns.items()
            if name != "alembic_version"
        }


def ways():
    """Every schema on every database. A usual run takes the oldest, which goes through every step, on each, and then each
    of the others on one of them."""
    for at, revision in enumerate(revisions()):
        for number, database in enumerate(BOTH):
            marks = () if at == 0 or at % 2 == number else pytest.mark.long
            yield pytest.param(revision, database, marks=marks, id=f"{revision}-{database}")


@pytest.mark.parametrize(("revision", "url"), list(ways()), indirect=["url"])
def test_an_upgrade_keeps_every_row_and_the_service_goes_on(url, tmp_path, revision):
    bring_back(url, revision)
    settings = read_settings({}, home=tmp_path, database_url=url, allowed_hosts=("*",))
    before = Store(settings.url)
    assert current(before) == revision
    columns, kept = rows(before)
    assert all(kept.values()), "a table is empty: this would prove nothing about it"
    before.close()

    store = open_store(settings)
    try:
        assert current(store) == NEWEST
        with store.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, tables.metadata) == []
        assert rows(store, columns)[1] == kept

        equip(application(), settings, store, lambda: None, checker())
        client = TestClient(application(), headers=HEADERS, raise_server_exceptions=False)
        [job] = client.get("/api/v1/jobs").json()["data"]
        assert (job["state"], job["project"]) == ("succeeded", "p")
        assert client.get(f"/api/v1/jobs/{job['id']}").json()["last_event"] == 3
        assert len(client.get(f"/api/v1/jobs/{job['id']}/events").json()["data"]) == 3
        if revision >= "0002":
            published = [each["name"] for each in client.get("/api/v1/models").json()["data"]]
            assert published == ["m"] * len(kept["models"])
            assert [each["filename"] for each in client.get("/api/v1/files").json()["data"]] == ["train.jsonl"]
        again = client.post("/api/v1/jobs", content=RECIPE, headers={**YAML, "Idempotency-Key": "k2"})
        assert again.status_code == 201, again.text
        assert client.delete(f"/api/v1/jobs/{job['id']}").status_code == 204
        if revision >= "0005":  # the eval and the run of an older schema count as a new one does
            [of] = store.evals("p")
            [run] = store.runs(of.id, "p")
            items = [bytes_of(each.item, each.given, each.sample, each.results) for each in store.eval_items(run.id)]
            assert of.bytes == bytes_of(of.data_source_config, of.testing_criteria, of.metadata)
            assert run.bytes == bytes_of(run.data_source, run.metadata) + sum(items)
            assert store.disk_usage("p").evals == of.bytes + run.bytes
    finally:
        store.close()


@pytest.mark.parametrize("database", BOTH)
def test_every_schema_before_the_newest_has_a_dump_of_its_own_time(database):
    assert [revision for revision in revisions()[:-1] if not dump_of(revision, database).exists()] == []


@pytest.mark.long
def test_a_server_starts_on_the_first_schema_and_lists_its_job(tmp_path):
    bring_back(f"sqlite:///{tmp_path / 'finery.db'}", revisions()[0])
    command = [sys.executable, "-m", "service.cli", "serve", "--home", str(tmp_path), "--port", "0", "--json"]
    environment = {**os.environ, "FINERY_LOG_LEVEL": "warning"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            address = next(part for part in server.stdout.readline().split('"') if part.startswith("http://"))
            limit = time.monotonic() + 60
            while httpx.get(f"{address}/healthz").status_code != 200 and time.monotonic() < limit:
                time.sleep(0.2)
            [job] = httpx.get(f"{address}/api/v1/jobs", headers=HEADERS).json()["data"]
            assert job["state"] == "succeeded"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)

"""A store for tests, on SQLite and on PostgreSQL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.settings import read_settings
from service.store.store import Store, open_store, upgrade
from service.store.tables import metadata
from tests.service.databases import fresh_postgresql, missing

BOTH = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the newest schema and nothing in it, to be copied."""
    folder = tmp_path_factory.mktemp("schema")
    open_store(read_settings({}, home=folder)).close()
    return folder / "finery.db"


@pytest.fixture(scope="session")
def sqlite_with_tokens(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Any, str]]:
    """The same with the tokens that `Served` makes, which take most of its time, and their texts."""
    from tests.service.served import Served  # which imports the whole application

    folder = tmp_path_factory.mktemp("tokens")
    shutil.copy(migrated_sqlite, folder / "finery.db")
    settings = read_settings({}, home=folder)
    store = Store(settings.url)
    texts = Served(settings, store).texts
    store.close()
    return folder / "finery.db", texts


@pytest.fixture(scope="session")
def migrated_postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL database with the newest schema; tests that use it empty it first."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with fresh_postgresql() as url:
        store = Store(read_settings({}, database_url=url).url)
        upgrade(store)
        store.close()
        yield url


def emptied(url: str) -> str:
    """The same database without a row in it."""
    store = Store(read_settings({}, database_url=url).url)
    statements = "; ".join(
        f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables)
    )  # faster than TRUNCATE
    store.write(lambda transaction: transaction.connection.exec_driver_sql(statements))
    store.close()
    return url


@pytest.fixture
def sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    """The URL of an empty, migrated SQLite database."""
    shutil.copy(migrated_sqlite, tmp_path / "finery.db")
    return f"sqlite:///{tmp_path / 'finery.db'}"


@pytest.fixture(params=BOTH)
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty, migrated database: each test runs on SQLite and on PostgreSQL."""
    if request.param == "postgresql":
        return emptied(request.getfixturevalue("migrated_postgresql"))
    return str(request.getfixturevalue("sqlite_url"))


@pytest.fixture
def store(store_url: str, tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    opened = open_store(read_settings({}, home=tmp_path, database_url=store_url))
    yield opened
    opened.close()

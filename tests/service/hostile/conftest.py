"""The application on an empty store, for each attack."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.settings import read_settings
from service.store.store import Store
from tests.service.served import Served


@pytest.fixture
def served(sqlite_with_tokens: tuple[Path, dict[Any, str]], tmp_path: Path) -> Iterator[Served]:
    """The application on SQLite."""
    database, tokens = sqlite_with_tokens
    shutil.copy(database, tmp_path / "finery.db")
    settings = read_settings({}, home=tmp_path, burst=10_000)
    store = Store(settings.url)
    yield Served(settings, store, tokens)
    store.close()

"""The application on a real port, and the unmodified OpenAI client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from service.settings import read_settings
from service.store.store import Store
from tests.service.served import Served, listening


@pytest.fixture(scope="module")
def served(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One application for a file of tests; each uses names of its own."""
    home = tmp_path_factory.mktemp("openai")
    shutil.copy(migrated_sqlite, home / "finery.db")
    settings = read_settings({}, home=home)
    store = Store(settings.url)
    yield Served(settings, store)
    store.close()


@pytest.fixture(scope="module")
def url(served: Served) -> Iterator[str]:
    """Where it listens."""
    with listening(served) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: Served, url: str) -> Iterator[Any]:
    """The OpenAI client, changed in nothing but `base_url`."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=served.token("submitter"), max_retries=0) as found:
        yield found

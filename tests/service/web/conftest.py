"""A seeded service behind a real server, a client for it, and Chromium."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.api.app import create_app
from service.settings import Settings, read_settings
from service.store.store import Store, open_store
from tests import writers
from tests.service.serving.published import TEMPLATE
from tests.service.web.seeding import Seeded, Seeder, seed

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
"""A process that computes a graphics card would take a fifth of the time of all of them."""


class Site:
    """One running service."""

    def __init__(self, address: str, settings: Settings, store: Store, seeded: Seeded) -> None:
        self.address, self.settings, self.store, self.seeded = address, settings, store, seeded
        self.seeder = Seeder(settings, store)
        self.jobs = seeded.jobs
        self.woken = 0
        self.signed_in: dict[str, object] = {}
        """Cookies of browsers, by role."""

    def wake(self) -> None:
        self.woken += 1

    def anonymous(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=30)

    def client(self, role: str) -> httpx.Client:
        """A signed-in client; `csrf` of its headers is what forms carry."""
        client = self.anonymous()
        client.headers["X-CSRF-Token"] = csrf(client.get("/sign-in").text)
        answer = client.post("/sign-in", data={"token": self.seeded.tokens[role]})
        assert answer.status_code == 303, answer.text
        client.headers["X-CSRF-Token"] = csrf(client.get("/jobs").text)
        return client


def csrf(page: str) -> str:
    """The token of the first form in a page."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page)
    assert found, page[:2000]
    return found.group(1)


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A seeded service for all tests of the pages."""
    with served(tmp_path_factory.mktemp("web")) as made:
        yield made


@contextlib.contextmanager
def served(home: Path) -> Iterator[Site]:
    """A seeded service on a free port."""
    import uvicorn

    settings = read_settings({}, home=home, requests_per_second=10_000.0, burst=10_000)
    store = open_store(settings)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = Site(f"http://127.0.0.1:{port}", settings, store, seed(settings, store))
    app = create_app(settings, store, made.wake)
    config = uvicorn.Config(app, port=port, log_config=None, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    limit = time.monotonic() + 20
    while not server.started and time.monotonic() < limit:
        time.sleep(0.02)
    yield made
    server.should_exit = True
    thread.join(10)
    app.state.service.served.close()
    store.close()


@pytest.fixture(scope="package")
def clients(site: Site) -> Iterator[Callable[[str], httpx.Client]]:
    """Signed-in clients by role, made once."""
    made: dict[str, httpx.Client] = {}

    def client(role: str) -> httpx.Client:
        if role not in made:
            made[role] = site.client(role)
        return made[role]

    yield client
    for each in made.values():
        each.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    """A real browser; tests that use it are skipped where there is none. Closed with the module: Playwright keeps an
    event loop running in this thread, beside which no other test could run one."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed (Debian: apt-get install chromium)")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install 'finery[dev]')"
    )
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def tried(site: Site) -> Any:
    """A tiny chat model that nobody opens."""
    return chat_model(site, "tried")


@pytest.fixture(scope="package")
def talked(site: Site) -> Any:
    """Another one."""
    return chat_model(site, "talked")


def chat_model(site: Site, name: str) -> Any:
    """A tiny chat model that a job of the project has published."""
    job = site.seeder.job(name)
    attempt = site.seeder.start(job, host="cpu-01")
    folder = site.settings.models / job.project / name / "0123abcd"
    shutil.copytree(writers.folder("gpt2"), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    site.store.publish_model(
        attempt.id, attempt.fencing, name=name, fingerprint="0123abcd", path=str(folder), scores={}
    )
    return site.store.model(job.project, name)


@pytest.fixture(scope="session")
def configs() -> list[Path]:
    """Every recipe that comes with the project."""
    root = Path(__file__).resolve().parents[3] / "configs"
    return sorted([*(root / "recipes").glob("*.yaml"), *(root / "smoke").glob("*.yaml")])

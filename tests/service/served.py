"""An application on an empty store, with a client for each role, for the tests of the API."""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread

import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from service.api.app import create_app, equip
from service.checking import Checker
from service.jobs.job import Attempt, Host, HostShare, Job
from service.settings import Settings, read_settings
from service.store.projects import new_token
from service.store.store import Store

RECIPE = """\
name: demo
model:
  architecture: {preset: bert-tiny}
tokenizer: {train: wordpiece, vocab_size: 600}
stages:
  - {stage: supervised, task: builtin/python-docs, max_length: 32, arguments: {max_steps: 4}}
  - {stage: evaluate, max_eval_samples: 40}
  - {stage: publish, to: demo-model}
"""
YAML = {"Content-Type": "application/yaml"}


@cache
def application() -> FastAPI:
    """One application for all tests: building its routes takes longer than a test. Each test equips it anew."""
    return create_app(read_settings({}, allowed_hosts=("*",)), None)  # type: ignore[arg-type]


@cache
def checker() -> Checker:
    """One checker for all tests: its processes import for half a second."""
    made = Checker()
    atexit.register(made.close)
    return made


class Served:
    """The application, its store, and clients."""

    def __init__(self, settings: Settings, store: Store, tokens: dict[tuple[str, str], str] | None = None) -> None:
        """`tokens` are those that the store has already, by role and project."""
        self.settings = settings = settings.model_copy(
            update={"allowed_hosts": ("*",)}
        )  # clients here ask for `testserver`
        self.store = store
        self.texts: dict[tuple[str, str], str] = {}
        """The tokens of the clients, by role and project."""
        self._there = dict(tokens or {})
        self.woken = 0
        self.app = application()
        equip(self.app, settings, store, self._wake, checker())
        self.service = self.app.state.service
        self.viewer = self.client("viewer")
        self.submitter = self.client("submitter")
        self.admin = self.client("admin", project="default")
        self.stranger = self.client("submitter", project="others")
        self.nobody = TestClient(self.app, raise_server_exceptions=False)

    def _wake(self) -> None:
        self.woken += 1

    def token(self, role: str, project: str = "acme") -> str:
        """The text of a fresh token."""
        made = new_token()
        self.store.add_token(made.prefix, made.sha256, project=project, role=role)
        return made.text

    def client(self, role: str, project: str = "acme") -> TestClient:
        """A client with a token of its own."""
        self.texts[role, project] = text = self._there.pop((role, project), None) or self.token(role, project)
        headers = {"Authorization": f"Bearer {text}"}
        return TestClient(self.app, headers=headers, raise_server_exceptions=False)

    def job(self, recipe: str = RECIPE, **query: object) -> str:
        """The id of a job that was just submitted."""
        answer = self.submitter.post("/api/v1/jobs", content=recipe, headers=YAML, params=query)  # type: ignore[arg-type]
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def started(self, job_id: str) -> Attempt:
        """An attempt at the job, as the scheduler makes one."""
        self.store.report_host(Host("here", cpus=64, memory=1 << 36))
        return self.store.start(job_id, (HostShare("here"),), executor="local", holder="tests", lease_seconds=60)

    def written(self, attempt: Attempt, events: list[dict[str, object]]) -> None:
        """Events of the run, as the supervisor takes them in; ids are given here."""
        known = self.store.attempt(attempt.id).ingested
        rows = [
            {"id": known + at, "time": "2026-11-21T10:00:00+00:00", **event} for at, event in enumerate(events, start=1)
        ]
        self.store.ingest(attempt.id, attempt.fencing, rows, known + len(rows))

    def succeeded(self, attempt: Attempt) -> Job:
        """The end of an attempt that did everything."""
        from service.scheduler.retries import ending_of

        job = self.store.job(attempt.job)
        return self.store.end_attempt(
            attempt.id,
            attempt.fencing,
            ending_of(job, exit_code=0, reason=None, message="", now=time.time(), random=lambda: 0.5),
        )


@contextmanager
def listening(served: Served) -> Iterator[str]:
    """The application on a real port; its URL."""
    # log_config: as in `finery serve`. uvicorn's own closes all handlers there are, and absl's, which rouge_score
    # imports, closes the stream that it found: pytest's.
    config = uvicorn.Config(
        served.app, port=0, log_config=None, log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        limit = time.monotonic() + 20
        while not server.started and time.monotonic() < limit:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


def published(
    served: Served, attempt: Attempt, name: str = "demo-model", fingerprint: str = "0123abcd", f1: float = 0.5
) -> Path:
    """A model of the job, with a card and two files."""
    folder = served.settings.models / "acme" / name / fingerprint
    (folder / "base").mkdir(parents=True)
    (folder / "README.md").write_text("# A card\n")
    (folder / "base" / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    served.store.publish_model(
        attempt.id,
        attempt.fencing,
        name=name,
        fingerprint=fingerprint,
        path=str(folder),
        scores={"glue/mrpc": {"f1": f1}},
    )
    return folder

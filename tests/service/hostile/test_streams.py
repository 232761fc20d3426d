"""What is open ends with the right to see it: streams of events, logs and pages when a token ends or its owner signs out."""

import json
import re
import threading
import time

import httpx
import pytest

from service.api import streams
from service.store.projects import new_token
from service.store.store import Store
from service.web import job as job_page
from service.web import jobs as jobs_page
from service.web.sessions import COOKIE, Sessions
from tests.service.api.conftest import served  # noqa: F401
from tests.service.served import listening

PATIENCE = 30.0
"""Seconds after which a stream that should have ended fails its test."""


@pytest.fixture
def site(served, tmp_path, monkeypatch):  # noqa: F811
    """A job that runs, behind a real server, and a token with a session; streams do not look by themselves."""
    monkeypatch.setattr(streams, "LOOK_SECONDS", 3600.0)
    monkeypatch.setattr(jobs_page, "MOST_IDLE", 3600.0)
    served.app.state.web_sessions = Sessions(served.store, tmp_path)
    made = new_token()
    token = served.store.add_token(made.prefix, made.sha256, project="acme", role="viewer")
    job = served.job()
    attempt = served.started(job)
    served.written(attempt, [{"event": "started"}])
    with listening(served) as url:
        yield type(
            "Site",
            (),
            {
                "url": url,
                "token": token,
                "bearer": {"Authorization": f"Bearer {made.text}"},
                "job": job,
                "attempt": attempt,
                "served": served,
                "cookie": served.app.state.web_sessions.make(token)[0],
            },
        )


class Open:
    """A stream that is being read in a thread."""

    def __init__(self, site, path, **headers):
        self.events, self.begun = [], threading.Event()
        self.thread = threading.Thread(
            target=self._read, args=(site.url + path, {"Accept": "text/event-stream", **headers}), daemon=True
        )
        self.thread.start()
        assert self.begun.wait(PATIENCE)

    def _read(self, url, headers):
        with httpx.Client(timeout=PATIENCE, headers=headers) as client, client.stream("GET", url) as answer:
            assert answer.status_code == 200
            name = None
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self.events.append((name, json.loads(line.removeprefix("data: "))))
                self.begun.set()

    def ended(self):
        """The last event, once the server has closed the stream."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the stream is still open"
        return self.events[-1]


API = ["/api/v1/jobs/{job}/events", "/api/v1/jobs/{job}/logs"]
PAGES = ["/jobs/stream", "/jobs/{job}/stream"]


def opened(site, path):
    console = site.served.settings.jobs / site.job / "attempts" / site.attempt.id / "console"
    console.mkdir(parents=True, exist_ok=True)
    (console / f"{0:015d}.log").write_bytes(b"a line\n")
    headers = site.bearer if path in API else {"Cookie": f"{COOKIE}={site.cookie}"}
    return Open(site, path.format(job=site.job), **headers)


def test_every_stream_is_named_here(served):  # noqa: F811
    found = set()
    for path, methods in served.app.openapi()["paths"].items():
        if "text/event-stream" in json.dumps(methods.get("get", {}).get("responses", {})):
            found.add(path.replace("{job_id}", "{job}"))
    assert found == set(API)


def test_every_stream_ends_at_once_when_its_token_is_revoked(site):
    streams = [opened(site, path) for path in (*API, *PAGES)]
    assert site.served.admin.delete(f"/api/v1/tokens/{site.token.id}").status_code == 200
    ends = [stream.ended() for stream in streams]
    assert [(name, data["reason"]) for name, data in ends[: len(API)]] == [("end", "bad_token")] * len(API)
    assert [name for name, _ in ends[len(API) :]] == ["signed-out"] * len(PAGES)


def test_a_token_that_another_server_revoked_ends_the_stream_here_too(site):
    stream = opened(site, API[0])
    other = Store(site.served.settings.url)
    other.revoke_token(site.token.id)
    other.close()
    assert stream.ended()[1]["reason"] == "bad_token"


def test_every_stream_ends_when_its_token_expires(site, monkeypatch):
    monkeypatch.setattr(streams, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(jobs_page, "MOST_IDLE", 0.5)
    made = new_token()
    site.token = site.served.store.add_token(
        made.prefix, made.sha256, project="acme", role="viewer", expires=time.time() + 3
    )
    site.bearer = {"Authorization": f"Bearer {made.text}"}
    site.cookie = site.served.app.state.web_sessions.make(site.token)[0]
    for stream in [opened(site, path) for path in (*API, *PAGES)]:
        assert stream.ended()[0] in ("end", "signed-out")


REFUSED = json.loads(streams.REFUSED)["detail"]
READERS = {API[0]: (streams, "_events"), PAGES[0]: (jobs_page, "_found"), PAGES[1]: (job_page, "job_view")}
"""What reads for a stream what it sends."""


@pytest.mark.parametrize("path", READERS)
def test_nothing_that_happens_after_the_revocation_is_sent(site, monkeypatch, path):
    """Not even what is written between the look at the token and the look at what is sent, whichever comes first."""
    module, name = READERS[path]
    read = getattr(module, name)
    looked, go_on = threading.Event(), threading.Event()

    def late(*asked):
        looked.set()
        assert go_on.wait(PATIENCE)
        return read(*asked)

    stream = opened(site, path)
    monkeypatch.setattr(module, name, late)
    site.served.job()
    site.served.written(site.attempt, [{"event": "sample", "text": "before"}])
    assert looked.wait(PATIENCE)
    before = len(stream.events)
    site.served.store.revoke_token(site.token.id)
    site.served.written(site.attempt, [{"event": "sample", "text": "not for you"}])
    site.served.succeeded(site.attempt)
    go_on.set()
    assert stream.ended() == (
        ("end", {"reason": "bad_token", "detail": REFUSED}) if path in API else ("signed-out", {})
    )
    assert len(stream.events) == before + 1
    assert "not for you" not in json.dumps(stream.events)


def test_every_stream_of_a_job_that_is_deleted_ends(site):
    streams = [opened(site, path) for path in API + PAGES[1:]]
    site.served.succeeded(site.attempt)
    site.served.submitter.delete(f"/api/v1/jobs/{site.job}")
    assert {stream.ended()[0] for stream in streams} <= {"end", "over"}


# --- signing out


def test_a_copied_cookie_is_refused_after_signing_out_and_its_streams_end(site):
    with (
        httpx.Client(base_url=site.url, cookies={COOKIE: site.cookie}) as browser,
        httpx.Client(base_url=site.url, cookies={COOKIE: site.cookie}) as thief,
    ):
        page = browser.get("/jobs")
        assert page.status_code == thief.get("/jobs").status_code == 200
        stream = opened(site, PAGES[0])
        csrf = re.search(r'name="csrf" value="([^"]+)"', page.text).group(1)
        assert browser.post("/sign-out", data={"csrf": csrf}).status_code == 303
        assert stream.ended()[0] == "signed-out"
        for address in ("/jobs", f"/jobs/{site.job}"):
            assert thief.get(address).headers["location"].startswith("/sign-in")
        assert thief.post(f"/jobs/{site.job}/cancel", data={"csrf": csrf}).headers["location"].startswith("/sign-in")
        assert thief.get("/jobs/stream", headers={"Accept": "text/event-stream"}).status_code == 401


def test_signing_out_ends_that_session_alone_on_every_server(store, tmp_path):
    made = new_token()
    token = store.add_token(made.prefix, made.sha256, project="p", role="viewer")
    here, there = Sessions(store, tmp_path), Sessions(store, tmp_path)
    one, other = here.make(token)[0], here.make(token)[0]
    here.end(here.read(one))
    assert there.read(one) is None
    assert there.read(other).token.id == token.id
    here.end(there.read(other))
    assert there.read(other) is None


def test_ended_sessions_are_forgotten_when_they_would_have_expired(store):
    store.end_session("old", time.time() - 1)
    store.end_session("new", time.time() + 100)
    store.end_session("new", time.time() + 100)
    assert not store.session_ended("old")
    assert store.session_ended("new")

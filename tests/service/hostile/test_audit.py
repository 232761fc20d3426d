"""A tenant against the audit trail: reading it, forging it, breaking its lines, filling it, and finding secrets in it."""

import json
from types import SimpleNamespace

import pytest

from service.cli import administration as command
from service.executors.isolation import Isolation
from service.settings import read_settings
from service.store.audit import MOST_FAILURES
from tests.service.served import RECIPE, YAML, Served

EVIL = "a\r\n2026-11-22 admin token.create \x1b[2J\u202e\x00"
VALUE = "hf_thisIsTheSecretValueItself"


@pytest.fixture
def served(store, tmp_path):
    """The application on SQLite and on PostgreSQL."""
    return Served(read_settings({}, home=tmp_path, burst=10_000), store)


def whole(store):
    return json.dumps([vars(row) for row in store.audit(limit=10_000)], default=str, ensure_ascii=False)


def test_nobody_but_admins_reads_it(served):
    for client in (served.viewer, served.submitter, served.stranger):
        assert client.get("/api/v1/audit").status_code == 403
        assert client.get("/api/v1/audit", headers={"X-Finery-Project": "default"}).status_code == 403
    assert served.nobody.get("/api/v1/audit").status_code == 401
    assert served.admin.get("/api/v1/audit").status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_no_route_changes_it(served, method):
    served.job()
    before = whole(served.store)
    row = served.store.audit(limit=1)[0].id
    for path in ("/api/v1/audit", f"/api/v1/audit/{row}"):
        assert served.admin.request(method, path).status_code in (404, 405)
    assert whole(served.store) == before


def test_a_submitter_cannot_be_somebody_else_in_it(served):
    """Headers, query, body: whatever names an actor, the row has the token's."""
    mine = served.submitter.get("/api/v1/me").json()["token"]
    admin = served.admin.get("/api/v1/me").json()["token"]
    forged = {
        "X-Actor": admin,
        "X-Finery-Actor": admin,
        "X-Token": admin,
        "X-Role": "admin",
        "Forwarded": "for=203.0.113.9",
        "From": admin,
        "X-Real-IP": "203.0.113.9",
    }
    answer = served.submitter.post(
        f"/api/v1/jobs?actor={admin}&submitted_by={admin}", content=RECIPE, headers={**YAML, **forged}
    )
    assert answer.status_code == 201
    row = served.store.audit(action="job.submit")[0]
    assert (row.actor, row.role, row.actor_project, row.project, row.address) == (
        mine,
        "submitter",
        "acme",
        "acme",
        "testclient",
    )
    body = {"recipe": RECIPE, "actor": admin}
    assert served.submitter.post("/api/v1/jobs", json=body).status_code == 422
    assert len(served.store.audit(action="job.submit")) == 1


def test_requests_one_after_the_other_do_not_inherit_an_actor(served):
    served.admin.get("/api/v1/me")
    served.nobody.get("/api/v1/me", headers={"Authorization": f"Bearer fin_{'a' * 12}_{'b' * 43}"})
    row = served.store.audit(action="login.failed")[0]
    assert (row.actor, row.role, row.actor_project) == ("", "", "")


def test_what_a_client_names_stays_in_one_line(served, monkeypatch, capsys):
    """Names of files and tokens come from clients: no new line, no terminal escape, no turned direction."""
    served.submitter.post("/api/v1/files", json={"filename": EVIL.replace("\x00", "")})
    served.admin.post("/api/v1/tokens", json={"name": EVIL.replace("\x00", "")})
    served.store.set_project("acme", settings={"x": EVIL})
    with pytest.raises(Exception, match="there is no"):
        served.store.move(EVIL, "cancel")  # type: ignore[arg-type]
    for row in served.store.audit(limit=500):
        texts = [row.action, row.actor, row.thing, row.address, row.request, row.project or ""]
        texts += [
            part for value in row.details.values() for part in (value if isinstance(value, list) else [str(value)])
        ]
        assert not [text for text in texts if any(not letter.isprintable() for letter in str(text))], row
    answer = served.admin.get("/api/v1/audit").json()

    class Connection:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def get(self, *_, **__):
            return answer

    monkeypatch.setattr(command, "connect", lambda *_: Connection())
    assert command.audit(None, None, None, None, None, 50, None, None, False) == 0
    printed = capsys.readouterr().out
    assert not {"\x1b", "\r", "\u202e"} & set(printed)


def test_a_request_id_of_a_client_cannot_forge_lines(served):
    from service.store.audit import Actor, acting

    with acting(
        Actor("token-1", scope={"client": ("1.2.3.4\n", 1), "state": SimpleNamespace(request_id="x\ny" * 400)})
    ):
        served.store.record("login", "token", "token-1", "acme")
    row = served.store.audit(limit=1)[0]
    assert (row.address, "\n" in row.request, len(row.request)) == ("1.2.3.4\ufffd", False, 501)


def test_wrong_tokens_do_not_fill_it(served):
    """Ten thousand wrong tokens from a hundred addresses leave sixty rows, and what others did stays in sight."""
    job = served.job()
    before = len(served.store.audit(limit=10_000))
    for number in range(10_000):
        served.store.login_failed(f"198.51.100.{number % 100}", "a" * 12)
    rows = served.store.audit(limit=10_000)
    assert len(rows) - before == MOST_FAILURES
    assert job in [row.thing for row in rows]


def test_wrong_tokens_over_http_are_written_once(served):
    for _ in range(15):
        assert served.nobody.get(
            "/api/v1/me", headers={"Authorization": f"Bearer fin_{'a' * 12}_{'b' * 43}"}
        ).status_code in (401, 429)
    rows = served.store.audit(action="login.failed")
    assert [(row.thing, row.address) for row in rows] == [("a" * 12, "testclient")]
    assert "b" * 43 not in whole(served.store)


def test_no_token_is_no_attack_and_leaves_nothing(served):
    before = whole(served.store)
    for _ in range(5):
        served.nobody.get("/api/v1/jobs")
    assert whole(served.store) == before


def test_values_of_secrets_and_tokens_are_never_in_it(served):
    assert served.submitter.put("/api/v1/secrets/HF_TOKEN", json={"value": VALUE}).status_code == 204
    made = served.admin.post("/api/v1/tokens", json={"role": "admin"}).json()
    answer = served.submitter.post("/api/v1/jobs", content=RECIPE, headers=YAML, params={"secrets": "HF_TOKEN"})
    assert answer.status_code == 201, answer.text
    assert served.submitter.delete("/api/v1/secrets/HF_TOKEN").status_code == 204
    trail = whole(served.store)
    assert {"secret.put"} == {row.action for row in served.store.audit(thing="HF_TOKEN")} - {"secret.delete"}
    for value in (
        VALUE,
        made["token"],
        made["token"].split("_", 2)[2],
        *(token.sha256 for token in served.store.tokens()),
    ):
        assert value not in trail


def test_the_trail_says_which_secret_an_attempt_was_given(served, tmp_path):
    """By name, with job and attempt, before the process starts; one that was not given is not named."""
    from service.attempts.watching import Watcher
    from service.executors.protocol import ExecutorError

    served.submitter.put("/api/v1/secrets/HF_TOKEN", json={"value": VALUE, "hosts": ["huggingface.co"]})
    answer = served.submitter.post(
        "/api/v1/jobs", content=RECIPE, headers=YAML, params={"secrets": ["HF_TOKEN", "WANDB_API_KEY"]}
    )
    attempt = served.started(answer.json()["id"])

    class Executor:
        isolation = Isolation("container")
        rows: list = []

        def start(self, spec):
            self.rows = served.store.audit(action="secret.read")
            raise ExecutorError("no place")

        def reattach(self, record):
            return None

    executor = Executor()
    watcher = Watcher(served.store, served.settings, executor, "tests")
    watcher.step()
    watcher.stop() if watcher._thread.is_alive() else watcher._pool.shutdown()
    assert [(row.thing, row.actor, row.project, dict(row.details)) for row in executor.rows] == [
        ("HF_TOKEN", "finery", "acme", {"job": attempt.job, "attempt": attempt.id})
    ]

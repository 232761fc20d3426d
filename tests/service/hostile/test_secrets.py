"""Secrets under hostile names, secrets of the server asked for by tenants, and what an attempt's processes can see of any."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from pipelines.core.errors import StageError
from pipelines.feedback.judges.endpoint import EndpointJudgeBlock
from service.attempts.environment import secret_files, secrets_of
from service.attempts.watching import Watcher
from service.disk import sweep_secrets
from service.executors.records import delete_secrets, write_secrets
from service.safety import secrets
from service.settings import Settings
from tests.covering import some
from tests.service.attempts.conftest import Server
from tests.service.executors.worlds import until
from tests.service.served import RECIPE, Served
from tests.words import words_of

RULING = [
    # the loader, the C library and its helpers
    "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GCONV_PATH", "LOCPATH", "NLSPATH", "MALLOC_TRACE", "HOSTALIASES", "RES_OPTIONS", "GLIBC_TUNABLES",
    # cryptography and networks
    "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "NETRC", "AWS_ENDPOINT_URL",
    # interpreters and shells
    "PYTHONSTARTUP", "PYTHONPATH", "PYTHONHOME", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONPYCACHEPREFIX", "PERL5OPT", "NODE_OPTIONS", "BASH_ENV", "ENV",
    "PATH", "HOME", "SHELL", "IFS", "TMPDIR", "EDITOR", "PAGER",
    # git
    "GIT_SSH_COMMAND", "GIT_CONFIG_GLOBAL", "GIT_EXEC_PATH", "GIT_PROXY_COMMAND", "GIT_ASKPASS", "GIT_TEMPLATE_DIR",
    # what training libraries read
    "NCCL_NET_PLUGIN", "NCCL_TOPO_FILE", "NCCL_CONF_FILE", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TRITON_CACHE_DIR", "TRITON_LIBCUDA_PATH", "CUDA_HOME", "CUDA_INJECTION64_PATH", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_ENDPOINT", "HF_MODULES_CACHE",
    "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_TOKEN_PATH", "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "VLLM_PLUGINS", "OMP_TOOL_LIBRARIES", "OMP_NUM_THREADS",
    "KMP_AFFINITY", "MKL_VERBOSE", "CC", "CXX", "CFLAGS", "XLA_FLAGS", "WANDB_CONFIG_DIR", "WANDB_DIR", "OPENAI_BASE_URL",
    "MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_TRACKING_INSECURE_TLS", "MLFLOW_TRACKING_AUTH",
    # ours
    "FINERY_HOME", "FINERY_DATA", "FINERY_SECRETS", "FINERY_EGRESS", "FINERY_PUBLIC_ENDPOINTS_ONLY", "FINERY_SECRET_HF_TOKEN", "FINERY_ATTEMPT_ID",
    # almost a name
    "SECRET_", "SECRET_a", "secret_KEY", "MY_SECRET_KEY", "HF_TOKEN2", "XHF_TOKEN", "HF_TOKEN.hosts", "HF_TOKEN\n", "SECRET_A\nB", "SECRET_" + "A" * 58,
]  # fmt: skip
VALUE = "s3cret-value-of-a-tenant"
JUDGED = """\
name: demo
model: {{checkpoint: some/model}}
stages:
  - stage: feedback
    prompts: {{path: builtin/python-docs}}
    judge: {{name: endpoint, base_url: "{url}", model: m, api_key_env: {key}}}
"""


def judged(url: str, key: str) -> str:
    return JUDGED.format(url=url, key=key)


def kept(settings: Settings) -> list[Path]:
    return [path for path in (settings.home / "secrets").rglob("*") if path.is_file()]


@pytest.mark.wider
def test_no_other_name_is_taken_anywhere(served: Served) -> None:
    """Each name at one of the places, and at all of them with the long tests."""
    assert len(set(RULING)) >= 90
    bound = {"projects": ["acme"], "hosts": ["a.example"], "value": "x"}
    places: list[tuple[TestClient, str, str, dict[str, object]]] = [
        (served.submitter, "PUT", "/api/v1/secrets/{}", {"value": "x"}),
        (served.admin, "PUT", "/api/v1/server-secrets/{}", bound),
        (served.submitter, "POST", "/api/v1/jobs", {"recipe": RECIPE}),
    ]
    for number, name in enumerate(RULING):
        for client, method, path, body in some(places, number, 1):
            given = body if "{}" in path else {**body, "secrets": [name]}
            answer = client.request(method, path.format(quote(name, safe="")), json=given)
            assert answer.status_code == 422, (name, answer.text)
            assert "cannot name a secret" in answer.text or path != "/api/v1/secrets/{}"
        assert kept(served.settings) == [], name
    assert served.store.jobs("acme", limit=1) == []


ADDRESSES = ["WANDB_BASE_URL", "MLFLOW_TRACKING_URI"]
"""Which the job reads from a file and holds to the hosts of the key that goes there; no library finds them."""


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "SECRET_MY_JUDGE", "SECRET_1", *ADDRESSES]
)
def test_names_of_credentials_and_of_our_prefix_are_taken(served: Served, name: str) -> None:
    assert (
        served.submitter.put(f"/api/v1/secrets/{name}", json={"value": VALUE, "hosts": ["api.example.com"]}).status_code
        == 204
    )
    assert served.viewer.get("/api/v1/secrets").json() == [name]
    assert {path.stat().st_mode & 0o777 for path in kept(served.settings)} == {0o600}


def test_planted_files_of_other_names_are_no_secrets(served: Served) -> None:
    place = served.settings.home / "secrets" / "acme"
    place.mkdir(parents=True)
    for name in (*RULING[:40], "SECRET_GOOD"):
        (place / name).write_text("planted-by-an-older-version")
    assert served.viewer.get("/api/v1/secrets").json() == ["SECRET_GOOD"]
    job: Any = SimpleNamespace(project="acme", request=SimpleNamespace(secrets=(*RULING[:40], "SECRET_GOOD")))
    assert secrets_of(served.settings, job, {f"FINERY_SECRET_{name}": "x" for name in RULING}).keys() == {"SECRET_GOOD"}
    assert "planted-by-an-older-version" in secrets.values(served.settings), (
        "what is shown is redacted by them all the same"
    )


@pytest.mark.parametrize(
    "key", ["HF_HOME", "PATH", "AWS_SECRET_ACCESS_KEY", "FINERY_TOKEN", "FINERY_SECRET_OPENAI_API_KEY", "MY_KEY"]
)
def test_a_judge_is_sent_no_variable_of_the_server(served: Served, key: str) -> None:
    answer = served.submitter.post(
        "/api/v1/jobs", json={"recipe": judged("https://api.example.com/v1", key), "secrets": []}
    )
    assert answer.status_code == 422
    assert any(
        each["key"].endswith("api_key_env") and "cannot name a secret" in each["message"]
        for each in answer.json()["errors"]
    )


def test_a_judge_is_sent_only_what_the_job_names(served: Served) -> None:
    recipe = judged("https://api.example.com/v1", "OPENAI_API_KEY")
    served.submitter.put("/api/v1/secrets/OPENAI_API_KEY", json={"value": VALUE})
    for where in ("jobs", "validate"):
        refused = served.submitter.post(f"/api/v1/{where}", json={"recipe": recipe})
        assert refused.status_code == 422
        assert "does not name under 'secrets'" in refused.text
    assert (
        served.submitter.post("/api/v1/jobs", json={"recipe": recipe, "secrets": ["OPENAI_API_KEY"]}).status_code == 201
    )


# what an attempt sees

SEEN = """\
import os, subprocess, sys
from pathlib import Path
print("ENV", dict(os.environ), flush=True)
rank = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
pid, tree = os.getpid(), [rank.pid]
while pid > 1:
    tree.append(pid)
    pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    if b"service.executors.launcher" in Path(f"/proc/{pid}/cmdline").read_bytes():
        tree.append(pid)
        print("LAUNCHER", flush=True)
        break
for pid in tree:
    print("PROC", Path(f"/proc/{pid}/environ").read_bytes(), Path(f"/proc/{pid}/cmdline").read_bytes(), flush=True)
rank.kill()
import hashlib
folder = Path(os.environ["FINERY_SECRETS"])
for path in sorted(folder.iterdir()):
    print("GIVEN", hashlib.sha256(path.name.encode()).hexdigest(), hashlib.sha256(path.read_bytes()).hexdigest(), oct(path.stat().st_mode & 0o777), flush=True)
print("DONE", flush=True)
if "sleep" in sys.argv[0]:
    import time
    time.sleep(600)
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("FINERY_HOME", raising=False)
    made = Server(Settings(home=tmp_path / "service"))  # type: ignore[no-untyped-call]
    yield made
    for attempt, _ in made.store.live_attempts():
        if attempt.handle:
            made.executor.kill(made.executor.reattach(attempt.handle))
    for watcher in made.watchers:
        watcher.stop()
    made.store.close()


def running(server: Any, tmp_path: Path, name: str, script: str = SEEN) -> None:
    """Let attempts run a script in place of the pipelines."""
    path = tmp_path / name
    path.write_text(script)
    server.watcher = Watcher(server.store, server.settings, server.executor, "me", (sys.executable, "-S", str(path)))
    server.watchers.append(server.watcher)


def record(server: Any, job: str, attempt: Any) -> Path:
    found: Path = server.folders(job).record(attempt.id)
    return found


def printed(place: Path) -> str:
    return "".join(path.read_text() for path in sorted((place / "console").glob("*.log")))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_no_process_of_an_attempt_has_a_secret_in_its_environment(server: Any, tmp_path: Path) -> None:
    running(server, tmp_path, "seen.py")
    secrets.put(server.settings, "default", "SECRET_JUDGE", VALUE, ("api.example.com",))
    secrets.put(server.settings, "default", "OPENAI_API_KEY", "another-value-of-a-tenant")
    secrets.put(server.settings, "default", "SECRET_UNNAMED", "a-value-that-no-job-names")
    planted = server.settings.home / "secrets" / "default" / "LD_PRELOAD"
    planted.write_text("/uploaded.so")
    job = server.submit(secrets=("SECRET_JUDGE", "OPENAI_API_KEY", "LD_PRELOAD"))
    _, attempt = server.run(job)
    place = record(server, job, attempt)
    said = printed(place)
    assert "LAUNCHER" in said
    assert said.count("PROC") >= 3, "the launcher, the run and its child"
    for word in (
        "SECRET_JUDGE",
        "OPENAI_API_KEY",
        "LD_PRELOAD",
        VALUE,
        "another-value",
        "/uploaded.so",
        "a-value-that-no-job-names",
    ):
        assert word not in said
    given = {tuple(line.split()[1:]) for line in said.splitlines() if line.startswith("GIVEN")}
    assert given == {
        (digest("SECRET_JUDGE"), digest(VALUE), "0o600"),
        (digest("SECRET_JUDGE.hosts"), digest("api.example.com"), "0o600"),
        (digest("OPENAI_API_KEY"), digest("another-value-of-a-tenant"), "0o600"),
    }
    assert not (place / "secrets").exists(), "deleted with its end"
    assert VALUE not in "".join(
        path.read_text(errors="replace") for path in server.folders(job).job.rglob("*") if path.is_file()
    )


def test_secrets_are_deleted_when_the_launcher_was_killed(server: Any, tmp_path: Path) -> None:
    running(server, tmp_path, "seen-and-sleep.py")
    secrets.put(server.settings, "default", "SECRET_JUDGE", VALUE)
    job = server.submit(secrets=("SECRET_JUDGE",), max_retries=0)
    attempt = server.place(job)
    server.watcher.step()
    place = record(server, job, attempt)
    until(lambda: "DONE" in printed(place))
    assert (place / "secrets" / "SECRET_JUDGE").read_text() == VALUE
    os.kill(json.loads((place / "launcher.json").read_text())["launcher_pid"], signal.SIGKILL)
    server.until(job, lambda found: not found.active)
    assert not (place / "secrets").exists()


def test_what_a_killed_server_left_is_swept_and_what_runs_is_not(server: Any, tmp_path: Path) -> None:
    running(server, tmp_path, "seen-and-sleep.py")
    secrets.put(server.settings, "default", "SECRET_JUDGE", VALUE)
    job = server.submit(secrets=("SECRET_JUDGE",))
    attempt = server.place(job)
    server.watcher.step()
    live = record(server, job, attempt)
    until(lambda: "DONE" in printed(live))
    ended = live.parent / "attempt-that-ended"
    (ended / "host-1").mkdir(parents=True)
    write_secrets(ended, {"SECRET_JUDGE": VALUE})
    write_secrets(ended / "host-1", {"SECRET_JUDGE": VALUE})
    assert sweep_secrets(server.store, server.settings) == 1
    assert not list(ended.rglob("SECRET_JUDGE"))
    assert (live / "secrets" / "SECRET_JUDGE").is_file()
    assert sweep_secrets(server.store, server.settings) == 0


def test_deleting_follows_no_link_that_an_attempt_planted(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (target / "admin.token").write_text("x")
    place = tmp_path / "attempt"
    place.mkdir()
    (place / "secrets").symlink_to(target)
    assert delete_secrets(place)
    assert not (place / "secrets").is_symlink()
    (place / "secrets").mkdir()
    (place / "secrets" / "HF_TOKEN").symlink_to(target / "admin.token")
    assert delete_secrets(place)
    (place / "secrets" / "nested").mkdir(parents=True)
    (place / "secrets" / "nested" / "x").touch()
    assert not delete_secrets(place), "told, not raised: an attempt cannot keep its end from being taken in"
    assert (target / "admin.token").read_text() == "x"


def test_writing_follows_no_link_either(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (tmp_path / "attempt").mkdir()
    (tmp_path / "attempt" / "secrets").symlink_to(target)
    write_secrets(tmp_path / "attempt", {"SECRET_A": "v"})
    assert list(target.iterdir()) == []
    assert (tmp_path / "attempt" / "secrets").stat().st_mode & 0o777 == 0o700


# secrets of the server


class Judge(BaseHTTPRequestHandler):
    """A tenant's endpoint that notes what it is sent."""

    asked: list[dict[str, str]]

    def do_POST(self) -> None:
        type(self).asked.append(dict(self.headers))
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"choices": [{"message": {"content": "A"}}], "usage": {}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def judge() -> Iterator[tuple[str, list[dict[str, str]]]]:
    handler = type("Handler", (Judge,), {"asked": []})
    serving = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{serving.server_port}", handler.asked  # type: ignore[attr-defined]
    serving.shutdown()
    serving.server_close()


def ask(url: str, name: str, settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an attempt of `acme` does whose job names this secret."""
    job: Any = SimpleNamespace(project="acme", request=SimpleNamespace(secrets=(name,)))
    folder.mkdir(exist_ok=True)
    write_secrets(folder, secret_files(secrets_of(settings, job)))
    monkeypatch.setenv("FINERY_SECRETS", str(folder / "secrets"))
    monkeypatch.setenv("FINERY_PUBLIC_ENDPOINTS_ONLY", "0")
    context: Any = SimpleNamespace(cache=folder, stop=_Stop(), seed=0)
    EndpointJudgeBlock(base_url=url, model="m", api_key_env=name, both_orders=False).open(context).compare(
        ["p"], ["a"], ["b"]
    )


class _Stop:
    requested = False

    def deferred(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    """A server with secrets of its own in its environment."""
    monkeypatch.setenv("HF_TOKEN", "hub-token-of-the-server")
    monkeypatch.setenv("FINERY_SECRET_OPENAI_API_KEY", "openai-key-of-the-server")
    monkeypatch.setenv("OPENAI_API_KEY", "openai-key-of-the-server")
    return "openai-key-of-the-server"


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_API_KEY"])
def test_an_unbound_secret_of_the_server_reaches_nobody(
    name: str, served: Served, judge: Any, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, asked = judge
    with pytest.raises(StageError, match="is not set"):
        ask(f"http://{host}/v1", name, served.settings, tmp_path / "attempt", monkeypatch)
    assert (
        served.admin.put(f"/api/v1/server-secrets/{name}", json={"projects": ["others"], "hosts": [host]}).status_code
        == 200
    )
    with pytest.raises(StageError, match="is not set"):
        ask(f"http://{host}/v1", name, served.settings, tmp_path / "attempt", monkeypatch)
    assert asked == []


def test_a_bound_one_is_sent_to_its_hosts_only(
    served: Served, judge: Any, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, asked = judge
    url = f"http://{host}/v1"
    bound = served.admin.put(
        "/api/v1/server-secrets/OPENAI_API_KEY", json={"projects": ["acme"], "hosts": ["api.openai.com"]}
    )
    assert bound.json() == {
        "name": "OPENAI_API_KEY",
        "projects": ["acme"],
        "hosts": ["api.openai.com"],
        "present": True,
    }
    with pytest.raises(StageError, match="may not be sent"):
        ask(url, "OPENAI_API_KEY", served.settings, tmp_path / "attempt", monkeypatch)
    assert asked == []
    served.admin.put("/api/v1/server-secrets/OPENAI_API_KEY", json={"projects": ["acme"], "hosts": [host]})
    ask(url, "OPENAI_API_KEY", served.settings, tmp_path / "attempt", monkeypatch)
    assert [each["Authorization"] for each in asked] == [f"Bearer {own}"]


def test_the_hub_s_token_is_no_judge_s_key_unless_listed(
    served: Served, judge: Any, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, asked = judge
    served.admin.put("/api/v1/server-secrets/HF_TOKEN", json={"projects": ["acme"]})
    with pytest.raises(StageError, match="may not be sent"):
        ask(f"http://{host}/v1", "HF_TOKEN", served.settings, tmp_path / "attempt", monkeypatch)
    assert asked == []


@pytest.mark.parametrize(
    "url",
    words_of(
        "https://evil.example/v1 https://api.openai.com.evil.example/v1 http://api.openai.com/v1 "
        "https://api.openai.com:8443/v1 https://evil.example/api.openai.com"
    ),
)
def test_another_host_is_refused_at_submission(url: str, served: Served, own: str) -> None:
    served.admin.put("/api/v1/server-secrets/OPENAI_API_KEY", json={"projects": ["acme"], "hosts": ["api.openai.com"]})
    answer = served.submitter.post(
        "/api/v1/jobs", json={"recipe": judged(url, "OPENAI_API_KEY"), "secrets": ["OPENAI_API_KEY"]}
    )
    assert answer.status_code == 422
    assert any(
        each["key"].endswith("base_url") and "may not be sent" in each["message"] for each in answer.json()["errors"]
    )
    assert served.store.jobs("acme", limit=1) == []
    good = judged("https://API.openai.com/v1", "OPENAI_API_KEY")
    assert (
        served.submitter.post("/api/v1/jobs", json={"recipe": good, "secrets": ["OPENAI_API_KEY"]}).status_code == 201
    )


def test_a_study_s_cell_is_no_way_around(served: Served, own: str) -> None:
    served.admin.put("/api/v1/server-secrets/OPENAI_API_KEY", json={"projects": ["acme"], "hosts": ["api.openai.com"]})
    recipe = judged("https://api.openai.com/v1", "OPENAI_API_KEY")
    study = (
        recipe + "matrix:\n  stages.feedback.judge.base_url: ['https://api.openai.com/v1', 'https://evil.example/v1']\n"
    )
    answer = served.submitter.post("/api/v1/jobs", json={"recipe": study, "secrets": ["OPENAI_API_KEY"]})
    assert answer.status_code == 422
    assert "may not be sent" in answer.text, answer.text


def test_only_admins_bind_and_nobody_reads_a_value(served: Served, own: str) -> None:
    body = {"projects": ["acme"], "hosts": ["api.openai.com"], "value": "put-by-the-admin"}
    for client in (served.viewer, served.submitter, served.stranger):
        assert client.put("/api/v1/server-secrets/OPENAI_API_KEY", json=body).status_code == 403
        assert client.get("/api/v1/server-secrets").status_code == 403
        assert client.delete("/api/v1/server-secrets/OPENAI_API_KEY").status_code == 403
    answer = served.admin.put("/api/v1/server-secrets/OPENAI_API_KEY", json=body)
    assert answer.status_code == 200
    listed = served.admin.get("/api/v1/server-secrets")
    assert {each["name"]: each["projects"] for each in listed.json()} == {"HF_TOKEN": [], "OPENAI_API_KEY": ["acme"]}
    assert "put-by-the-admin" not in listed.text + answer.text
    assert own not in listed.text
    assert served.service.redactor.text(f"put-by-the-admin {own}") == "[secret] [secret]"
    assert served.admin.delete("/api/v1/server-secrets/OPENAI_API_KEY").status_code == 204
    assert served.admin.delete("/api/v1/server-secrets/OPENAI_API_KEY").status_code == 404
    assert {each["name"]: each["projects"] for each in served.admin.get("/api/v1/server-secrets").json()} == {
        "HF_TOKEN": [],
        "OPENAI_API_KEY": [],
    }


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["https://api.openai.com"],
        ["api.openai.com/v1"],
        ["*"],
        ["*.openai.com"],
        ["a b"],
        ["user@host"],
        ["h:port"],
        ["a\nb"],
    ],
)
def test_a_binding_names_hosts_and_nothing_else(served: Served, hosts: list[str], own: str) -> None:
    assert (
        served.admin.put(
            "/api/v1/server-secrets/OPENAI_API_KEY", json={"projects": ["acme"], "hosts": hosts}
        ).status_code
        == 422
    )
    assert kept(served.settings) == []


def test_a_project_s_own_secret_keeps_to_its_hosts(
    served: Served, judge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, asked = judge
    served.submitter.put("/api/v1/secrets/SECRET_JUDGE", json={"value": VALUE, "hosts": ["judge.example:8000"]})
    with pytest.raises(StageError, match="may not be sent"):
        ask(f"http://{host}/v1", "SECRET_JUDGE", served.settings, tmp_path / "attempt", monkeypatch)
    assert asked == []
    served.submitter.put("/api/v1/secrets/SECRET_JUDGE", json={"value": "new-value-for-anywhere"})
    ask(f"http://{host}/v1", "SECRET_JUDGE", served.settings, tmp_path / "attempt", monkeypatch)
    assert [each["Authorization"] for each in asked] == ["Bearer new-value-for-anywhere"]


def test_ray_s_agent_is_not_told_the_server_s_secrets(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from service.executors.ray import _agent_environment

    monkeypatch.setenv("FINERY_DATABASE_URL", "postgresql://finery:password@db/finery")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "ray-needs-it")
    found = _agent_environment()
    assert found["RAY_AUTH_TOKEN"] == "ray-needs-it"
    assert not [name for name, value in found.items() if own in value or "password" in value or name == "HF_TOKEN"]

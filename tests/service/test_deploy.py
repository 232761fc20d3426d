"""The examples of configs/deploy in front of a real server: nginx and Caddy with TLS, each as it is but for ports and paths."""

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from service.settings import Settings
from tests.service.served import RECIPE, YAML
from tests.service.tls import self_signed
from tests.words import words_of

DEPLOY = Path(__file__).resolve().parents[2] / "configs" / "deploy"
NAME = "finery.example.org"
SERVE = "import sys; from service.cli.__main__ import main; sys.exit(main(sys.argv[1:]))"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed one; its folder."""
    folder = tmp_path_factory.mktemp("tls")
    self_signed(folder, NAME)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`finery serve` behind a proxy on loopback; (port, home)."""
    import os

    home = tmp_path_factory.mktemp("served") / "home"
    environment = {
        **os.environ,
        "FINERY_TRUSTED_PROXIES": "127.0.0.1",
        "FINERY_ALLOWED_HOSTS": NAME,
        "FINERY_CPUS": "1",
        "FINERY_ISOLATION": "auto",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", "--home", str(home), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        told = json.loads(process.stdout.readline())
        yield int(told["url"].rpartition(":")[2]), home
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@contextmanager
def running(command, folder):
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env={"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin:/bin"}
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)


def replaced(text, *pairs):
    for old, new in pairs:
        assert old in text, f"the example no longer has {old!r}"
        text = text.replace(old, str(new))
    return text


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxy(request, certificate, server, tmp_path_factory):
    """The port of the proxy."""
    program = shutil.which(request.param) or shutil.which(request.param, path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip(f"{request.param} is not installed")
    port, plain, folder = free_port(), free_port(), tmp_path_factory.mktemp(request.param)
    folder.chmod(0o755)
    if request.param == "nginx":
        text = replaced(
            (DEPLOY / "nginx.conf").read_text(),
            ("listen 443", f"listen 127.0.0.1:{port}"),
            ("listen 80", f"listen 127.0.0.1:{plain}"),
            ("/etc/ssl/finery", certificate),
            ("127.0.0.1:8321", f"127.0.0.1:{server[0]}"),
            ("/run/nginx.pid", folder / "pid"),
            ("/var/log/nginx", folder),
            (
                "include /etc/nginx/mime.types;",
                "".join(
                    f"{kind}_temp_path {folder / kind};"
                    for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
                ),
            ),
        )
        (folder / "nginx.conf").write_text("user root;\n" + text if Path("/proc/self").stat().st_uid == 0 else text)
        command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    else:
        text = replaced(
            (DEPLOY / "Caddyfile").read_text(),
            ("127.0.0.1:8321", f"127.0.0.1:{server[0]}"),
            ("\tadmin off\n", f"\tadmin off\n\thttp_port {plain}\n\thttps_port {port}\n\tdefault_bind 127.0.0.1\n"),
            (f"\n{NAME} {{\n", f"\n{NAME} {{\n\ttls {certificate}/fullchain.pem {certificate}/privkey.pem\n"),
        )
        (folder / "Caddyfile").write_text(text)
        command = [program, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    with running(command, folder) as process:
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield port


@pytest.fixture
def client(proxy, certificate, server):
    """Asks through the proxy under its name, as the admin, from an address of its own."""
    with reaching(proxy, certificate, "127.0.0.2") as found:
        found.headers["Authorization"] = f"Bearer {(server[1] / 'admin.token').read_text().strip()}"
        yield found


@contextmanager
def reaching(port, certificate, source, name=NAME):
    trusted = ssl.create_default_context(cafile=str(certificate / "fullchain.pem"))
    transport = httpx.HTTPTransport(verify=trusted, local_address=source)
    with httpx.Client(
        base_url=f"https://127.0.0.1:{port}", transport=transport, timeout=30, headers={"Host": name}
    ) as client:
        client.request = with_name(client, name)
        yield client


def with_name(client, name):
    """TLS asks for the certificate's name, whatever the address."""
    ask = client.request
    return lambda method, url, **options: ask(method, url, extensions={"sni_hostname": name}, **options)


def known(client):
    """The ids of all jobs."""
    return [each["id"] for each in client.request("GET", "/api/v1/jobs").json()["data"]]


def submitted(client, **headers):
    answer = client.request("POST", "/api/v1/jobs", content=RECIPE, headers={**YAML, **headers})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def test_a_job_is_submitted_from_the_clients_address_which_no_header_forges(client):
    forged = {
        "X-Forwarded-For": "203.0.113.9, 127.0.0.1",
        "Forwarded": "for=203.0.113.9",
        "X-Real-IP": "203.0.113.9",
        "X-Forwarded-Proto": "http",
    }
    job = submitted(client, **forged)
    row = client.request("GET", "/api/v1/audit", params={"thing": job}).json()["data"][0]
    assert (row["action"], row["address"]) == ("job.submit", "127.0.0.2")
    client.request("POST", f"/api/v1/jobs/{job}/cancel")


def test_events_reach_the_client_while_the_stream_is_open(client):
    job = submitted(client)
    request = client.build_request(
        "GET",
        f"/api/v1/jobs/{job}/events",
        headers={"Accept": "text/event-stream"},
        extensions={"sni_hostname": NAME, "timeout": dict.fromkeys(("connect", "read", "write", "pool"), 20.0)},
    )
    answer = client.send(request, stream=True)
    try:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert '"queued"' in next(line for line in lines if line.startswith("data:"))
        client.request("POST", f"/api/v1/jobs/{job}/cancel")
        assert any("cancel" in line for line in lines if line.startswith("data:"))
    finally:
        answer.close()


def test_a_large_upload_goes_through_and_a_large_recipe_does_not(client, request):
    content, before = b"a,b\n" * 3_000_000, known(client)
    answer = client.request("POST", "/api/v1/files/upload?filename=a.csv", content=content)
    assert (answer.status_code, answer.json()["bytes"]) == (201, len(content))
    begun = client.request("POST", "/api/v1/files", json={"filename": "b.csv"}).json()["id"]
    assert client.request("PATCH", f"/api/v1/files/{begun}", content=content, headers={"Upload-Offset": "0"}).headers[
        "Upload-Offset"
    ] == str(len(content))
    caddy = "caddy" in request.node.name  # ends a request that is refused in the middle, by 502 or within the answer
    try:
        assert client.request("POST", "/api/v1/jobs", content=content, headers=YAML).status_code in (413, 502)
    except httpx.RemoteProtocolError:
        assert caddy
    assert known(client) == before


def test_a_page_comes_with_its_headers_and_a_cookie_that_stays_within_tls(client):
    answer = client.request("GET", "/sign-in")
    assert answer.status_code == 200
    assert "max-age" in answer.headers["strict-transport-security"]
    assert re.search(r"(?i)secure", answer.headers["set-cookie"])
    assert "finery" in answer.text.lower()


def test_metrics_are_for_this_machine_alone(proxy, certificate, client):
    assert client.request("GET", "/metrics").status_code == 403
    with reaching(proxy, certificate, "127.0.0.1") as near:
        answer = near.request("GET", "/metrics")
        assert answer.status_code == 200
        assert "finery_jobs" in answer.text


def test_another_name_is_not_answered(proxy, certificate):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    transport = httpx.HTTPTransport(verify=context)
    with httpx.Client(
        base_url=f"https://127.0.0.1:{proxy}", transport=transport, headers={"Host": "evil.example.com"}
    ) as client:
        try:
            answer = client.get("/sign-in")
        except httpx.HTTPError:
            return
        assert "set-cookie" not in answer.headers
        assert "<form" not in answer.text


def test_every_setting_and_path_that_the_examples_name_is_there():
    files = [path for path in sorted(DEPLOY.iterdir()) if path.is_file()]
    text = "".join(path.read_text() for path in files)
    assert {path.name for path in files} == {"nginx.conf", "Caddyfile", "finery.service", "entrypoint.sh"}
    named = set(re.findall(r"FINERY_[A-Z_]+", text)) - {
        "FINERY_RAY_PORT",  # the image's own
        "FINERY_SERVICE_HOME",
        "FINERY_TRUSTED_PROXIES",
        "FINERY_ALLOWED_HOSTS",
    }
    assert named <= {f"FINERY_{name.upper()}" for name in Settings.model_fields}


SERVER = """\
#!/bin/sh
setsid python3 -c "$LAUNCHER" & # a daemon, which the container's first process takes over
trap 'echo server stopped >> told; exit 3' TERM
touch up
while :; do sleep 0.05; done
"""
LAUNCHER = """\
import signal, time
# from service.executors.launcher import main
def stop(number, frame):
    time.sleep(0.5)
    open("told", "a").write("attempt saved\\n")
    raise SystemExit
signal.signal(signal.SIGTERM, stop)
open("running", "w").close()
time.sleep(60)
"""
FIRST = """\
import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, as the first process of a container is
child = subprocess.Popen(["sh", sys.argv[1], "serve"])
signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
sys.exit(child.wait())
"""


def test_the_image_has_attempts_save_when_it_is_stopped(tmp_path):
    (tmp_path / "finery").write_text(SERVER)
    (tmp_path / "finery").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LAUNCHER": LAUNCHER}
    words = [sys.executable, "-c", FIRST, str(DEPLOY / "entrypoint.sh")]
    with subprocess.Popen(words, cwd=tmp_path, env=environment) as first:
        limit = time.monotonic() + 20
        while not all((tmp_path / name).exists() for name in ("up", "running")) and time.monotonic() < limit:
            time.sleep(0.02)
        first.terminate()
        assert first.wait(20) == 3
    assert (tmp_path / "told").read_text().splitlines() == ["server stopped", "attempt saved"]


def test_the_unit_leaves_what_isolation_needs():
    lines = (DEPLOY / "finery.service").read_text().splitlines()
    set_to = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    for taken in words_of(
        "ProtectKernelTunables ProtectKernelLogs ProtectProc ProtectControlGroups PrivateDevices "
        "MemoryDenyWriteExecute PrivateUsers"
    ):
        assert taken not in set_to
    assert set_to["NoNewPrivileges"] == "yes"
    assert set_to["KillMode"] == "process"
    assert {"user", "mnt", "net", "pid"} <= set(set_to["RestrictNamespaces"].split())
    assert "@mount" in set_to["SystemCallFilter"]
    if shutil.which("systemd-analyze"):
        told = subprocess.run(
            ["systemd-analyze", "verify", str(DEPLOY / "finery.service")], capture_output=True, text=True, check=False
        ).stderr
        assert [line for line in told.splitlines() if "finery.service" in line and "not executable" not in line] == []

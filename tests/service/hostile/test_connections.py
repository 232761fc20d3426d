"""Connections that nobody needs a token for: idle ones, slow ones, thousands of them, and requests that invent words."""

import contextlib
import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service import logs
from service.api import connections
from service.api.connections import AT_ONCE, Places, ServerConnection, _quietly, listen, server_of
from tests.service.executors.worlds import until


@contextlib.contextmanager
def serving(served, files=4096, **settings):
    """The application as `finery serve` serves it, on a real port: (port, places)."""
    given = served.settings.model_copy(update=settings)
    served.service.settings = given
    listener = listen("127.0.0.1", 0)
    server = server_of(served.app, given, files)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield listener.getsockname()[1], server.config.http_protocol_class.places
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def connect(port, sends=b""):
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    if sends:
        made.sendall(sends)
    return made


def answer_of(connection):
    """Everything until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            found += piece
    return found


def healthy(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    finally:
        connection.close()


REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_accepted_sockets_send_at_once(served, monkeypatch):
    """Without IPPROTO_TCP on the listening socket asyncio leaves Nagle's algorithm on, and each answer waits for an acknowledgement."""
    found = []
    made = ServerConnection.connection_made

    def seen(self, transport):
        found.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        made(self, transport)

    monkeypatch.setattr(ServerConnection, "connection_made", seen)
    with serving(served) as (port, _):
        assert healthy(port)
    assert found
    assert all(found)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_listening_socket_names_its_protocol(host):
    with contextlib.suppress(OSError), listen(host, 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_hundreds_of_idle_connections_keep_nobody_out(served):
    with serving(served, max_connections=50, max_connections_per_address=1000) as (port, places):
        idle = [
            connect(port, sends) for sends in [b"", b"GET / HTT", b"GET /healthz HTTP/1.1\r\nHost: loc", REQUEST] * 75
        ]
        try:
            assert healthy(port)
            assert len(places.open) <= 50
        finally:
            for each in idle:
                each.close()


def test_one_address_has_so_many_places(served):
    with serving(served, max_connections_per_address=5) as (port, places):
        kept = [connect(port, REQUEST) for _ in range(5)]
        assert all(each.recv(1 << 16).startswith(b"HTTP/1.1 200") for each in kept)
        with connect(port) as refused:
            assert answer_of(refused).startswith(b"HTTP/1.1 503")
        kept.pop().close()
        until(lambda: len(places.open) <= 4)
        assert healthy(port), "a place that was left is free"
        for each in kept:
            each.close()


def test_a_trusted_proxy_speaks_for_many(served):
    with serving(served, max_connections_per_address=2, trusted_proxies=("127.0.0.0/8",)) as (port, _):
        kept = [connect(port, REQUEST) for _ in range(20)]
        assert all(each.recv(1 << 16).startswith(b"HTTP/1.1 200") for each in kept)
        for each in kept:
            each.close()


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /healthz HTTP/1.1\r\nX-Slow: ", REQUEST + b"GET /he", REQUEST + b"\r\n"],
    ids=["silent", "headers", "second", "blank"],
)
def test_slow_headers_are_not_waited_for(served, begun):
    """One byte after the other does not extend the time."""
    with serving(served, header_seconds=0.3, idle_seconds=600) as (port, places), connect(port, begun) as slow:
        slow.settimeout(0.05)
        found, limit = b"", time.monotonic() + 30
        while time.monotonic() < limit:
            with contextlib.suppress(TimeoutError):
                try:
                    piece = slow.recv(1 << 16)
                    if not piece:
                        break
                    found += piece
                except ConnectionError:
                    break
            if begun and not begun.endswith(b"\r\n"):
                with contextlib.suppress(OSError):
                    slow.send(b"a")
        else:
            pytest.fail("the connection is still open")
        assert begun.startswith(b"GET /healthz HTTP/1.1\r\nHost") == (b"200 OK" in found)
        until(lambda: not places.open)


def test_a_connection_between_two_requests_is_closed_when_it_is_idle(served):
    with serving(served, idle_seconds=0.5, header_seconds=600) as (port, _), connect(port, REQUEST) as idle:
        found = answer_of(idle)
        assert found.count(b"HTTP/1.1") == 1
        assert b"200 OK" in found


def test_a_body_that_does_not_come_is_not_waited_for(served, monkeypatch):
    monkeypatch.setattr(connections, "WINDOW_SECONDS", 0.3)
    head = f"POST /api/v1/validate HTTP/1.1\r\nHost: localhost\r\nAuthorization: {served.viewer.headers['Authorization']}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
    with serving(served) as (port, _), connect(port, head.encode()) as slow:
        assert answer_of(slow) == b""


def test_a_body_that_comes_steadily_is_taken(served, monkeypatch):
    monkeypatch.setattr(connections, "WINDOW_SECONDS", 0.4)
    size = 12 * connections.WINDOW_BYTES
    head = f"POST /api/v1/files/upload?filename=a.txt HTTP/1.1\r\nHost: localhost\r\nAuthorization: {served.submitter.headers['Authorization']}\r\n"
    with serving(served) as (port, _), connect(port, f"{head}Content-Length: {size}\r\n\r\n".encode()) as steady:
        for _ in range(12):
            time.sleep(0.1)
            steady.sendall(b"x" * connections.WINDOW_BYTES)
        assert steady.recv(1 << 16).startswith(b"HTTP/1.1 201")


def test_an_answer_that_is_not_read_is_given_up(served, monkeypatch):
    monkeypatch.setattr(connections, "WINDOW_SECONDS", 0.3)
    content = b"x" * (24 << 20)
    file = served.submitter.post("/api/v1/files/upload", params={"filename": "a.txt"}, content=content).json()["id"]
    head = f"GET /api/v1/files/{file}/content HTTP/1.1\r\nHost: localhost\r\nAuthorization: {served.submitter.headers['Authorization']}\r\n\r\n"
    with serving(served) as (port, places):
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", port))
        slow.sendall(head.encode())
        until(lambda: places.open)
        until(lambda: not places.open)
        slow.close()


NO_HTTP = (
    b"\x00\x01\x02\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Long: " + b"a" * 100_000,
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /api/v1/validate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"),
)


def test_what_is_no_http_is_answered_without_a_trace(served, caplog):
    with serving(served, idle_seconds=0.5, header_seconds=0.5) as (port, _):
        for broken in [connect(port, sent) for sent in NO_HTTP]:
            with broken:
                answer_of(broken)
        assert healthy(port)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


def test_complaints_about_clients_are_few():
    now = [0.0]
    seldom = logs.Seldom(most=3, clock=lambda: now[0])
    record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "Invalid HTTP request received.", (), None)
    assert [seldom.filter(record) for _ in range(5)] == [True, True, True, False, False]
    now[0] = 61.0
    assert seldom.filter(record)
    record.levelno = logging.ERROR
    assert all(seldom.filter(record) for _ in range(10)), "what is ours is always told"


def test_a_lack_of_files_is_one_line(caplog):
    handle = _quietly()
    for _ in range(AT_ONCE):
        handle(
            None, {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
        )
    (record,) = caplog.records
    assert "ulimit -n" in record.getMessage()
    assert record.exc_info is None


def test_places_are_counted_once():
    class Fake:
        def __init__(self, address, is_idle):
            self.address, self.is_idle, self.dropped = address, is_idle, False

        def drop(self):
            self.dropped = True
            places.leave(self)

    places = Places(most=2, each=5)
    busy, idle = Fake("a", False), Fake("b", True)
    assert places.enter(busy)
    assert places.enter(idle)
    third = Fake("c", False)
    assert places.enter(third), "the idle one goes"
    assert idle.dropped
    assert not places.enter(Fake("d", False)), "nobody who is served is sent away"
    for each in (busy, busy, idle, third):
        places.leave(each)
    assert not places.open
    assert not places._by_address


SERVE = """
import resource, sys
hard = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (min(64, hard), hard))
from service.cli.serve import serve
serve("127.0.0.1", 0, __import__("pathlib").Path(sys.argv[2]), None, None, True)
"""


@pytest.fixture
def server(tmp_path):
    """A real server that may open few files: (its process, its port, its log)."""
    log = tmp_path / "log"
    with (
        open(log, "w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", SERVE, "256", str(tmp_path / "home")],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            said = json.loads(process.stdout.readline() or "{}")
            assert said, log.read_text()
            yield process, int(said["url"].rpartition(":")[2]), log
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def test_a_server_with_few_files_raises_its_limit_and_stays_reachable(server):
    process, port, log = server
    soft = re.search(r"Max open files +(\d+)", Path(f"/proc/{process.pid}/limits").read_text()).group(1)
    assert soft == "256", "as many as the hard limit allows"
    idle = []
    for _ in range(300):
        with contextlib.suppress(OSError):
            idle.append(connect(port))
    assert len(os.listdir(f"/proc/{process.pid}/fd")) < 256, "files are left for the database"
    assert healthy(port)
    text = log.read_text()
    assert "Traceback" not in text, text[-2000:]


def samples(served):
    text = served.nobody.get("/metrics").text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def test_invented_methods_and_routes_make_no_series(served):
    before = len(samples(served))
    for number in range(50):
        served.nobody.request(f"METHOD{number}", "/healthz")
        served.nobody.request("GET", f"/invented/{number}")
        served.nobody.request(f"METHOD{number}", f"/api/v1/invented/{number}")
    labels = {sample.labels["method"] for sample in samples(served) if "method" in sample.labels}
    assert labels <= {"GET", "other"}
    assert len(samples(served)) - before < 100

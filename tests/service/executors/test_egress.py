"""The proxy that an isolated attempt's requests go through: real sockets, and names that answer as the test wants."""

import http.server
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from service.executors import egress
from service.executors.egress import Denied, Egress, is_metadata, is_public_address
from tests.words import words_of

REFUSED = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "240.0.0.1",
    "::1", "::", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "fe80::1", "fc00::1", "fd00:ec2::254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::",
    "2002:a9fe:a9fe::1", "ff02::1", "168.63.129.16", "100.100.100.200", "192.0.0.192", "2001:db8::1",
]  # fmt: skip


class Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        content = "\n".join([self.requestline, *(f"{name}: {value}" for name, value in self.headers.items())]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_CONNECT(self):
        self.server.asked.append((self.path, self.headers.get("Proxy-Authorization")))
        if self.server.early:  # in one write, so that it always arrives with the headers
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\nspoken before it was asked")
            return
        self.send_response(self.server.status)
        self.end_headers()
        if self.server.status == 200 and self.rfile.read(1):  # a tunnel is silent until it is spoken to
            self.wfile.write(b"through upstream")

    def log_message(self, *_):
        pass


@pytest.fixture
def origin():
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    made.asked, made.status, made.early = [], 200, False
    threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def asking():
    """Sends bytes to a proxy and returns all that it answers."""
    listeners = []

    def ask(proxy, content):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        with socket.create_connection(listener.getsockname(), 20) as made:
            made.sendall(content)
            made.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := made.recv(65536):
                answer += piece
            return answer

    yield ask
    for listener in listeners:
        listener.close()


def public(told=None, names=None):
    """A proxy for which this machine's loopback is public, as a stand-in for the internet."""
    return Egress(
        told or {},
        resolve=lambda host, port: (names or {}).get(host, []),
        is_public=lambda address: address == "127.0.0.1",
        is_own=lambda address: False,
    )


@pytest.mark.parametrize("address", REFUSED)
def test_an_address_that_is_not_public_is_refused_before_anything_is_connected(address, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("it was connected"))
    for told in ({}, {"upstream": "http://proxy.example:3128"}):
        with pytest.raises(Denied, match="may not reach it"):
            Egress(told, resolve=lambda host, port: ["93.184.216.34", address]).connect("name.example", 443)


@pytest.mark.parametrize(
    "address",
    words_of(
        "169.254.169.254 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 2002:a9fe:a9fe:: fd00:ec2::254 168.63.129.16 fe80::1"
    ),
)
def test_metadata_is_refused_even_where_private_addresses_are_allowed(address, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("it was connected"))
    assert is_metadata(address)
    with pytest.raises(Denied, match="a cloud keeps for itself"):
        Egress({"private": True}, resolve=lambda host, port: [address]).connect("metadata.example", 80)


def test_this_machine_s_own_addresses_are_refused_also_when_they_are_public(monkeypatch):
    """A firewall before the machine does not stand between it and itself."""
    assert egress.is_own("127.0.0.1")
    assert not egress.is_own("93.184.216.34")
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("it was connected"))
    with pytest.raises(Denied, match="may not reach it"):
        Egress({}, resolve=lambda host, port: ["127.0.0.1"], is_public=lambda address: True).connect("me.example", 5432)


def test_public_addresses_are_public_and_the_check_is_the_shared_one():
    check = is_public_address()
    assert all(check(address) for address in ("93.184.216.34", "1.1.1.1", "2606:4700:4700::1111"))
    assert not any(
        check(address) for address in ("127.0.0.1", "::1", "10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1")
    )


def test_a_name_is_looked_up_once_and_the_checked_address_is_connected_to(monkeypatch):
    answers, connected = iter([["93.184.216.34"], ["127.0.0.1"]]), []
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: connected.append(address))
    Egress({}, resolve=lambda host, port: next(answers)).connect("rebinding.example", 443)
    assert connected == [("93.184.216.34", 443)]
    assert next(answers) == ["127.0.0.1"], "the second answer was never asked for"


def test_a_tunnel_passes_both_ways(asking, origin):
    port = origin.server_address[1]
    answer = asking(
        public(names={"hub.example": ["127.0.0.1"]}),
        f"CONNECT hub.example:{port} HTTP/1.1\r\n\r\nGET /x HTTP/1.0\r\n\r\n".encode(),
    )
    assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
    assert b"GET /x HTTP/1.0" in answer


def test_a_request_for_a_url_goes_on_as_its_host_expects_it(asking, origin):
    port = origin.server_address[1]
    request = f"GET http://hub.example:{port}/a?b=c HTTP/1.1\r\nHost: other\r\nProxy-Authorization: x\r\nConnection: keep-alive\r\nAccept: y\r\n\r\n"
    answer = asking(public(names={"hub.example": ["127.0.0.1"]}), request.encode()).partition(b"\r\n\r\n")[2].decode()
    assert answer.splitlines() == ["GET /a?b=c HTTP/1.1", f"Host: hub.example:{port}", "Connection: close", "Accept: y"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT :80 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a@b:80 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT b:99999 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT b:25 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT gone.example:443 HTTP/1.1\r\n\r\n", 502),
        (b"GET /relative HTTP/1.1\r\n\r\n", 400),
        (b"GET https://b/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://user:word@b/ HTTP/1.1\r\n\r\n", 400),
        (b"GET file:///etc/passwd HTTP/1.1\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET http://b/ HTTP/2\r\n\r\n", 400),
        (b"GET http://b/ HTTP/1.1\r\nX: a\nHost: c\r\n\r\n", 400),
        (b"GET http://b/ HTTP/1.1\r\n", 400),
        (b"GET http://b/ HTTP/1.1\r\nX: " + b"a" * (egress.MOST_HEAD + 10) + b"\r\n\r\n", 431),
    ],
)
def test_what_is_no_proper_request_is_refused(asking, request_, status):
    assert asking(public(), request_).startswith(f"HTTP/1.1 {status} ".encode())


def test_headers_that_never_end_are_given_up(asking, monkeypatch):
    monkeypatch.setattr(egress, "HEAD_SECONDS", 0.2)
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"GET http://b/")
        public().answer(there)
        assert here.recv(100).startswith(b"HTTP/1.1 408 ")


def test_private_addresses_are_reached_where_the_operator_allows_it_but_not_on_the_ports_of_the_service(origin):
    port = origin.server_address[1]
    told = {"private": True, "refused_ports": [5432]}
    proxy = Egress(told, resolve=lambda host, port: ["127.0.0.1"])
    proxy.connect("models.internal", port).close()
    with pytest.raises(Denied):
        proxy.connect("models.internal", 5432)


def test_an_operator_s_proxy_is_asked_in_turn_with_its_login_and_its_refusal_is_told(origin):
    port = origin.server_address[1]
    told = {"upstream": f"http://us%40er:pass@127.0.0.1:{port}"}
    proxy = Egress(told, resolve=lambda host, port: {"hub.example": ["93.184.216.34"]}.get(host, []))
    with proxy.connect("hub.example", 443) as tunnel:
        tunnel.sendall(b"?")
        assert tunnel.recv(100) == b"through upstream"
    assert origin.asked == [("hub.example:443", "Basic dXNAZXI6cGFzcw==")]
    origin.early = True
    with pytest.raises(Denied, match="refused the connection"):
        proxy.connect("hub.example", 443)
    origin.early, origin.status = False, 407
    with pytest.raises(Denied, match=r"refused the connection to 'unknown\.example'"):
        proxy.connect("unknown.example", 443)
    asked = len(origin.asked)
    for name in ("metadata.google.internal", "printer.local", "localhost", "intranet", "a.localhost"):
        with pytest.raises(Denied, match="has no address"):
            proxy.connect(name, 80)
    assert len(origin.asked) == asked, "names of inner networks are not asked of it"


def test_it_ends_with_who_started_it():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader, writer = os.pipe()
        starter = os.fork()
        if starter == 0:
            os.write(writer, str(egress.start(os.dup(listener.fileno()), {})).encode())
            signal.pause()
        pid = int(os.read(reader, 32))
        assert os.path.exists(f"/proc/{pid}")
        os.kill(starter, signal.SIGKILL)
        os.waitpid(starter, 0)
        limit = 200
        while os.path.exists(f"/proc/{pid}") and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" and limit:
            limit -= 1
            threading.Event().wait(0.02)
        assert limit
        os.close(reader)
        os.close(writer)

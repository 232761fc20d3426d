"""Addresses that are written, embedded or resolved so as to reach into the network that the server stands in."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core import egress
from pipelines.core.egress import NotAllowed, checked_addresses, is_literal, is_public, may_be_private, plain_host
from pipelines.core.errors import StageError
from pipelines.feedback.judges.endpoint import connector
from pipelines.feedback.judges.endpoint_client import Client, EndpointUnreachable, transport
from pipelines.feedback.judges.verdict_cache import VerdictCache
from service.safety.fetching import FetchRefused, fetch
from service.safety.network_recipes import unfit_endpoint
from tests.conftest import REPOSITORY
from tests.service.served import Served
from tests.service.tls import self_signed
from tests.words import words_of

NOT_PUBLIC = {
    "this machine": ["127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "::1", "::"],
    "private networks": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255", "fc00::1", "fd12:3456::1"],
    "link-local and metadata": ["169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254"],
    "site-local": ["fec0::1", "feff::1"],
    "protocol assignments": ["192.0.0.1", "192.0.0.8", "192.0.0.9", "192.0.0.170", "192.88.99.1", "2001:1::1", "2001:10::1", "2001:20::1", "2001:30::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1", "3fff:fff::1"],
    "benchmarking, discard, segment routing, dummy": ["198.18.0.1", "198.19.255.255", "2001:2::1", "100::1", "100:0:0:1::1", "5f00::1"],
    "multicast, broadcast, reserved": ["224.0.0.1", "239.255.255.255", "255.255.255.255", "240.0.0.1", "ff02::1", "ff0e::1", "4000::1", "3ffe::1"],
    "IPv4-mapped": ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:7f00:1", "::ffff:192.0.0.8"],
    "IPv4-compatible and -translated": ["::127.0.0.1", "::7f00:1", "::8.8.8.8", "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8"],
    "6to4": ["2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::1", "2002:c000:8::", "2002:e000:1::1"],
    "Teredo: server and client": ["2001:0:7f00:1::f7f7:f7f7", "2001:0:808:808::80ff:fffe", "2001:0:a00:1::f5ff:fffe", "2001::"],
    "NAT64": ["64:ff9b::7f00:1", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "64:ff9b:1::808:808", "64:ff9b:1:7f00:0:100::", "64:ff9b:2::1"],
    "ISATAP": ["2606:4700::5efe:7f00:1", "2606:4700::200:5efe:10.0.0.1", "2002:808:808::5efe:7f00:1", "fe80::5efe:808:808"],
    "zones": ["2606:4700:4700::1111%1", "2606:4700:4700::1111%lo"],
    "unusual spellings": ["0x7f000001", "2130706433", "0177.0.0.1", "127.1", "127.0.1", "0x7f.1", "017700000001", "0x08080808", "08.8.8.8", "1.1", "127.0.0.1.", " 127.0.0.1"],
    "no addresses": ["", "localhost", "8.8.8.8.8", "256.1.1.1", "[::1]", "::1::", "8.8.8.8/32", "8.8.8.8:80", "1e3", "-1"],
}  # fmt: skip
PUBLIC = {
    "of the internet": words_of(
        "8.8.8.8 1.1.1.1 192.0.1.1 100.63.255.255 100.128.0.1 172.32.0.1 198.20.0.1 2606:4700:4700::1111 "
        "2a00:1450::1 2001:4860::8888"
    ),
    "by what they embed": words_of(
        "::ffff:8.8.8.8 2002:808:808::1 64:ff9b::808:808 2001:0:808:808::f7f7:f7f7 2606:4700::5efe:808:808"
    ),
}
INSIDE = words_of("127.0.0.1 10.1.2.3 172.20.0.1 192.168.0.7 169.254.169.254 100.100.100.100 0.0.0.0 192.0.0.8")


def test_the_lists_are_long_enough() -> None:
    assert sum(map(len, NOT_PUBLIC.values())) >= 90


@pytest.mark.parametrize(
    ("kind", "address"), [(kind, each) for kind, addresses in NOT_PUBLIC.items() for each in addresses]
)
def test_it_is_not_public(kind: str, address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    ("kind", "address"), [(kind, each) for kind, addresses in PUBLIC.items() for each in addresses]
)
def test_it_is_public(kind: str, address: str) -> None:
    assert is_public(address)


def forms(address: str) -> list[str]:
    """The IPv6 addresses that mean an IPv4 address."""
    number = int(ipaddress.IPv4Address(address))
    low, flipped = (
        f"{number >> 16:x}:{number & 0xFFFF:x}",
        f"{(number >> 16) ^ 0xFFFF:x}:{(number & 0xFFFF) ^ 0xFFFF:x}",
    )
    return [
        f"::ffff:{low}",
        f"2002:{low}::1",
        f"64:ff9b::{low}",
        f"2001:0:{low}::f7f7:f7f7",
        f"2001:0:808:808::{flipped}",
        f"2606:4700::5efe:{low}",
    ]


@given(st.ip_addresses(v=4))
def test_an_embedded_address_counts_as_itself(address: ipaddress.IPv4Address) -> None:
    assert {is_public(form) for form in forms(str(address))} == {is_public(str(address))}


@given(st.ip_addresses())
def test_nothing_is_public_that_python_takes_for_private(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if is_public(str(address)) and not (
        isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.teredo or address.sixtofour)
    ):
        assert address.is_global
        assert not address.is_multicast


@given(st.ip_addresses(v=6))
def test_only_addresses_of_hosts_of_the_internet_are_public(address: ipaddress.IPv6Address) -> None:
    if is_public(str(address)):
        assert (
            address in ipaddress.IPv6Network("2000::/3") or address.ipv4_mapped is not None or address in egress.NAT64
        )


@pytest.mark.parametrize(
    "address",
    words_of(
        "169.254.169.254 ::ffff:169.254.169.254 fe80::1 fd00:ec2::254 224.0.0.1 ff02::1 2002:a9fe:a9fe:: "
        "64:ff9b::a9fe:a9fe"
    ),
)
def test_metadata_is_reached_by_nobody_even_where_private_networks_are(address: str) -> None:
    assert not may_be_private(address)
    assert may_be_private("127.0.0.1")
    assert may_be_private("10.0.0.1")


# what recipes and uploads write


def spellings(address: str) -> list[str]:
    """What stands in URLs for an IPv4 address: programs take all of these."""
    number, parts = int(ipaddress.IPv4Address(address)), [int(part) for part in address.split(".")]
    octal = ".".join(f"0{part:o}" for part in parts)
    full = address.translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)})
    short = f"{parts[0]}.{(parts[1] << 16) + (parts[2] << 8) + parts[3]}"
    return [
        address,
        f"{address}.",
        str(number),
        hex(number),
        f"0{number:o}",
        octal,
        short,
        full,
        address.replace(".", "。"),
        *(f"[{each}]" for each in forms(address)),
    ]


RECIPE = """\
name: demo
model: {{checkpoint: some/model}}
stages:
  - stage: feedback
    prompts: {{path: builtin/python-docs}}
    judge: {{name: endpoint, base_url: "{url}", model: m}}
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254"])
def test_no_spelling_of_an_inner_address_is_a_valid_recipe(served: Served, address: str) -> None:
    for host in spellings(address):
        answer = served.viewer.post("/api/v1/validate", json={"recipe": RECIPE.format(url=f"http://{host}:8000/v1")})
        assert (answer.status_code, answer.json()["valid"]) == (422, False), host
        assert [each["key"] for each in answer.json()["errors"]] == ["stages.feedback.judge.base_url"], host


@pytest.mark.parametrize("address", INSIDE)
def test_no_spelling_of_an_inner_address_is_fit_or_fetched(address: str) -> None:
    for host in spellings(address):
        assert unfit_endpoint(f"https://{host}/v1") is not None, host
        with pytest.raises(FetchRefused):
            fetch(f"http://{host}/x", io.BytesIO(), 10)


@pytest.mark.parametrize(
    "host",
    [
        *words_of("localhost LOCALHOST. judge judge.internal x.localhost %6c%6f.example"),
        "a b.example",
        "exa\u0000mple.com",
        "-a.example",
        "a..example",
        "１２７.1",
    ],
)
def test_other_inner_and_impossible_hosts_are_unfit(host: str) -> None:
    assert unfit_endpoint(f"https://{host}/v1") is not None


def test_ordinary_hosts_are_fit() -> None:
    for host in words_of(
        "api.example.com API.Example.com. bücher.example xn--bcher-kva.example 8.8.8.8 [2606:4700:4700::1111] "
        "a_b.example.com 1.example.com"
    ):
        assert unfit_endpoint(f"https://{host}/v1") is None, host
    assert plain_host("BÜCHER.example.") == "xn--bcher-kva.example"
    assert not is_literal("1.example.com")


# connections


class Inner(BaseHTTPRequestHandler):
    """A service of the inner network, which counts who reaches it."""

    reached: list[tuple[str, str]]

    def do_POST(self) -> None:
        self.answer()

    do_GET = do_CONNECT = do_POST

    def answer(self) -> None:
        type(self).reached.append((self.command, self.headers.get("Host", "")))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, location = (302, self.path[4:]) if self.path.startswith("/to/") else (200, "")
        body = json.dumps({"choices": [{"message": {"content": "A"}}], "usage": {}}).encode()
        self.send_response(status)
        self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def inner() -> Iterator[tuple[int, list[tuple[str, str]]]]:
    handler = type("Handler", (Inner,), {"reached": []})
    serving = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield serving.server_port, handler.reached  # type: ignore[attr-defined]
    serving.shutdown()
    serving.server_close()


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that a socket was to connect to; none is reached but loopback."""
    found: list[str] = []
    connect = socket.socket.connect

    def noted(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            found.append(str(address[0]))
            if not ipaddress.ip_address(address[0]).is_loopback:
                raise ConnectionRefusedError(111, "refused by the test")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", noted)
    return found


class Rebinding:
    """Answers a public address the first time, loopback ever after."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        return ["203.0.114.7"] if self.asked == 1 else ["127.0.0.1"]


def judge(url: str, folder: Path, made: Any, retries: int = 2) -> Client:
    return Client(url, "sk-key", VerdictCache(folder / "answers.jsonl"), 5.0, retries, 2, connector=made)


QUESTION = {"model": "m", "messages": [{"role": "user", "content": "A or B?"}]}


def test_a_name_that_is_bound_anew_gains_a_judge_nothing(
    inner: Any, connected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.feedback.judges.endpoint_client.FIRST_PAUSE", 0.01)
    port, reached = inner
    names = Rebinding()
    one = judge(
        f"http://rebinding.example:{port}/v1", tmp_path, lambda connections: transport(is_public, connections, names)
    )
    with pytest.raises(
        StageError, match="private network"
    ):  # asked again after the public address refused it, and seen through
        one.ask([QUESTION])
    assert names.asked == 2
    assert connected == ["203.0.114.7"], "no socket was to connect to loopback"
    assert reached == []


def test_nor_an_upload_by_url(inner: Any, connected: list[str]) -> None:
    port, reached = inner
    names = Rebinding()
    with pytest.raises(FetchRefused):
        fetch(f"http://rebinding.example:{port}/x", io.BytesIO(), 10, resolve=names, ports=(port,))
    with pytest.raises(FetchRefused):
        fetch(f"http://rebinding.example:{port}/x", io.BytesIO(), 10, resolve=names, ports=(port,))
    assert connected == ["203.0.114.7"]
    assert reached == []


def test_a_name_is_resolved_once_for_many_questions(inner: Any, tmp_path: Path) -> None:
    port, reached = inner
    asked: list[str] = []

    def resolve(host: str, number: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    one = judge(
        f"http://judge.example:{port}/v1", tmp_path, lambda connections: transport(may_be_private, connections, resolve)
    )
    one.ask([{**QUESTION, "seed": seed} for seed in range(8)])
    assert asked == ["judge.example"]
    assert reached == [("POST", f"judge.example:{port}")] * 8


def test_one_inner_address_among_public_ones_is_enough(connected: list[str], tmp_path: Path) -> None:
    for addresses in (["8.8.8.8", "127.0.0.1"], ["2606:4700::1", "::1"], ["8.8.8.8", "64:ff9b::7f00:1"]):
        one = judge(
            "https://judge.example/v1",
            tmp_path,
            lambda connections, found=addresses: transport(is_public, connections, lambda host, port: found),
        )
        with pytest.raises(StageError, match="private network"):
            one.ask([QUESTION])
    assert connected == []


def test_the_next_checked_address_is_tried(inner: Any, tmp_path: Path, connected: list[str]) -> None:
    port, reached = inner
    one = judge(
        f"http://judge.example:{port}/v1",
        tmp_path,
        lambda connections: transport(may_be_private, connections, lambda host, number: ["10.255.255.1", "127.0.0.1"]),
    )
    one.ask([QUESTION])
    assert len(reached) == 1
    assert connected == ["10.255.255.1", "127.0.0.1"]


def test_a_judge_s_redirect_is_not_followed(inner: Any, tmp_path: Path) -> None:
    port, reached = inner
    one = judge(
        f"http://judge.example:{port}/to/http://127.0.0.1:{port}",
        tmp_path,
        lambda connections: transport(may_be_private, connections, lambda host, number: ["127.0.0.1"]),
    )
    with pytest.raises(StageError, match="302"):
        one.ask([QUESTION])
    assert len(reached) == 1


def test_an_upload_s_redirect_is_checked_anew(inner: Any, connected: list[str]) -> None:
    port, reached = inner
    with pytest.raises(FetchRefused, match="not on the public internet"):
        fetch(
            f"http://files.example:{port}/to/http://127.0.0.2:{port}/x",
            io.BytesIO(),
            10,
            ports=(80, port),
            resolve=lambda host, number: [host] if host[0].isdigit() else ["127.0.0.1"],
            allowed=lambda address: address != "127.0.0.2",
        )
    assert connected == ["127.0.0.1"]
    assert len(reached) == 1


@pytest.mark.parametrize("public", ["0", "1"])
def test_proxy_variables_redirect_nothing(
    public: str, inner: Any, connected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, reached = inner
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    monkeypatch.setenv("FINERY_SECRETS", str(tmp_path))
    monkeypatch.setenv("FINERY_PUBLIC_ENDPOINTS_ONLY", public)
    monkeypatch.setattr(
        egress.socket, "getaddrinfo", lambda host, number, **more: [(2, 1, 6, "", ("203.0.114.7", number))]
    )
    with pytest.raises(EndpointUnreachable, match="ConnectError"):
        judge("http://judge.example/v1", tmp_path, connector(), retries=0).ask([QUESTION])
    assert set(connected) == {"203.0.114.7"}
    assert reached == []


def test_the_server_s_own_proxy_is_the_one_that_is_taken(
    inner: Any, connected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, reached = inner
    monkeypatch.setenv("FINERY_EGRESS", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("NO_PROXY", "*")
    judge("http://judge.example/v1", tmp_path, connector()).ask([QUESTION])
    assert reached == [("POST", "judge.example")]
    assert connected == ["127.0.0.1"], "and it resolves: no name is looked up here"


def test_the_user_s_own_command_asks_whom_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FINERY_SECRETS", "FINERY_EGRESS", "FINERY_PUBLIC_ENDPOINTS_ONLY"):
        monkeypatch.delenv(name, raising=False)
    assert connector() is None


def test_certificates_are_verified_against_the_name_and_not_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = self_signed(tmp_path, "judge.example")
    handler = type("Handler", (Inner,), {"reached": []})
    serving = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    serving.socket = context.wrap_socket(serving.socket, server_side=True)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def get(host: str) -> str:
        made = transport(may_be_private, 1, lambda host, number: ["127.0.0.1"])
        async with httpx.AsyncClient(transport=made, trust_env=False) as client:
            return (await client.get(f"https://{host}:{serving.server_port}/")).text

    try:
        assert "choices" in asyncio.run(get("judge.example"))
        for host in ("other.example", "127.0.0.1"):
            with pytest.raises(httpx.ConnectError, match="certificate"):
                asyncio.run(get(host))
        into = io.BytesIO()
        place = {
            "resolve": lambda host, number: ["127.0.0.1"],
            "allowed": may_be_private,
            "ports": (serving.server_port,),
        }
        fetch(f"https://judge.example:{serving.server_port}/", into, 1000, **place)
        assert b"choices" in into.getvalue()
        with pytest.raises(FetchRefused):
            fetch(f"https://other.example:{serving.server_port}/", io.BytesIO(), 1000, **place)
        assert len(handler.reached) == 2  # type: ignore[attr-defined]
    finally:
        serving.shutdown()
        serving.server_close()


def test_the_resolver_s_own_spellings_are_seen_through() -> None:
    for host in words_of("0x7f000001 2130706433 0177.0.0.1 127.1 localhost １２７.0.0.1 [::1] ::ffff:127.0.0.1"):
        with pytest.raises(NotAllowed):
            checked_addresses(host, 80)
    assert checked_addresses("127.1", 80, may_be_private) == ["127.0.0.1"]


def test_the_file_alone_is_enough_for_a_process_without_packages() -> None:
    script = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('outgoing', sys.argv[1]); module = importlib.util.module_from_spec(spec); "
        "spec.loader.exec_module(module); print(module.is_public('8.8.8.8'), module.is_public('64:ff9b::7f00:1'), module.checked_addresses('8.8.8.8', 443))"
    )
    path = REPOSITORY / "pipelines" / "core" / "egress.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True False ['8.8.8.8']"

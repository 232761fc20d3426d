"""A file that is sent to /v1/files has its room reserved before it is written, and is written to no other place."""

import json
import shutil
import socket
import tempfile
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest
import starlette.formparsers

from service.settings import read_settings
from service.store.store import Store
from tests.service.served import Served, listening

ROW = (
    json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}).encode() + b"\n"
)
EVAL = b'{"item": {"a": "x"}}\n'
MEBIBYTE = 1 << 20
BOUNDARY = "-----b0undary"
HEAD = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
PURPOSE = ("purpose", None, b"fine-tune")


@pytest.fixture
def served(sqlite_with_tokens, tmp_path):
    database, tokens = sqlite_with_tokens
    shutil.copy(database, tmp_path / "finery.db")
    settings = read_settings({}, home=tmp_path, max_file_bytes=3 * MEBIBYTE, max_project_bytes=4 * MEBIBYTE)
    store = Store(settings.url)
    yield Served(settings, store, tokens)
    store.close()


@pytest.fixture
def url(served):
    with listening(served) as found:
        yield found


@pytest.fixture
def client(served, url):
    headers = {"Authorization": f"Bearer {served.token('submitter')}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30) as found:
        yield found


def form(*parts, end=True):
    """A body of (field, file name or None, content)."""
    body = b""
    for name, filename, content in parts:
        of_file = "" if filename is None else f'; filename="{filename}"'
        body += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{of_file}\r\n\r\n'.encode()
        body += content + b"\r\n"
    return body + (f"--{BOUNDARY}--\r\n".encode() if end else b"")


def pieces(body, size):
    return (body[at : at + size] for at in range(0, len(body), size))


def nothing_left(served):
    return served.store.files("acme") == [] and not any(each.is_file() for each in served.settings.files.rglob("*"))


@contextmanager
def begun(client, *lines, body=b""):
    """A connection on which so much of an upload was sent."""
    place = urlsplit(str(client.base_url))
    head = [
        "POST /v1/files HTTP/1.1",
        f"Host: {place.netloc}",
        f"Authorization: {client.headers['Authorization']}",
        f"Content-Type: {HEAD['Content-Type']}",
        *lines,
    ]
    with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
        yield connection


def answer(connection):
    """Status and body of what the server says."""
    told = b""
    while piece := connection.recv(65536):
        told += piece
        if told.endswith(b"}}"):
            break
    head, _, body = told.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def until(condition):
    limit = time.monotonic() + 20
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
    assert condition()


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_a_form_is_read_in_any_order_and_any_pieces_and_spooled_nowhere(served, client, monkeypatch, order, size):
    def spooled(*_, **__):
        raise AssertionError("the body is written elsewhere")

    monkeypatch.setattr(starlette.formparsers, "SpooledTemporaryFile", spooled)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", spooled)
    near = json.dumps({"item": {"a": f"\r\n--{BOUNDARY[:-1]} \r\n--"}}).encode() + b"\r\n" + EVAL
    parts = [("purpose", None, b"evals"), ("file", "r\u00f6ws.jsonl", near)][order]
    sent = client.post("/v1/files", content=pieces(form(*parts), size), headers=HEAD)
    assert sent.status_code == 200, sent.text
    made = sent.json()
    assert (made["bytes"], made["filename"], made["purpose"]) == (len(near), "r\u00f6ws.jsonl", "evals")
    assert client.get(f"/v1/files/{made['id']}/content").content == near
    assert client.get("/v1/files?purpose=fine-tune").json()["data"] == []
    assert served.store.disk_usage("acme").files == len(near)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (form(PURPOSE), "The field 'file' is missing"),
        (form(PURPOSE, ("file", None, ROW)), "The field 'file' is missing"),
        (form(PURPOSE, ("other", "x.jsonl", ROW)), "one file, in the field 'file'"),
        (form(PURPOSE, ("file", "x.jsonl", ROW), ("file", "x.jsonl", ROW)), "one file, in the field 'file'"),
        (form(("file", "x.jsonl", ROW)), "The purpose 'None' is not offered"),
        (form(("file", "x.jsonl", ROW), ("purpose", None, b"batch")), "The purpose 'batch' is not offered"),
        (form(("purpose", None, b"batch"), ("file", "x.jsonl", ROW)), "The purpose 'batch' is not offered"),
        (form(PURPOSE, ("file", "x.jsonl", ROW * 9), end=False), "in the middle of its file"),
        (form(("file", "x.jsonl", b"nope"), PURPOSE), "line 1: is not valid JSON"),
        (form(*[(f"f{at}", None, b"") for at in range(11)]), "at most 10 fields"),
        (form(("purpose", None, b"x" * 70_000)), "more than 65536 bytes beside its file"),
        (form(("file", "x.jsonl", ROW), ("more", None, b"x" * 70_000)), "more than 65536 bytes beside its file"),
        (form(PURPOSE, ("file", "x" * 70_000, ROW)), "no form"),
        (f"--{BOUNDARY}\r\n\r\nx\r\n".encode(), "has no name"),
        (b"\x00" * 100, "no form"),
        (b"", "The purpose 'None' is not offered"),
    ],
)
def test_a_form_that_cannot_be_is_refused_and_leaves_nothing(served, client, body, sentence):
    for content in (body, pieces(body, 100)):
        refused = client.post("/v1/files", content=content, headers=HEAD)
        assert refused.status_code == 400, refused.text
        assert sentence in refused.json()["error"]["message"]
        assert nothing_left(served)


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=x"]
)
def test_a_form_without_a_boundary_is_refused(client, kind):
    refused = client.post("/v1/files", content=form(PURPOSE), headers={"Content-Type": kind})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")


def test_what_cannot_fit_is_refused_before_a_byte_of_it_is_sent(served, client):
    def refused(length):
        with begun(client, f"Content-Length: {length}") as connection:
            status, error = answer(connection)
            return status, error["code"], error["message"]

    assert refused(3 * MEBIBYTE + 100_000)[:2] == (413, "too_large")
    served.store.set_project("acme", max_bytes=MEBIBYTE)
    status, code, sentence = refused(2 * MEBIBYTE)
    assert (status, code) == (507, "disk_quota")
    assert "more do not fit: project 'acme' keeps 0 B" in sentence
    served.store.set_disk_usage({("acme", "stages", ""): MEBIBYTE})
    assert refused(1000)[:2] == (507, "disk_quota")
    with begun(client, "Transfer-Encoding: chunked") as connection:
        assert answer(connection)[0] == 507
    assert nothing_left(served)


def test_the_announced_room_is_reserved_while_the_body_is_on_its_way(served, client):
    store = served.store
    length = 2 * MEBIBYTE + 500_000
    start = form(("file", "x.jsonl", ROW), end=False)
    with begun(client, f"Content-Length: {length}", body=start):
        until(lambda: store.disk_usage("acme").files >= length - 100_000)
        body = form(PURPOSE, ("file", "x.jsonl", ROW * (2 * MEBIBYTE // len(ROW))))
        second = client.post("/v1/files", content=body, headers=HEAD)
        assert second.status_code == 413, "both together are more than the project may have"
        assert client.post("/v1/files", content=pieces(body, 60_000), headers=HEAD).status_code == 413
    until(lambda: store.disk_usage("acme").files == 0)
    assert nothing_left(served)
    assert client.post("/v1/files", content=body, headers=HEAD).status_code == 200


def test_a_body_without_a_length_is_written_as_far_as_there_is_room(served, client):
    body = form(PURPOSE, ("file", "x.jsonl", ROW * (3 * MEBIBYTE // len(ROW) + 100)))
    refused = client.post("/v1/files", content=pieces(body, 60_000), headers=HEAD)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
    served.store.set_project("acme", max_bytes=2 * MEBIBYTE)
    body = form(PURPOSE, ("file", "x.jsonl", ROW * (2 * MEBIBYTE // len(ROW) + 100)))
    refused = client.post("/v1/files", content=pieces(body, 60_000), headers=HEAD)
    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "disk_quota")
    assert nothing_left(served)

"""A URL of a user never reaches into the server's own network."""

import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from service.safety.fetching import FetchRefused, fetch, is_public
from tests.words import words_of


class Handler(BaseHTTPRequestHandler):
    """Serves bytes, redirects and cut-off answers."""

    def do_GET(self):
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
            return
        body = b"x" * 1000
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Type", "application/jsonl")
        self.send_header("Content-Length", "2000" if self.path == "/cut" else "1000")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def server():
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield serving.server_port
    serving.shutdown()
    serving.server_close()


def get(port, path, limit=5000, allowed=lambda address: True, resolve=None, host="files.example"):
    into = io.BytesIO()
    found = fetch(
        f"http://{host}:{port}{path}",
        into,
        limit,
        10,
        resolve or (lambda name, number: ["127.0.0.1"]),
        allowed,
        (80, 443, port),
    )
    return found, into.getvalue()


def test_the_file_arrives(server):
    found, content = get(server, "/data.jsonl?key=1")
    assert (found.size, content, found.content_type) == (1000, b"x" * 1000, "application/jsonl")


def test_a_private_address_is_refused_before_anything_is_sent(server):
    with pytest.raises(FetchRefused, match="not on the public internet"):
        get(server, "/x", allowed=is_public)


def test_one_private_address_among_public_ones_is_enough():
    with pytest.raises(FetchRefused, match="not on the public internet"):
        fetch("http://files.example/x", io.BytesIO(), 10, resolve=lambda name, number: ["8.8.8.8", "127.0.0.1"])


def test_the_name_is_resolved_once_and_the_checked_address_is_connected_to(server):
    answers = [["127.0.0.1"], ["10.0.0.1"]]
    asked = []

    def rebinding(name, number):
        asked.append(name)
        return answers[len(asked) - 1]

    assert get(server, "/x", resolve=rebinding)[0].size == 1000
    assert asked == ["files.example"]


def test_a_redirect_to_a_private_address_is_refused(server):
    seen = []

    def allowed(address):
        seen.append(address)
        return len(seen) == 1

    with pytest.raises(FetchRefused, match=r"'inside\.example' has an address"):
        get(server, f"/to/http://inside.example:{server}/x", allowed=allowed)


def test_a_redirect_is_followed_and_a_circle_is_not(server):
    assert get(server, "/to//data")[0].url.endswith("/data")
    with pytest.raises(FetchRefused, match="redirects more than"):
        get(server, "/to/" * 8 + "x")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/missing", "answered 404"),
        ("/cut", "could not be read|ended before"),
        ("/to/ftp://x/y", "must begin with https"),
        ("/to/http://u:p@x/y", "holds a login"),
    ],
)
def test_what_is_no_whole_file_is_refused(server, path, sentence):
    with pytest.raises(FetchRefused, match=sentence):
        get(server, path)


def test_a_file_above_the_limit_is_refused_while_it_arrives(server):
    with pytest.raises(FetchRefused, match="larger than 999 bytes"):
        get(server, "/x", limit=999)


@pytest.mark.parametrize(
    "url",
    [
        *words_of("ftp://x/y http:// file:///etc/passwd http://x:22/ http://[::1 http://x:99999/"),
        "http://a b/",
        "http://x/\r\nHost: y",
        "gopher://x",
        "",
        "http://" + "x" * 300,
    ],
)
def test_no_other_url_is_fetched(url):
    with pytest.raises(FetchRefused):
        fetch(url, io.BytesIO(), 10, resolve=lambda name, number: ["127.0.0.1"])

"""Input that is no text, no number or no name: every route answers it with a sentence, and no log line can be forged with it."""

import http.client
import io
import json
import logging
import re

import pytest

from pipelines.core.errors import RecipeError
from pipelines.core.yaml_positions import read_yaml_text, scalar
from service import logs
from service.settings import read_settings
from service.web.sessions import COOKIE, Sessions
from tests.covering import some
from tests.service.hostile.test_connections import serving
from tests.service.served import RECIPE, YAML, application
from tests.words import words_of

ODD = {
    "half a character": "%ED%A0%80",
    "not UTF-8": "%FF%FE",
    "zero": "a%00b",
    "digits": "9" * 5000,
    "minus": "-" + "9" * 4900,
    "hex": "0x" + "f" * 4900,
    "escape": "%1B%5B2J%0D%0Aforged",
    "direction": "%E2%80%AE",
    "dots": "..%2F..%2Fetc",
    "long": "a" * 5000,
    "exponent": "1e999999",
}
BODIES = {
    "half": b'{"recipe": "\\ud800", "name": "\\ud800", "value": "\\udfff", "model": "\\ud800", "training_file": "\\ud800", "filename": "\\ud800.csv", "state": "\\ud800"}',
    "raw half": b'{"recipe": "\xed\xa0\x80", "filename": "\xed\xa0\x80"}',
    "key": b'{"\\ud800": 1}',
    "digits": b'{"priority": ' + b"9" * 900 + b', "weight": ' + b"9" * 900 + b', "max_gpus": -' + b"9" * 900 + b', "bytes": ' + b"9" * 900 + b"}",
    "many digits": b'{"priority": ' + b"9" * 60_000 + b"}",
    "nan": b'{"priority": NaN, "weight": NaN, "expected_seconds": Infinity, "deadline": 1e400}',
    "list": b"[]", "text": b'"x"', "nothing": b"", "null": b"null", "broken": b'{"a": ', "utf-16": '{"recipe": "a"}'.encode("utf-16"), "zero": b'{"recipe": "a\\u0000", "name": "a\\u0000"}',
}  # fmt: skip
RECIPES = {
    "hex": "seed: 0x" + "f" * 50_000, "octal": "seed: 0o" + "7" * 50_000, "digits": "seed: " + "9" * 60_000, "key": "0x" + "f" * 9000 + ": 1",
    "half": 'name: "\\ud800"', "half key": '"\\ud800": 1', "half deep": f'{RECIPE}tokenizer_note: {{a: ["\\udc00"]}}', "float": "seed: " + "9" * 60_000 + ".0",
    "date": "name: 99999-99-99", "tag": "name: !!python/object/apply:os.system [ls]", "binary": "name: !!binary /w==", "merge": "<<: [1]", "anchor": "&a [*a]",
    "null key": "? \n: 1", "list key": "[1, 2]: 3", "nan": "seed: .nan", "bytes": b"\xff\xfe", "zero": "name: a\0b", "terminal": 'name: "\\e[2J"',
    "matrix": "matrix: {seed: [0x" + "f" * 9000 + "]}", "duplicate": "a: 1\na: 2", "document": "a: 1\n---\nb: 2", "tab": "\ta: 1",
}  # fmt: skip


def operations():
    return [(method, path) for path, methods in application().openapi()["paths"].items() for method in methods]


@pytest.fixture
def recorded(caplog):
    caplog.set_level(logging.ERROR)
    return caplog


def answered(client, method, path, **given):
    answer = client.request(method, path, follow_redirects=False, **given)
    assert answer.status_code < 500 or answer.status_code == 503, (method, path[:200], given, answer.text[:500])
    answer.content.decode("utf-8")
    return answer


def asked_of(method, path):
    """What a route takes in its query."""
    described = application().openapi()["paths"][path][method].get("parameters", ())
    return [each["name"] for each in described if each["in"] == "query"]


ASKED = [each for each in operations() if "{" in each[1] or asked_of(*each)]


@pytest.mark.wider
@pytest.mark.parametrize(("number", "method", "path"), [(number, *each) for number, each in enumerate(ASKED)])
def test_no_route_breaks_at_odd_words_in_paths_and_queries(served, recorded, number, method, path):
    query = asked_of(method, path)
    for odd in some(ODD.values(), number, 2):
        if "{" in path:
            answered(served.admin, method, re.sub(r"\{[^}]*\}", odd, path))
        for at in range(0, len(query), 10):  # an address has so many characters at most
            words = "&".join(f"{name}={odd}" for name in query[at : at + 10])
            answered(served.admin, method, f"{re.sub('[{][^}]*[}]', 'x', path)}?{words}")
    assert not [record for record in recorded.records if record.exc_info]


TAKERS = [each for each in operations() if each[0] in ("post", "put", "patch")]
TYPES = (
    "application/merge-patch+json",
    "application/yaml",
    "text/plain; charset=undefined",
    "application/x-www-form-urlencoded",
    "",
)


@pytest.mark.wider
@pytest.mark.parametrize(("number", "method", "path"), [(number, *each) for number, each in enumerate(TAKERS)])
def test_no_route_breaks_at_odd_bodies(served, recorded, number, method, path):
    """Bodies as JSON, and as another type: each type at each route, each body at some routes, and at all of them with
    the long tests."""
    path = re.sub(r"\{[^}]*\}", "x", path)
    for at, body in enumerate(some(BODIES.values(), number, 3), number):
        for kind in ("application/json", TYPES[at % len(TYPES)]):
            answered(served.admin, method, path, content=body, headers={"Content-Type": kind})
    for charset in some(("undefined", "unicode_escape", "utf-7", "zlib", "idna", "utf-16"), number, 2):
        body = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n\\ud800\r\n--x--\r\n'
        headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
        answered(served.admin, method, path, content=body, headers=headers)
    assert not [record for record in recorded.records if record.exc_info]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_no_recipe_breaks_the_check(served, recorded, recipe):
    answered(served.viewer, "post", "/api/v1/validate", content=recipe, headers=YAML)
    if isinstance(recipe, str):
        answer = answered(
            served.viewer,
            "post",
            "/api/v1/validate",
            json={"recipe": RECIPE, "overrides": [f"model.x={recipe[:5000]}"]},
        )
        assert answer.status_code == 422
    assert not [record for record in recorded.records if record.exc_info]


HEADERS = words_of(
    "Authorization X-Finery-Project Idempotency-Key Last-Event-ID Upload-Offset Content-Length Range "
    "Cookie Accept X-Request-ID If-None-Match"
)
ODD_HEADERS = (
    b"\xff\xfe",
    b"9" * 6000,
    b"-1",
    b"bytes=9999999999999999999999-",
    b"Bearer fin_" + b"\xe9" * 20,
    b"a" * 12_000,
    b"finery_session=\xff.nan.\xff.\xff",
    b"",
    "\u0661".encode(),
)


@pytest.mark.wider
@pytest.mark.parametrize("header", HEADERS)
def test_no_header_breaks_a_route(served, recorded, header):
    """Each value for each header, at two of the routes, and at all of them with the long tests."""
    served.app.state.web_sessions = Sessions(served.store, served.settings.home)
    job = served.job()
    routes = (
        ("get", f"/api/v1/jobs/{job}/events"),
        ("post", "/api/v1/jobs"),
        ("patch", "/api/v1/files/x"),
        ("get", "/jobs"),
    )
    for at, odd in enumerate(ODD_HEADERS, HEADERS.index(header)):
        for method, path in some(routes, at, 2):
            answered(served.admin, method, path, headers={header: odd})
    assert not [record for record in recorded.records if record.exc_info]


PAGES = tuple(
    words_of(
        "/jobs /jobs/{} /jobs/{}/diff /jobs/{}/curves /jobs/{}/log /compare /compare/curves /leaderboard "
        "/submit /models /models/{} /studies /hosts /static/{}"
    )
)


@pytest.mark.wider
@pytest.mark.parametrize(("number", "page"), list(enumerate(PAGES)))
def test_no_page_breaks_at_odd_words(served, recorded, number, page):
    served.app.state.web_sessions = Sessions(served.store, served.settings.home)
    token = served.store.tokens()[2]
    client = served.nobody
    cookie, _ = served.app.state.web_sessions.make(token)
    headers = {"Cookie": f"{COOKIE}={cookie}"}
    for odd in some(ODD.values(), number, 4):
        words = "&".join(
            f"{name}={odd}"
            for name in words_of("after search job against benchmark metric like example mode attempt show name")
        )
        answered(client, "get", f"{page.format(odd)}?{words}", headers=headers)
    assert not [record for record in recorded.records if record.exc_info]


def test_no_form_breaks_at_odd_words(served, recorded):
    served.app.state.web_sessions = Sessions(served.store, served.settings.home)
    client = served.nobody
    cookie, visitor = served.app.state.web_sessions.make(served.store.tokens()[2])
    headers = {"Cookie": f"{COOKIE}={cookie}"}
    for order in (
        "add stages.٣",
        "remove stages." + "9" * 5000,
        "up stages.²",
        "add " + "a." * 5000,
        "down .",
        "add stages x",
    ):
        form = {
            "csrf": visitor.csrf,
            "do": order,
            "name": "a",
            "stages.0?": "evaluate",
            "stages.²?": "x",
            "stages." + "9" * 5000 + "?": "evaluate",
            "seed": "0x" + "f" * 5000,
        }
        answered(client, "post", "/submit/form", data=form, headers=headers)
        answered(
            client, "post", "/submit/check", data={**form, "how.gpus": "9" * 5000, "how.priority": "٣"}, headers=headers
        )
    assert not [record for record in recorded.records if record.exc_info]


@pytest.mark.parametrize("text", ["0x" + "f" * 50_000, "0o" + "7" * 50_000, '"\\ud800"', '{"\\ud800": 1}'])
def test_what_cannot_be_written_again_is_no_yaml_of_ours(text):
    with pytest.raises(RecipeError):
        scalar(text)
    with pytest.raises(RecipeError):
        read_yaml_text(f"a: {text}")


# What clients send, in the log and back


@pytest.fixture
def written():
    """The log of the service as text."""
    found = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("service").level, logging.getLogger("finery").level
    logs.configure(stream=found)
    yield found
    root.handlers[:], root.level = before[0], before[1]
    logging.getLogger("service").setLevel(before[2])
    logging.getLogger("finery").setLevel(before[3])


def test_each_request_is_one_line_without_its_token_and_path(served, written):
    job = served.job()
    served.viewer.get(f"/api/v1/jobs/{job}", headers={"X-Request-ID": "mine-1"})
    served.nobody.request("EVIL", "/nowhere/%0Aforged", headers={"X-Request-ID": "bad id\x1b[2J"})
    lines = written.getvalue().splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO finery\.access \[mine-1\] GET /api/v1/jobs/\{job_id\} 200 in [\d.]+ ms by \S+",
        lines[1],
    )
    assert re.search(r"\[[0-9a-f]{16}\] other unknown 404 in", lines[2])
    assert len(lines) == 3
    secret = served.viewer.headers["Authorization"].split()[1]
    assert secret not in written.getvalue()
    assert job not in written.getvalue()


def test_the_request_id_is_in_the_answer_its_problem_and_the_trace(served, written, monkeypatch):
    answer = served.viewer.get("/api/v1/jobs/none", headers={"X-Request-ID": "abc.DEF-1"})
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "abc.DEF-1"
    made = [
        served.viewer.get("/healthz", headers={"X-Request-ID": bad}).headers["x-request-id"]
        for bad in ("", "a b", "x" * 65, "-a", b"\xe9", "\x1b[2J", "a\tb")
    ]
    assert all(re.fullmatch(r"[0-9a-f]{16}", each) for each in made)
    assert len(set(made)) == len(made)
    monkeypatch.setattr(
        served.store, "jobs", lambda *given, **named: (_ for _ in ()).throw(ValueError("two\nlines \x1b[31m of it"))
    )
    broken = served.viewer.get("/api/v1/jobs")
    assert broken.status_code == 500
    text = written.getvalue()
    assert f"[{broken.json()['request_id']}] GET /api/v1/jobs failed" in text
    assert "\x1b" not in text
    assert all(line.startswith(("2", "    ")) for line in text.splitlines()), (
        "a line that a client wrote looks like none of ours"
    )


def test_lines_are_json_where_that_is_asked_for():
    record = logging.LogRecord("service.api", logging.WARNING, "", 0, "a %s", ("b\n\x1b[2J\ud800\u202e",), None)
    record.fields = {"status": 200}
    record.request_id = "r"
    line = logs.JsonLines().format(record)
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) | {"time": ""} == {
        "time": "",
        "level": "warning",
        "logger": "service.api",
        "request_id": "r",
        "message": "a b\n\x1b[2J\ud800\u202e",
        "status": 200,
    }
    assert logs.TextLines().format(record).endswith(r"WARNING service.api [r] a b\n\x1b[2J\ud800\u202e")


def asks(port, host, path="/api/v1/me", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("GET", path, skip_host=True)
    for name, value in ({"Host": host} if host is not None else {}).items():
        connection.putheader(name, value)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_a_loopback_server_answers_to_its_own_names_alone(served):
    """Otherwise a page whose name leads to 127.0.0.1 (DNS rebinding) reads the answers."""
    with serving(served, allowed_hosts=()) as (port, _):
        for host in (
            "localhost",
            f"localhost:{port}",
            "127.0.0.1",
            f"127.0.0.1:{port}",
            "[::1]",
            "[::1]:80",
            "LOCALHOST.",
        ):
            assert asks(port, host)[0] == 401, host
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "localhost@evil.example",
            "evil.example:localhost",
        ):
            status, body = asks(port, host)
            assert status == 421, host
            assert b"FINERY_ALLOWED_HOSTS" in body
        assert [asks(port, "evil.example", path)[0] for path in ("/healthz", "/livez", "/metrics", "/sign-in")] == [
            200,
            200,
            421,
            421,
        ]


@pytest.mark.parametrize(
    ("given", "known", "unknown"),
    [
        ({"host": "0.0.0.0"}, "any.example", None),
        ({"host": "10.0.0.5"}, "any.example", None),
        ({"host": "0.0.0.0", "allowed_hosts": "finery.example, F2.example"}, "f2.example", "localhost"),
        ({"allowed_hosts": "finery.example"}, "localhost", "other.example"),
        ({"allowed_hosts": "*"}, "any.example", None),
        ({"host": "127.0.0.7"}, "127.0.0.7", "evil.example"),
    ],
)
def test_which_names_are_known(given, known, unknown):
    names = read_settings({}, **given).host_names
    assert names is None or known in names
    assert (names is None) == (unknown is None)
    assert names is None or unknown not in names


def test_nobody_but_a_trusted_proxy_says_who_asks(served):
    """A wrong token costs its sender's address; a header must not be able to change that address."""

    def refused(port):
        headers = [
            {"Authorization": f"Bearer fin_{'0' * 12}_{'a' * 43}", "X-Forwarded-For": f"203.0.113.{number}"}
            for number in range(60)
        ]
        return {asks(port, "localhost", **each)[0] for each in headers}

    with serving(served) as (port, _):
        assert refused(port) == {401, 429}
    with serving(served, trusted_proxies=("127.0.0.1",)) as (port, _):
        assert refused(port) == {401}


def test_the_scheme_of_a_trusted_proxy_alone_makes_cookies_secure(served):
    served.app.state.web_sessions = Sessions(served.store, served.settings.home)

    def cookie(port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/sign-in", headers={"X-Forwarded-Proto": "https"})
        answer = connection.getresponse()
        return str(answer.getheader("set-cookie"))

    with serving(served) as (port, _):
        assert "Secure" not in cookie(port)
    with serving(served, trusted_proxies=("127.0.0.0/8",)) as (port, _):
        assert "Secure" in cookie(port)


@pytest.mark.parametrize("value", ["nonsense", "10.0.0.0/99", "*", "10.0.0.1,evil"])
def test_a_trusted_proxy_is_an_address(value):
    with pytest.raises(Exception, match="must be an address or a network"):
        read_settings({"FINERY_TRUSTED_PROXIES": value})

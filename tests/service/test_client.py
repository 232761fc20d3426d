import json

import httpx
import pytest

from pipelines.core.errors import EXIT_FAILED, EXIT_USAGE, CommandError
from service.client import Connection, ServerAddress, ServerRefused, Unreachable, _events, find


def connected(answer):
    """A connection whose requests are answered by a function."""
    return Connection(ServerAddress("http://server", "fin_secret"), transport=httpx.MockTransport(answer), pause=0.0)


def test_every_request_shows_the_token_and_goes_below_the_version():
    seen = []

    def answer(request):
        seen.append(request)
        return httpx.Response(200, json={"data": []})

    with connected(answer) as connection:
        assert connection.get("/jobs", state=["queued", "running"], name=None) == {"data": []}
    assert str(seen[0].url) == "http://server/api/v1/jobs?state=queued&state=running"
    assert seen[0].headers["Authorization"] == "Bearer fin_secret"


def test_mistakes_of_a_recipe_come_back_line_by_line():
    problem = {
        "title": "Bad recipe",
        "detail": "The recipe has 2 mistakes.",
        "errors": [
            {"line": 3, "key": "stages[0].task", "message": "is missing", "file": "recipe.yaml"},
            {"key": "name", "message": "is 7, must be a text"},
        ],
    }
    with (
        connected(lambda request: httpx.Response(422, json=problem)) as connection,
        pytest.raises(ServerRefused) as raised,
    ):
        connection.post("/jobs", {})
    assert raised.value.exit_code == EXIT_USAGE
    assert str(raised.value).splitlines() == [
        "The recipe has 2 mistakes.",
        "recipe.yaml:3  stages[0].task: is missing",
        "name: is 7, must be a text",
    ]


@pytest.mark.parametrize(
    ("status", "code"), [(401, EXIT_FAILED), (403, EXIT_FAILED), (404, EXIT_USAGE), (500, EXIT_FAILED)]
)
def test_a_refusal_without_a_problem_document_still_is_a_sentence(status, code):
    with (
        connected(lambda request: httpx.Response(status, text="<html>")) as connection,
        pytest.raises(ServerRefused) as raised,
    ):
        connection.get("/jobs")
    assert raised.value.exit_code == code
    assert "\n" not in str(raised.value)


def test_what_may_be_asked_twice_is_asked_again_while_the_server_starts():
    answers = iter([httpx.Response(503), httpx.Response(502), httpx.Response(200, json={"id": "job-1"})])
    with connected(lambda request: next(answers)) as connection:
        assert connection.post("/jobs", {}, key="one")["id"] == "job-1"


def test_what_may_not_be_asked_twice_is_not():
    calls = []

    def answer(request):
        calls.append(request)
        raise httpx.ConnectError("refused")

    with connected(answer) as connection, pytest.raises(Unreachable, match="does not answer"):
        connection.post("/jobs/job-1/cancel")
    assert len(calls) == 1


def test_a_page_that_is_no_finery_server_is_told():
    with (
        connected(lambda request: httpx.Response(200, text="<html>hello")) as connection,
        pytest.raises(ServerRefused, match="no Finery server"),
    ):
        connection.get("/jobs")


def test_a_stream_that_breaks_goes_on_behind_the_last_event():
    asked = []

    def answer(request):
        asked.append(request.headers.get("Last-Event-ID"))
        body = "".join(
            f"id: {number}\nevent: metric\ndata: {json.dumps({'id': number})}\n\n"
            for number in ((1, 2) if len(asked) == 1 else (3,))
        )
        return httpx.Response(200, text=body if len(asked) == 1 else body + "event: end\ndata: {}\n\n")

    with connected(answer) as connection:
        assert [event["id"] for event in connection.stream("/jobs/job-1/events")] == [1, 2, 3]
    assert asked == [None, "2"]


def test_a_file_goes_on_where_the_connection_broke(tmp_path):
    content = bytes(range(256)) * 4
    asked = []

    class Breaking(httpx.SyncByteStream):
        def __init__(self, rest):
            self.rest = rest

        def __iter__(self):
            yield self.rest[:300]
            if len(self.rest) > 300:
                raise httpx.ReadError("the cable was pulled")

    def answer(request):
        asked.append(request.headers.get("Range"))
        start = int((asked[-1] or "bytes=0-")[6:-1])
        return httpx.Response(206 if start else 200, stream=Breaking(content[start:]))

    pieces = []
    with connected(answer) as connection:
        connection.save("/models/x/files/y", tmp_path / "y", len(content), pieces.append)
    assert (tmp_path / "y").read_bytes() == content
    assert asked == [None, "bytes=300-", "bytes=600-", "bytes=900-"]
    assert sum(pieces) == len(content)


def test_a_file_that_does_not_come_is_given_up(tmp_path):
    tries = []

    def nothing(request):
        tries.append(request)
        return httpx.Response(200, content=b"")

    with connected(nothing) as connection, pytest.raises(Unreachable, match="it sent nothing"):
        connection.save("/models/x/files/y", tmp_path / "y", 10)
    assert len(tries) == 4


def test_events_are_read_as_the_standard_says():
    lines = [": comment", "", "data: one", "data: two", "id: 4", "", "event:end", "data:", ""]
    assert list(_events(iter(lines))) == [{"data": "one\ntwo", "id": "4"}, {"event": "end", "data": ""}]


@pytest.fixture
def home(tmp_path):
    return {"HOME": str(tmp_path)}


def config(home, text):
    path = home / ".config" / "finery" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_what_the_command_says_beats_the_environment_and_the_file(home, tmp_path):
    config(tmp_path, 'server = "http://file"\ntoken = "fin_file"\n')
    (tmp_path / "token").write_text("fin_given\n")
    environment = home | {"FINERY_URL": "http://environment", "FINERY_TOKEN": "fin_environment"}
    assert find("http://given/", tmp_path / "token", environment) == ServerAddress("http://given", "fin_given")
    assert find(None, None, environment) == ServerAddress("http://environment", "fin_environment")
    assert find(None, None, home) == ServerAddress("http://file", "fin_file")


def test_the_file_may_name_a_token_file_instead(home, tmp_path):
    (tmp_path / "t").write_text("fin_x")
    config(tmp_path, f'server = "http://file"\ntoken_file = "{tmp_path}/t"\n')
    assert find(None, None, home).token == "fin_x"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (None, "no server is named"),
        ("127.0.0.1:8321", "is no server's address"),
        ("ftp://x", "is no server's address"),
        ("http://a:b@c", "holds a user or a password"),
    ],
)
def test_a_missing_or_wrong_address_is_one_sentence(home, server, message):
    with pytest.raises(CommandError, match=message):
        find(server, None, home | {"FINERY_TOKEN": "x"})


@pytest.mark.parametrize("text", ["", "  \n", "two words", "naïve"])
def test_a_file_without_a_token_is_refused_without_showing_what_it_holds(home, tmp_path, text):
    (tmp_path / "token").write_text(text)
    with pytest.raises(CommandError, match="holds no token") as raised:
        find("http://x", tmp_path / "token", home)
    assert "naïve" not in str(raised.value)


def test_no_token_says_where_the_first_one_lies(home):
    with pytest.raises(CommandError, match=r"admin\.token"):
        find("http://x", None, home)


def test_an_unknown_key_in_the_file_is_named(home, tmp_path):
    config(tmp_path, 'sever = "http://file"\n')
    with pytest.raises(CommandError, match="has 'sever', but may hold the texts server, token, token_file only"):
        find(None, None, home)

"""A job cannot drive the terminal of whoever looks at it: what a server sends is printed without anything that a terminal obeys."""

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli import jobs
from service.cli import jobs as logs
from service.cli import jobs as talking
from service.client import Connection, ServerAddress, ServerRefused, harmless

ATTACKS = {
    "\x1b[2J\x1b[Hgone": "gone", "\x1b]0;a title\x07x": "x", "\x1b]52;c;ZXZpbA==\x07x": "x", "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\": "link",
    "\x9b2Jx": "x", "\x9d0;t\x9cx": "x", "\x1bPq#0\x1b\\x": "x", "\x1b_Gx\x1b\\y": "y", "\x1bc": "", "\x1b[31mred\x1b[0m": "red", "a\x08\x08b": "ab",
    "\x07\x00\x7f\x85": "", "failed\rdone  ": "done  ", "10%\r50%\r\nnext": "50%\nnext", "tab\tand\nline": "tab\tand\nline", "\u202egnp.exe": "gnp.exe",
    "\x1b": "", "\x1b[": "", "\x1b[999999999999": "999999999999", "\x1b(0lqk": "lqk", "\x1b[38;5;1m\x1b[?1049hx": "x", "ä€😀": "ä€😀",
}  # fmt: skip
EVERY = "\n".join(["seen", *ATTACKS])


@pytest.mark.parametrize(("text", "left"), ATTACKS.items(), ids=range(len(ATTACKS)))
def test_an_attack_on_the_terminal_is_read_and_not_obeyed(text, left):
    assert harmless(text) == left


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("\x1b[]()0;mHJ\x07\x9b\x9d\r\n\\ ")))
def test_nothing_that_a_terminal_obeys_is_left(text):
    found = harmless({text: [text, 3, None, {"x": text}]})
    told = "".join([*found, found[next(iter(found))][0]])
    assert all(letter in "\n\t" or not (ord(letter) < 32 or 127 <= ord(letter) < 160) for letter in told)
    assert harmless(found) == found


def test_plain_text_stays_as_it_is():
    text = json.dumps({"a": ["é", "x\ny\tz", "[31m", "]0;"]}, ensure_ascii=False)
    assert harmless(text) == text


JOB = {
    "id": "job-1",
    "name": EVERY,
    "state": "failed",
    "reason": "internal",
    "message": EVERY,
    "progress": {},
    "priority": 0,
    "created": "2026-11-21T10:00:00+00:00",
    "attempts": 1,
}


@pytest.fixture
def server(monkeypatch):
    """A server that answers everything with attacks."""

    def answer(request):
        path = request.url.path
        if "text/event-stream" in request.headers.get("accept", ""):
            piece = {
                "text": EVERY + "\n",
                "event": "warning",
                "message": EVERY,
                "stage": EVERY,
                "time": "2026-11-21T10:00:00+00:00",
            }
            return httpx.Response(200, text=f"event: log\ndata: {json.dumps(piece)}\n\nevent: end\ndata: {{}}\n\n")
        if path.endswith("/logs"):
            return httpx.Response(200, text=EVERY)
        if path.endswith("/hosts"):
            return httpx.Response(
                200,
                json=[
                    {
                        "name": EVERY,
                        "executor": EVERY,
                        "state": "up",
                        "cpus": 1,
                        "memory": 1,
                        "gpus": [{"kind": EVERY, "attempt": None}],
                        "seen": None,
                    }
                ],
            )
        if path.endswith("/jobs"):
            return httpx.Response(200, json={"data": [JOB], "next": None})
        if path.endswith("/refused"):
            return httpx.Response(409, json={"detail": EVERY, "errors": [{"key": EVERY, "message": EVERY}]})
        return httpx.Response(200, json=JOB)

    def connect(place, token_file):
        return Connection(ServerAddress("http://server", "fin_x"), transport=httpx.MockTransport(answer), pause=0.0)

    for module in (talking, jobs, logs):
        monkeypatch.setattr(module, "connect", connect, raising=False)
    return connect


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        lambda as_json: logs.logs("job-1", False, False, None, None, False),
        lambda as_json: logs.logs("job-1", True, True, None, None, as_json),
        lambda as_json: logs.logs("job-1", True, False, None, None, as_json),
        lambda as_json: jobs.jobs([], None, 5, None, None, as_json),
        lambda as_json: jobs.steer("cancel", ["job-1"], None, None, as_json),
        lambda as_json: jobs.hosts(None, None, as_json),
    ],
    ids=["logs", "logs --raw", "logs --follow", "jobs", "cancel", "hosts"],
)
def test_no_command_prints_what_a_terminal_obeys(server, capsys, command, as_json):
    command(as_json)
    told = capsys.readouterr()
    assert "seen" in told.out + told.err
    assert not any(letter in told.out + told.err for letter in "\x1b\x9b\x9d\x07\x08\r\x7f\u202e")


def test_no_refusal_does_either(server):
    with pytest.raises(ServerRefused) as raised:
        server(None, None).get("/refused")
    assert "seen" in str(raised.value)
    assert not any(letter in str(raised.value) for letter in "\x1b\x9b\x9d\x07\r")

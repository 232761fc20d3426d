"""Questions are asked bounded, patiently and once; answers survive what happens to the others."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines.core import egress
from pipelines.core.errors import StageError
from pipelines.feedback.judges import endpoint_client
from pipelines.feedback.judges.endpoint_client import Client, EndpointUnreachable, StopAsked, transport
from pipelines.feedback.judges.verdict_cache import VerdictCache

Handler = Callable[[dict[str, Any], int], httpx.Response]


def said(text: str, **usage: int) -> httpx.Response:
    return httpx.Response(
        200,
        json={
            "choices": [{"message": {"content": text}}],
            "usage": usage or {"prompt_tokens": 7, "completion_tokens": 2},
        },
    )


class Server:
    """Stands in for a server: counts what it is asked and what it answers."""

    def __init__(self, handler: Handler, pause: float = 0.0) -> None:
        self.handler, self.pause = handler, pause
        self.asked: list[dict[str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.answered: Counter[str] = Counter()
        self.at_once = self.most = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.asked.append(body)
        self.headers.append(request.headers)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await asyncio.sleep(self.pause)
            response = self.handler(body, len(self.asked))
        finally:
            self.at_once -= 1
        if response.status_code == 200:
            self.answered[json.dumps(body["messages"])] += 1
        return response


def client(server: Server, tmp_path: Path, **changes: Any) -> Client:
    settings: dict[str, Any] = {"timeout": 5.0, "retries": 3, "concurrency": 4, "key": None} | changes
    return Client(
        "http://judge.test/v1",
        cache=VerdictCache(tmp_path / "answers.jsonl"),
        **{"connector": lambda connections: httpx.MockTransport(server), **settings},
    )


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_client, "FIRST_PAUSE", 0.01)


def echo(asked: dict[str, Any], count: int) -> httpx.Response:
    return said(asked["messages"][0]["content"].upper())


def test_answers_come_in_the_order_of_the_questions_and_equal_ones_are_asked_once(tmp_path: Path) -> None:
    server = Server(echo)
    found = client(server, tmp_path).ask([body("b"), body("a"), body("b")])
    assert [each.text for each in found] == ["B", "A", "B"]
    assert len(server.asked) == 2
    assert (found[0].prompt_tokens, found[0].completion_tokens) == (7, 2)


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    server = Server(echo)
    client(server, tmp_path).ask([body("a"), body("b")])
    again = client(server, tmp_path)
    assert [each.text for each in again.ask([body("c"), body("a")])] == ["C", "A"]
    assert again.kept == 1
    assert max(server.answered.values()) == 1
    assert len(server.asked) == 3


def test_the_key_is_sent_and_kept_nowhere(tmp_path: Path) -> None:
    server = Server(echo)
    client(server, tmp_path, key="sk-secret").ask([body("a")])
    assert server.headers[0]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in (tmp_path / "answers.jsonl").read_text()
    assert "authorization" not in Server(echo).headers


def test_no_more_are_under_way_than_allowed(tmp_path: Path) -> None:
    server = Server(echo, pause=0.01)
    client(server, tmp_path, concurrency=3).ask([body(str(number)) for number in range(20)])
    assert server.most == 3


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_failure_that_may_pass_is_tried_again(status: int, tmp_path: Path) -> None:
    server = Server(lambda asked, count: httpx.Response(status) if count < 3 else said("A"))
    assert client(server, tmp_path).ask([body("a")])[0].text == "A"
    assert len(server.asked) == 3


def test_a_server_that_never_recovers_is_gone_and_what_it_said_is_kept(tmp_path: Path) -> None:
    def dying(asked: dict[str, Any], count: int) -> httpx.Response:
        if count > 5:
            raise httpx.ConnectError("refused")
        return echo(asked, count)

    server = Server(dying)
    questions = [body(str(number)) for number in range(12)]
    with pytest.raises(EndpointUnreachable, match="ConnectError"):
        client(server, tmp_path, concurrency=1).ask(questions)
    assert len(server.answered) == 5
    server.handler = echo
    assert [each.text for each in client(server, tmp_path).ask(questions)] == [str(number) for number in range(12)]
    assert set(server.answered.values()) == {1}
    assert len(server.answered) == 12


def test_a_refusal_is_not_tried_again(tmp_path: Path) -> None:
    for status, remedy in ((401, "names?"), (404, "base_url"), (400, "settings")):
        server = Server(lambda asked, count, status=status: httpx.Response(status, text="no such thing"))
        with pytest.raises(StageError, match=r"status .*no such thing"):
            client(server, tmp_path).ask([body("a")])
        assert len(server.asked) == 1
        assert remedy


def test_others_are_heard_out_when_one_is_refused(tmp_path: Path) -> None:
    def one_wrong(asked: dict[str, Any], count: int) -> httpx.Response:
        return httpx.Response(400, text="bad") if asked["messages"][0]["content"] == "1" else echo(asked, count)

    server = Server(one_wrong, pause=0.02)
    with pytest.raises(StageError, match="bad"):
        client(server, tmp_path, concurrency=4).ask([body(str(number)) for number in range(4)])
    cache = VerdictCache(tmp_path / "answers.jsonl")
    cache.get("anything")
    assert len(cache._answers) == 3


def test_retry_after_is_waited_for(tmp_path: Path) -> None:
    server = Server(
        lambda asked, count: httpx.Response(429, headers={"Retry-After": "0.3"}) if count == 1 else said("A")
    )
    began = time.monotonic()
    client(server, tmp_path).ask([body("a")])
    assert time.monotonic() - began >= 0.3


def test_retry_after_as_a_date_or_as_nonsense() -> None:
    ahead = httpx.Response(429, headers={"Retry-After": formatdate(time.time() + 100, usegmt=True)})
    assert 90 < endpoint_client._retry_after(ahead) <= 100
    assert endpoint_client._retry_after(httpx.Response(429, headers={"Retry-After": "soon"})) == 0
    assert (
        endpoint_client._retry_after(httpx.Response(429, headers={"Retry-After": "1e9"}))
        == endpoint_client.LONGEST_WAIT
    )
    assert endpoint_client._retry_after(httpx.Response(429)) == 0


def test_a_server_that_does_not_know_a_key_is_asked_without_it(tmp_path: Path) -> None:
    def choosy(asked: dict[str, Any], count: int) -> httpx.Response:
        for key in ("logprobs", "top_logprobs", "seed"):
            if key in asked:
                return httpx.Response(
                    400, json={"error": {"message": f"Unrecognized request argument supplied: {key}"}}
                )
        if "max_tokens" in asked:
            return httpx.Response(
                400, json={"error": {"message": "Use 'max_completion_tokens' instead of 'max_tokens'."}}
            )
        return said("A")

    server = Server(choosy)
    one = client(server, tmp_path, concurrency=1)
    one.ask(
        [
            body("a", logprobs=True, top_logprobs=20, seed=1, max_tokens=8),
            body("b", logprobs=True, top_logprobs=20, seed=1, max_tokens=8),
        ]
    )
    assert server.asked[-1].keys() == {"model", "messages", "max_completion_tokens"}
    assert len(server.asked) == 6  # four refusals, learnt once


def test_the_number_of_a_draw_is_not_sent_but_makes_another_question(tmp_path: Path) -> None:
    server = Server(lambda asked, count: said(str(count)))
    found = client(server, tmp_path, concurrency=1).ask([body("a"), body("a", draw=1), body("a", draw=1)])
    assert [each.text for each in found] == ["1", "2", "2"]
    assert all("draw" not in each for each in server.asked)


def test_another_answer_than_a_chat_completion_is_told(tmp_path: Path) -> None:
    for content in ("<html>hello</html>", "[]", '{"choices": []}', "7"):
        with pytest.raises(StageError, match="no chat completion"):
            client(Server(lambda asked, count, content=content: httpx.Response(200, text=content)), tmp_path).ask(
                [body("a")]
            )


def test_a_timeout_is_tried_again(tmp_path: Path) -> None:
    def slow_once(asked: dict[str, Any], count: int) -> httpx.Response:
        if count == 1:
            raise httpx.ReadTimeout("slow")
        return said("A")

    assert client(Server(slow_once), tmp_path).ask([body("a")])[0].text == "A"


def test_a_stop_lets_those_under_way_finish_and_begins_no_other(tmp_path: Path) -> None:
    server = Server(echo, pause=0.3)
    one = client(server, tmp_path, concurrency=2, stopping=lambda: len(server.asked) >= 2)
    with pytest.raises(StopAsked):
        one.ask([body(str(number)) for number in range(6)])
    assert len(server.asked) == 2
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "[::1]", "localhost"])
def test_private_networks_are_refused_where_that_is_asked_for(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda *arguments: connected.append(arguments))
    one = client(Server(echo), tmp_path, connector=lambda connections: transport(egress.is_public, connections))
    one.base_url = f"http://{host}:8000/v1"
    with pytest.raises(StageError, match="private network"):
        one.ask([body("a")])
    assert connected == []


def test_it_asks_where_a_loop_runs_already(tmp_path: Path) -> None:
    async def inside() -> list[str]:
        return [each.text for each in client(Server(echo), tmp_path).ask([body("a")])]

    with ThreadPoolExecutor(1) as other:  # in this thread a browser of another test may have a loop already
        assert other.submit(asyncio.run, inside()).result() == ["A"]

"""Asking an OpenAI-compatible chat endpoint many questions at once, on checked connections: bounded and patient.

Requests go by httpx on the checked connections of `core.egress`, or through the server's own proxy. An answer is kept
on disk before it is used. A question that fails in a way that may pass (no connection, a timeout, 408, 429, 5xx) is
tried again after a growing pause, or the one that `Retry-After` asks for. When one question has used up its tries the
server counts as gone: no further question is begun, those under way are heard out, and `EndpointUnreachable` is
raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import certifi
import httpx

from pipelines.core.egress import NoAddress, NotAllowed, Resolve, checked_addresses, is_public, resolve
from pipelines.core.errors import StageError
from pipelines.feedback.judges.verdict_cache import VerdictCache, key_of

REMEMBERED = 60.0
"""Seconds that a transport keeps a name's checked addresses."""


def transport(
    allowed: Callable[[str], bool] = is_public,
    connections: int = 10,
    resolve: Resolve = resolve,
    egress: str | None = None,
) -> httpx.AsyncBaseTransport:
    """What an `httpx.AsyncClient(trust_env=False)` sends its requests through: the proxy `egress`, or checked
    connections of its own."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    context = tls_context()
    if egress:
        return httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits, proxy=egress)
    return CheckedTransport(
        lambda: httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits), allowed, resolve
    )


def tls_context() -> ssl.SSLContext:
    """Verifies names and chains by the system's certificates and certifi's, or by SSL_CERT_FILE and SSL_CERT_DIR
    alone."""
    context = ssl.create_default_context()
    if not os.environ.get("SSL_CERT_FILE") and not os.environ.get("SSL_CERT_DIR"):
        context.load_verify_locations(certifi.where())
    return context


class CheckedTransport(httpx.AsyncBaseTransport):
    """Sends each request to a checked address of its host; host header and TLS name stay the host's."""

    def __init__(
        self, make: Callable[[], httpx.AsyncBaseTransport], allowed: Callable[[str], bool], resolve: Resolve
    ) -> None:
        self._make = make
        self._allowed = allowed
        self._resolve = resolve
        self._inner: dict[tuple[str, str, int], httpx.AsyncBaseTransport] = {}
        self._known: dict[tuple[str, int], tuple[float, list[str]]] = {}
        self._asking = asyncio.Lock()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As httpx has it. Raises NotAllowed for a host with an address that may not be connected to."""
        host = request.url.raw_host.decode("ascii")
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        key = (request.url.scheme, host, port)  # connections are kept by address: two names must not share one
        inner = self._inner.get(key)
        if inner is None:
            inner = self._inner[key] = self._make()
        problem: Exception = httpx.ConnectError(f"{host} has no address")
        for address in await self._addresses(host, port, request):
            sent = httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await inner.handle_async_request(sent)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                problem = error
        self._known.pop((host, port), None)
        raise problem

    async def _addresses(self, host: str, port: int, request: httpx.Request) -> list[str]:
        async with self._asking:  # many questions at once are one look-up
            until, addresses = self._known.get((host, port), (0.0, []))
            if time.monotonic() >= until:
                patience: Any = request.extensions.get("timeout", {}).get("connect")
                try:
                    looking = asyncio.to_thread(checked_addresses, host, port, self._allowed, self._resolve)
                    addresses = await asyncio.wait_for(looking, patience)
                except NoAddress as error:
                    raise httpx.ConnectError(str(error), request=request) from None
                except TimeoutError:
                    raise httpx.ConnectTimeout(f"{host} was not resolved in time", request=request) from None
                self._known[host, port] = (time.monotonic() + REMEMBERED, addresses)
            return addresses

    async def aclose(self) -> None:
        """Close every connection."""
        for inner in self._inner.values():
            await inner.aclose()
        self._inner.clear()


PASSES = (408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529)
"""Status codes after which the same question may be answered later."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
LONGEST_WAIT = 300.0
"""Seconds: of a pause that a server asks for, so that a wrong clock does not hold a run for a day."""
POLL = 0.1
SHORTENED = 300
"""Letters of a server's own words in a message."""


class EndpointUnreachable(Exception):
    """The server does not answer any more; what it said before is kept."""


class StopAsked(Exception):
    """A signal asked this process to stop; what was answered is kept."""


@dataclass(frozen=True)
class ChatCompletion:
    """What came back."""

    text: str
    places: Sequence[Mapping[str, object]] = ()
    """`choices[0].logprobs.content`, where the server gives it."""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plain(self) -> dict[str, object]:
        """As it is kept."""
        return {
            "text": self.text,
            "places": list(self.places),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }


@dataclass
class Client:
    """One endpoint and one model."""

    base_url: str
    key: str | None
    cache: VerdictCache
    timeout: float
    retries: int
    concurrency: int
    stopping: Callable[[], bool] = lambda: False
    connector: Callable[[int], httpx.AsyncBaseTransport] | None = None
    """What requests go through, made for at most so many connections. Default: httpx's own, with the user's proxy
    variables."""
    sent: int = 0
    """Questions that went out, tries counted one by one."""
    kept: int = 0
    """Questions that the cache answered."""
    refused: set[str] = field(default_factory=set)
    """Keys of a request that this server does not take."""

    def ask(self, questions: Sequence[Mapping[str, object]]) -> list[ChatCompletion]:
        """The answers to request bodies, in their order; equal ones are asked once.

        Raises EndpointUnreachable, StopAsked, StageError.
        """
        names = [key_of({"base_url": self.base_url, **question}) for question in questions]
        waiting: dict[str, Mapping[str, object]] = {}
        for name, question in zip(names, questions, strict=True):
            if self.cache.get(name) is None:
                waiting.setdefault(name, question)
        self.kept += len(set(names)) - len(waiting)
        if waiting:
            with ThreadPoolExecutor(1) as beside:  # where a loop runs already, as in a notebook, there is no other
                beside.submit(asyncio.run, self._ask_all(waiting)).result()
        return [ChatCompletion(**self.cache.get(name)) for name in names]  # type: ignore[arg-type]

    async def _ask_all(self, waiting: Mapping[str, Mapping[str, object]]) -> None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        limits = httpx.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
        timeout = httpx.Timeout(self.timeout, connect=min(10.0, self.timeout))
        over = asyncio.Event()
        failures: list[BaseException] = []
        left = iter(waiting.items())

        async def worker(client: httpx.AsyncClient) -> None:
            for name, question in left:
                if over.is_set():
                    return
                try:
                    answer = await self._patiently(client, name, question, over)
                    self.cache.put(name, answer.plain())
                except Exception as error:
                    failures.append(error)
                    over.set()
                    return

        async def watch() -> None:
            while not over.is_set():
                if self.stopping():
                    failures.append(StopAsked())
                    over.set()
                await asyncio.sleep(POLL)

        transport = None if self.connector is None else self.connector(self.concurrency)
        async with httpx.AsyncClient(
            headers=headers,
            limits=limits,
            timeout=timeout,
            transport=transport,
            trust_env=transport is None,
            follow_redirects=False,
        ) as client:
            watching = asyncio.create_task(watch())
            try:
                await asyncio.gather(*(worker(client) for _ in range(min(self.concurrency, len(waiting)))))
            finally:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
        if failures:
            raise next(
                (each for each in failures if not isinstance(each, EndpointUnreachable | StopAsked)), failures[0]
            )

    async def _patiently(
        self, client: httpx.AsyncClient, name: str, question: Mapping[str, object], over: asyncio.Event
    ) -> ChatCompletion:
        """The answer to one question, after as many tries as it takes and is allowed."""
        problem = ""
        for attempt in range(self.retries + 1):
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.0)
            try:
                response = await self._send(client, name, question)
            except NotAllowed as error:
                raise StageError(_refused_host(str(error))) from None
            except (httpx.TimeoutException, httpx.TransportError) as error:
                if isinstance(error, httpx.ProxyError) and str(error).startswith("403"):
                    raise StageError(_refused_host(f"the server's proxy does not connect to {self.base_url}")) from None
                problem = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
            else:
                if response.status_code < 300:
                    return _read(response)
                problem = f"status {response.status_code}: {_said(response)}"
                if response.status_code not in PASSES:
                    raise StageError(self._refusal(response))
                pause = max(pause, _retry_after(response))
            if attempt == self.retries or over.is_set():
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), pause)  # another question's end is this one's too
            if over.is_set():
                break
        raise EndpointUnreachable(problem)

    async def _send(self, client: httpx.AsyncClient, name: str, question: Mapping[str, object]) -> httpx.Response:
        """One try. What the server says it does not know is left out, then and later."""
        while True:
            body = fitted(question, self.refused)
            self.sent += 1
            response = await client.post(
                f"{self.base_url.rstrip('/')}/chat/completions", json=body, headers={"Idempotency-Key": name}
            )
            if response.status_code not in (400, 422):
                return response
            culprit = unknown_key(_said(response), body)
            if culprit is None:
                return response
            self.refused.add(culprit)

    def _refusal(self, response: httpx.Response) -> str:
        reason = _said(response)
        if response.status_code in (401, 403):
            how = (
                "check the key in the variable that api_key_env names"
                if self.key
                else "it wants a key: name the variable that holds it with api_key_env"
            )
        elif response.status_code == 404:
            how = "check base_url, which ends before /chat/completions, often in /v1, and the name of the model"
        else:
            how = "correct the judge's settings"
        return f"the judge at {self.base_url} refused a question with status {response.status_code} ({reason}); {how}"


RENAMED = {"max_tokens": "max_completion_tokens"}
"""Keys that newer servers know under another name."""
OPTIONAL = ("logprobs", "top_logprobs", "seed", "temperature", "max_tokens")
"""Keys that a question can do without, or under another name."""


def fitted(question: Mapping[str, object], refused: set[str]) -> dict[str, object]:
    """The request body without the keys that the server refused."""
    body: dict[str, Any] = {}
    for key, value in question.items():
        if key == "draw":
            continue
        if key not in refused:
            body[key] = value
        elif (newer := RENAMED.get(key)) is not None and newer not in refused:
            body[newer] = value
    return body


def unknown_key(refusal: str, body: Mapping[str, object]) -> str | None:
    """The key of the body that a refusal names as its reason, if the question can do without it."""
    if RENAMED["max_tokens"] in refusal and "max_tokens" in body:
        return "max_tokens"
    return next(
        (
            key
            for key in (*sorted(OPTIONAL, key=len, reverse=True), *RENAMED.values())
            if key in body and key in refusal
        ),
        None,
    )


def _read(response: httpx.Response) -> ChatCompletion:
    """The answer in a response. Raises StageError where it is no chat completion."""
    try:
        completion = response.json()
        choice = completion["choices"][0]
        text = choice["message"].get("content") or ""
        places = (choice.get("logprobs") or {}).get("content") or ()
        usage = completion.get("usage") or {}
        return ChatCompletion(
            str(text),
            [each for each in places if isinstance(each, Mapping)],
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise StageError(
            f"the judge at {response.request.url} answered with something that is no chat completion "
            f"({_said(response)}); check base_url"
        ) from None


def _said(response: httpx.Response) -> str:
    text = " ".join(response.text.split())
    return text if len(text) <= SHORTENED else text[:SHORTENED] + " …"


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the server asks for: a number, or a date (RFC 9110, section 10.2.3)."""
    given = response.headers.get("retry-after", "")
    try:
        wanted = float(given)
    except ValueError:
        try:
            wanted = parsedate_to_datetime(given).timestamp() - time.time()
        except (TypeError, ValueError):
            return 0.0
    return min(LONGEST_WAIT, max(0.0, wanted))


def _refused_host(why: str) -> str:
    return (
        f"the judge may not be asked: {why}, which jobs of this server may not reach; name a public host, or ask "
        "the server's administrator"
    )

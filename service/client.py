"""The client of a service: which server and token, requests that come back as data, refusals as sentences.

Server and token are named by `--server` or `FINERY_URL`, `--token-file` or `FINERY_TOKEN`, else by
`~/.config/finery/config.toml`:

    server = "https://finery.example.org"
    token = "fin_…"              # or token_file = "~/.config/finery/token"

On the machine that `finery serve` runs on, the admin's token is in `HOME/admin.token`.
"""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pipelines.core.errors import EXIT_FAILED, EXIT_USAGE, CommandError, FineryError, Mistake

if TYPE_CHECKING:
    import httpx


CONFIG = Path("finery") / "config.toml"
KEYS = ("server", "token", "token_file")


@dataclass(frozen=True)
class ServerAddress:
    """A server and the token to show it."""

    url: str
    """Without a slash at its end."""
    token: str


def find(server: str | None, token_file: Path | None, environment: Mapping[str, str] | None = None) -> ServerAddress:
    """The place that the command, the environment or the config file names. Raises CommandError."""
    environment = os.environ if environment is None else environment
    config_path = config_file(environment)
    config = _read(config_path)
    url = server or environment.get("FINERY_URL") or config.get("server")
    if not url:
        raise CommandError(
            'no server is named: give --server URL, set FINERY_URL, or write server = "http://…" into '
            f"{config_path}; `finery serve` starts one"
        )
    return ServerAddress(_checked(url), _token(token_file, environment, config, config_path))


def config_file(environment: Mapping[str, str]) -> Path:
    """Where the user's settings lie."""
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path(environment.get("HOME", "~")).expanduser() / ".config") / CONFIG


def _read(path: Path) -> dict[str, str]:
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from None
    wrong = [key for key, value in data.items() if key not in KEYS or not isinstance(value, str)]
    if wrong:
        raise CommandError(f"{path} has '{wrong[0]}', but may hold the texts {', '.join(KEYS)} only")
    return data


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandError(f"'{url}' is no server's address; it looks like http://127.0.0.1:8321")
    if parts.username or parts.password:
        raise CommandError(
            "the server's address holds a user or a password; give the token with --token-file or FINERY_TOKEN instead"
        )
    return url.rstrip("/")


def _token(
    token_file: Path | None, environment: Mapping[str, str], config: Mapping[str, str], config_path: Path
) -> str:
    if token_file is not None:
        return _token_in(token_file)
    if environment.get("FINERY_TOKEN"):
        return _plain(environment["FINERY_TOKEN"], "FINERY_TOKEN")
    if config.get("token"):
        return _plain(config["token"], str(config_path))
    if config.get("token_file"):
        return _token_in(Path(config["token_file"]).expanduser())
    raise CommandError(
        'no token is given: name its file with --token-file, set FINERY_TOKEN, or write token_file = "…" into '
        f"{config_path}; "
        "a new server's first token is in HOME/admin.token"
    )


def _token_in(path: Path) -> str:
    try:
        return _plain(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no text"
        raise CommandError(f"the token file {path} cannot be read: {reason}") from None


def _plain(text: str, where: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or any(letter.isspace() or not letter.isprintable() for letter in token):
        raise CommandError(f"{where} holds no token: a token is one line of letters and digits")
    return token


PREFIX = "/api/v1"
SECONDS = 30.0
"""To wait for an answer. Streams wait longer between two events; the server sends a comment every few seconds."""
TRIES = 4
"""Of requests that may be sent twice, when the server cannot be reached or is starting."""
PASSING = (502, 503, 504)


class Unreachable(FineryError):
    """The server does not answer."""

    reason = "unreachable"


class ServerRefused(FineryError):
    """The server understood the request and will not do it; the message is its sentence."""

    def __init__(self, status: int, message: str, reason: str = "refused", mistakes: tuple[Mistake, ...] = ()) -> None:
        self.status = status
        self.reason = reason
        self.mistakes = mistakes
        self.sentence = message
        self.exit_code = EXIT_USAGE if status in (400, 404, 409, 413, 415, 422) else EXIT_FAILED
        sentences = [str(each) for each in mistakes]
        super().__init__(message if [message] == sentences else "\n".join([message, *sentences]))

    def about(self, file: str) -> ServerRefused:
        """The same, its mistakes found in a file of the user's."""
        return ServerRefused(
            self.status, self.sentence, self.reason, tuple(replace(each, file=file) for each in self.mistakes)
        )


class Connection:
    """A client of `/api/v1`. Use as a context manager."""

    def __init__(self, place: ServerAddress, transport: httpx.BaseTransport | None = None, pause: float = 0.5) -> None:
        import httpx

        self.place = place
        self.pause = pause
        self._client = httpx.Client(
            base_url=place.url,
            headers={"Authorization": f"Bearer {place.token}", "Accept": "application/json"},
            timeout=SECONDS,
            transport=transport,
            follow_redirects=False,
        )

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

    def get(self, path: str, *, seconds: float = SECONDS, **parameters: Any) -> Any:
        """The JSON behind a path, waited for that long. Raises ServerRefused, Unreachable."""
        return self._json("GET", path, params=_given(parameters), timeout=seconds, again=True)

    def text(self, path: str, **parameters: Any) -> str:
        """The text behind a path. Raises ServerRefused, Unreachable."""
        answer = self._answer("GET", path, params=_given(parameters), headers={"Accept": "text/plain"}, again=True)
        if answer.status_code >= 300:
            raise refusal(answer)
        return str(harmless(answer.text))

    def save(self, path: str, target: Path, size: int, told: Callable[[int], None] = lambda written: None) -> None:
        """Write the `size` bytes behind a path to a file, from where the file ends on, and again where the connection
        broke. `told` hears of every piece how long it is. Raises ServerRefused, Unreachable, OSError."""
        import httpx

        target.touch()
        tries = 0
        while (start := target.stat().st_size) < size:
            headers = {
                "Accept": "*/*",
                "Accept-Encoding": "identity",
                **({"Range": f"bytes={start}-"} if start else {}),
            }
            try:
                with self._client.stream("GET", PREFIX + path, headers=headers) as answer:
                    if answer.status_code in PASSING:
                        raise httpx.TransportError(f"status {answer.status_code}")
                    if answer.status_code >= 300:
                        answer.read()
                        raise refusal(answer)
                    with open(target, "ab" if answer.status_code == 206 else "wb") as file:
                        for piece in answer.iter_bytes():
                            file.write(piece)
                            told(len(piece))
                            tries = 0
                if target.stat().st_size <= start:
                    raise httpx.TransportError("it sent nothing")
            except httpx.TransportError as error:
                tries += 1
                if tries == TRIES:
                    raise Unreachable(f"{self.place.url} does not answer any more ({_why(error)})") from None
                time.sleep(self.pause * 2 ** (tries - 1))

    def post(
        self,
        path: str,
        data: object = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        seconds: float = SECONDS,
    ) -> Any:
        """Send JSON, or `content` as it is, and wait that long for the answer. `key` makes it safe to send again: the
        server does it once."""
        sent = {**(headers or {}), **({"Idempotency-Key": key} if key else {})}
        body: dict[str, Any] = (
            {"content": content} if content is not None else {"json": data} if data is not None else {}
        )
        return self._json("POST", path, headers=sent, again=key is not None, timeout=seconds, **body)

    def put(self, path: str, data: object) -> Any:
        """Have something be as it is sent; doing it twice is doing it once."""
        return self._json("PUT", path, json=data, again=True)

    def patch(self, path: str, *, content: bytes, headers: Mapping[str, str]) -> Any:
        """Send a piece of something."""
        return self._json("PATCH", path, content=content, headers=dict(headers), again=False)

    def delete(self, path: str) -> Any:
        """Take something away."""
        return self._json("DELETE", path, again=False)

    def stream(self, path: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """The JSON lines of server-sent events, taken up again where the connection broke. Ends when the server
        says `end`."""
        import httpx

        last, tries, retry = None, 0, self.pause
        while True:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
            try:
                with self._client.stream(
                    "GET", PREFIX + path, params=_given(parameters), headers=headers, timeout=SECONDS
                ) as answer:
                    if answer.status_code in PASSING:
                        raise httpx.TransportError(f"status {answer.status_code}")
                    if answer.status_code != 200:
                        answer.read()
                        raise refusal(answer)
                    for event in _events(answer.iter_lines()):
                        last, tries = event.get("id") or last, 0
                        if event.get("event") == "end":
                            return
                        if event.get("data"):
                            yield harmless(_parsed(event["data"]))
            except httpx.TransportError as error:
                tries += 1
                if tries >= TRIES * 8:  # a server that is started again takes some seconds
                    raise Unreachable(f"{self.place.url} does not answer any more ({_why(error)})") from None
            time.sleep(retry)

    def _json(self, method: str, path: str, *, again: bool, **keywords: Any) -> Any:
        return _body(self._answer(method, path, again=again, **keywords))

    def _answer(self, method: str, path: str, *, again: bool, **keywords: Any) -> httpx.Response:
        import httpx

        for attempt in range(1, TRIES + 1):
            try:
                answer = self._client.request(method, PREFIX + path, **keywords)
            except httpx.TransportError as error:
                if not again or attempt == TRIES:
                    raise Unreachable(
                        f"{self.place.url} does not answer ({_why(error)}); is `finery serve` running there?"
                    ) from None
            else:
                if answer.status_code not in PASSING or not again or attempt == TRIES:
                    return answer
            time.sleep(self.pause * 2 ** (attempt - 1))
        raise AssertionError("unreachable")


CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]"  # CSI: colours, moving the cursor, clearing
    # OSC, DCS: titles, links, the clipboard
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
"""What moves a terminal rather than being read: escape sequences, control characters, changes of the writing
direction."""


def harmless(value: object) -> Any:
    """What a server sent, without anything that a terminal obeys; of a line that was rewritten, what was seen last.

    Jobs write names, messages and logs: whoever looks at them must not have their terminal driven by them.
    """
    if isinstance(value, str):
        text = CONTROLS.sub("", value)
        return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")) if "\r" in text else text
    if isinstance(value, dict):
        return {harmless(key): harmless(each) for key, each in value.items()}
    if isinstance(value, list):
        return [harmless(each) for each in value]
    return value


def refusal(answer: httpx.Response) -> ServerRefused:
    """The server's problem+json as an error."""
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    problem = harmless(problem)
    sentence = problem.get("detail") or problem.get("title") or f"the server answered with status {answer.status_code}"
    errors = problem.get("errors")
    mistakes = tuple(
        Mistake(str(each.get("key") or ""), str(each.get("message", "")), str(each.get("file") or ""), each.get("line"))
        for each in (errors if isinstance(errors, list) else ())
        if isinstance(each, dict)
    )
    if answer.status_code == 401:
        sentence = (
            f"{sentence}; the token is given with --token-file or FINERY_TOKEN"
            if problem
            else "the server does not know this token"
        )
    if answer.status_code == 429 and (seconds := answer.headers.get("Retry-After")):
        sentence = f"{sentence}; try again in {seconds} s"
    return ServerRefused(
        answer.status_code, str(sentence), str(problem.get("reason") or problem.get("code") or "refused"), mistakes
    )


def _body(answer: httpx.Response) -> Any:
    if answer.status_code >= 300:
        raise refusal(answer)
    if not answer.content:
        return None
    try:
        return harmless(answer.json())
    except ValueError:
        raise ServerRefused(
            answer.status_code, "what answers there is no Finery server: its answer is no JSON"
        ) from None


def _events(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """Server-sent events, as the HTML standard (section 9.2.6) reads their lines."""
    event: dict[str, str] = {}
    for line in lines:
        if not line:
            if event:
                yield event
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            event[name] = f"{event[name]}\n{value}" if name == "data" and "data" in event else value


def _parsed(text: str) -> dict[str, Any]:

    try:
        data = json.loads(text)
    except ValueError:
        return {"text": text}
    return data if isinstance(data, dict) else {"text": str(data)}


def _given(parameters: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__

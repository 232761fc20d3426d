"""Hub data sets through the real client, against a local server that speaks the Hub's wire protocol."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pandas
import pytest

from pipelines.core.errors import DataError
from pipelines.data import hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESOLVE = f"/datasets/owner/set/resolve/{COMMIT}/"


def parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pandas.DataFrame(rows).to_parquet(out)
    return out.getvalue()


FILES = {
    "README.md": b"---\nlicense: mit\n---\n",
    "train-00000-of-00001.parquet": parquet([{"text": "from the Hub", "label": 1}]),
    "test-00000-of-00001.parquet": parquet([{"text": "another", "label": 0}]),
}


class Hub(BaseHTTPRequestHandler):
    """The few addresses that reading a data set needs."""

    asked: list[str] = []
    cards: dict[str, bytes] = {}
    """More data sets, by name: each has a card of its own."""
    sets: dict[str, dict[str, bytes]] = {}
    """More data sets, by name: each has files of its own."""

    def log_message(self, *arguments: Any) -> None: ...

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        self.asked.append(path)
        name = next((each for each in ("owner/set", *self.cards, *self.sets) if f"/{each}/" in f"{path}/"), "none")
        files = self.sets.get(name, FILES) | ({"README.md": self.cards[name]} if name in self.cards else {})
        api, resolve = f"/api/datasets/{name}", f"/datasets/{name}/resolve/{COMMIT}/"
        if path in (api, f"{api}/revision/{COMMIT}") and name != "none":
            about = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
            self.send(200, json.dumps(about | {"private": False, "tags": [], "downloads": 0, "likes": 0}).encode())
        elif path == f"{api}/tree/{COMMIT}":
            entries = [
                {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for file, content in files.items()
            ]
            self.send(200, json.dumps(entries).encode())
        elif path.startswith(resolve) and (content := files.get(path.removeprefix(resolve))):
            tag = f'"{hashlib.sha1(content).hexdigest()}"'
            if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
                first, last = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
                where = f"bytes {first}-{last}/{len(content)}"
                self.send(206, content[first : last + 1], **{"ETag": tag, "Content-Range": where})
            else:
                self.send(200, content, ETag=tag)
        elif path.startswith((resolve, f"{api}/tree/")):
            self.send(404, b"{}", **{"X-Error-Code": "EntryNotFound"})
        else:
            self.send(404, b"{}", **{"X-Error-Code": "RepoNotFound"})

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = answer


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


ASK = """
import json, os, sys
from pipelines.data import sources
from pipelines.data.text_reader import open_texts
from pipelines.core.errors import DataError
def ask(key, function):
    try:
        answers[key] = function()
    except DataError as error:
        answers[key] = str(error)
def stream(names):
    for name in names:
        source, about = sources.find(name), {}
        reader = open_texts(source, "train", "text", streaming=True)
        first, places = [], [reader.position()]
        for text in reader:
            first.append(text)
            places.append(json.loads(json.dumps(reader.position())))
        about["texts"] = first
        # between two files, within one, and at the end; with the long tests everywhere
        chosen = range(len(places)) if os.environ.get("FINERY_LONG_TESTS") else range(2, len(places))
        about["rest"] = {at: list(open_texts(source, "train", "text", None, places[at], True)) for at in chosen}
        ask("column", lambda: open_texts(source, "train", "body", streaming=True))
        answers[name] = about | {"column": answers.pop("column")}
def load(names):
    for name in names:
        ask(name, lambda: sources.find(name).load("train").to_list())
def about():
    source = sources.find("owner/set")
    ask("hash", lambda: source.content_hash("train"))
    ask("splits", source.splits)
    ask("rows", lambda: source.load("train").to_list())
    ask("split", lambda: source.load("tset"))
    ask("configuration", lambda: sources.find("owner/set", "none").load("train"))
    ask("missing", lambda: sources.find("owner/none").load("train"))
for line in sys.stdin:
    what, *names = line.split()
    answers = {}
    {"stream": stream, "load": load}[what](names) if names else about()
    print("answer", json.dumps(answers), flush=True)
"""


@contextmanager
def process(endpoint: str, home: Path, offline: bool) -> Iterator[Callable[..., dict[str, Any]]]:
    """A process that answers: the client reads the address of the Hub when it is imported."""
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": str(int(offline)),
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "HF_HUB_DISABLE_XET": "1",
        "FINERY_DATA": "",
    }
    with (
        open(home / "errors", "w+") as errors,
        subprocess.Popen(
            [sys.executable, "-c", ASK],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=home,
        ) as child,
    ):

        def ask(*words: str) -> dict[str, Any]:
            assert child.stdin is not None
            assert child.stdout is not None
            print(*words, file=child.stdin, flush=True)
            line = next((line for line in child.stdout if line.startswith("answer ")), None)
            assert line is not None, Path(errors.name).read_text()
            answers: dict[str, Any] = json.loads(line.removeprefix("answer "))
            return answers

        yield ask


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def ask(server: str, place: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Asks a process that reaches the Hub."""
    with process(server, place, offline=False) as asking:
        yield asking


def test_a_data_set_is_read_at_one_commit_and_again_without_a_network(
    server: str, place: Path, ask: Callable[..., dict[str, Any]]
):
    Hub.asked.clear()
    online = ask("about")
    assert online["hash"] == f"owner/set@{COMMIT}//train"
    assert sorted(online["splits"]) == ["test", "train"]
    assert online["rows"] == [{"text": "from the Hub", "label": 1}]
    assert online["split"].startswith(
        "data set 'owner/set' of the Hub has no split 'tset'. Did you mean 'test'? Splits"
    )
    assert online["configuration"].startswith(
        "data set 'owner/set/none' of the Hub could not be read: BuilderConfig 'none'"
    )
    assert online["missing"] == (
        "data set 'owner/none' was not found (404 from the Hub; a private or gated one needs HF_TOKEN); "
        f"looked in FINERY_DATA (not set); the Hub ({server})"
    )
    asked = [path for path in Hub.asked if "/resolve/" in path]
    assert asked
    assert all(path.startswith(RESOLVE) for path in asked)  # nothing is read from a branch that may move
    with process(server, place, offline=True) as offline:
        again = offline("about")
    assert (again["hash"], again["rows"]) == (online["hash"], online["rows"])
    assert again["missing"].startswith("data set 'owner/none' was not found and HF_HUB_OFFLINE is set; looked in")


@pytest.mark.wider
def test_a_data_set_is_streamed_and_entered_again(ask: Callable[..., dict[str, Any]]):
    texts = [f"text {row}" for row in range(4)]
    lines = [json.dumps({"text": text}).encode() for text in texts]
    Hub.sets["owner/parquet"] = {
        "train-00000-of-00002.parquet": parquet([{"text": text} for text in texts[:2]]),
        "train-00001-of-00002.parquet": parquet([{"text": text} for text in texts[2:]]),
    }
    Hub.sets["owner/lines"] = {"train.jsonl": b"\n".join(lines[:2]), "train-2.jsonl": b"\n".join(lines[2:])}
    names = ("owner/parquet", "owner/lines")
    answers = ask("stream", *names)
    for found in (answers[name] for name in names):
        assert sorted(found["texts"]) == texts
        assert len(found["rest"]) >= 3
        assert found["rest"] == {at: found["texts"][int(at) :] for at in found["rest"]}
        assert "has no column 'body'. Columns found: text" in found["column"]


PLACES = [
    "{secret}",
    "file://{secret}",
    "{server}/datasets/other.jsonl",
    "zip://*.csv::{server}/datasets/x.zip",
    "../../../../{secret}",
]


def test_a_card_leads_nowhere_but_to_the_hub(server: str, place: Path, ask: Callable[..., dict[str, Any]]):
    secret = place / "admin.jsonl"
    secret.write_text('{"text": "the-token-of-the-admin"}\n')
    for number, each in enumerate(PLACES):
        named = each.format(secret=secret, server=server)
        card = f"---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: '{named}'\n---\n"
        Hub.cards[f"owner/set{number}"] = card.encode()
    Hub.asked.clear()
    found = ask("load", *Hub.cards)
    assert "the-token-of-the-admin" not in json.dumps(found)
    assert len(found) == len(PLACES)
    for each, rows in zip(PLACES, found.values(), strict=True):
        assert ".." in each or "which does not lie on the Hub" in rows, each
    assert not [path for path in Hub.asked if path.startswith(("/datasets/other", "/datasets/x"))], (
        "it was refused before it was asked for"
    )


def test_a_hub_out_of_reach_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def refuse(*arguments: Any, **keywords: Any) -> Any:
        raise ConnectionError("connection refused\nmany lines")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError) as caught:
        hub.HubSource("owner/set", None).load("train")
    assert str(caught.value).startswith(
        "data set 'owner/set' was not found and the Hub is out of reach (ConnectionError);"
    )
    assert "\n" not in str(caught.value)


def test_the_newest_cached_commit_stands_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *arguments: 1 / 0)
    for age, commit in enumerate(["newest", "older", "oldest"]):
        folder = tmp_path / "datasets--owner--set" / "snapshots" / commit
        folder.mkdir(parents=True)
        os.utime(folder, (1000 - age, 1000 - age))
    assert hub.HubSource("owner/set", None).revision == "newest"


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("owner/set", True),
        ("squad", True),
        ("a/b/c", False),
        ("/abs", False),
        ("../x", False),
        ("-x", False),
        ("a b", False),
    ],
)
def test_only_hub_names_are_asked_for(path: str, known: bool):
    assert (hub.find(path, None) is not None) is known
    assert bool(hub.looked(path)) is known

"""A Hub at wire level, small enough to read: what huggingface_hub asks for when it publishes, over real sockets.

Endpoints (names as in the Hub's own API): repos/create, validate-yaml, preupload, LFS batch with a basic upload and its
verification, commit (ndjson), model info, tree, resolve. Large files go by LFS as on the Hub: `*.safetensors`, and
whatever is larger than 10 MB. Digests are computed here from the bytes that arrived.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_" + "stand" + "in" * 10


@dataclass
class Repository:
    """One model repository: its files after the last commit."""

    private: bool
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b"*.safetensors filter=lfs\n"})
    large: set[str] = field(default_factory=set)
    commits: list[list[str]] = field(default_factory=lambda: [[".gitattributes"]])

    @property
    def sha(self) -> str:
        """Of the last commit."""
        return hashlib.sha1(json.dumps(self.commits).encode()).hexdigest()


@dataclass
class StandIn:
    """The state behind the endpoints, and what goes wrong on purpose."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """LFS objects by SHA-256."""
    requests: list[str] = field(default_factory=list)
    failures: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)
    """(pattern of "METHOD path", status, headers): each answers one request that it matches, then is gone."""
    corrupt: str | None = None
    """A file whose bytes are changed when they arrive."""
    refused_owners: set[str] = field(default_factory=set)
    url: str = ""

    def fail(self, pattern: str, status: int, times: int = 1, **headers: str) -> None:
        """Answer the next matching requests with an error."""
        self.failures += [(pattern, status, headers)] * times


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two packets: without it each answer waits 40 ms
    hub: StandIn

    def log_message(self, *arguments: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        self._route("GET")

    def do_HEAD(self) -> None:
        self._route("HEAD")

    def do_POST(self) -> None:
        self._route("POST")

    def do_PUT(self) -> None:
        self._route("PUT")

    def _route(self, method: str) -> None:
        self.body = self._read_body()
        path = unquote(urlsplit(self.path).path)
        line = f"{method} {path}"
        self.hub.requests.append(line)
        for failure in self.hub.failures:
            if re.search(failure[0], line):
                self.hub.failures.remove(failure)
                self._answer({"error": f"on purpose: {failure[1]}"}, failure[1], failure[2])
                return
        signed = path.startswith("/lfs/")  # a storage URL is signed: it is asked without a token
        if not signed and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(
                {"error": "Invalid credentials"},
                401,
                {"X-Error-Message": "Invalid credentials in Authorization header"},
            )
            return
        for pattern, verb in self._endpoints():
            match = re.fullmatch(pattern, line)
            if match:
                verb(**match.groupdict())
                return
        self._answer({"error": "no such endpoint"}, 404)

    def _endpoints(self) -> list[tuple[str, Any]]:
        model = r"(?P<name>[^/]+/[^/]+)"
        return [
            (r"POST /api/repos/create", self._create),
            (r"POST /api/validate-yaml", self._validate),
            (rf"POST /api/models/{model}/preupload/main", self._preupload),
            (rf"POST /api/models/{model}/commit/main", self._commit),
            (rf"GET /api/models/{model}", self._info),
            (rf"GET /api/models/{model}/tree/(?P<revision>[^/]+)", self._tree),
            (rf"POST /{model}\.git/info/lfs/objects/batch", self._batch),
            (r"PUT /lfs/(?P<oid>[0-9a-f]{64})", self._upload),
            (r"POST /api/lfs/verify", self._verify),
            (rf"(GET|HEAD) /{model}/resolve/(?P<revision>[^/]+)/(?P<file>.+)", self._resolve),
        ]

    def _create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] in self.hub.refused_owners:
            self._answer({"error": "You don't have the rights to create a model under this namespace"}, 403)
        elif name in self.hub.repositories:
            self._answer({"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"}, 409)
        else:
            self.hub.repositories[name] = Repository(
                private=asked.get("visibility") == "private" or bool(asked.get("private"))
            )
            self._answer({"url": f"{self.hub.url}/{name}"})

    def _validate(self) -> None:
        content = json.loads(self.body)["content"]
        good = content.startswith("---\n")
        self._answer({"errors": [] if good else [{"message": "no metadata"}], "warnings": []}, 200 if good else 400)

    def _preupload(self, name: str) -> None:
        repository = self._repository(name)
        if repository is None:
            return
        files = []
        for file in json.loads(self.body)["files"]:
            large = file["path"].endswith(".safetensors") or file["size"] > 10_000_000
            known = repository.files.get(file["path"])
            oid = None
            if known is not None:
                oid = hashlib.sha256(known).hexdigest() if file["path"] in repository.large else _git_blob(known)
            files.append(
                {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": oid}
            )
        self._answer({"files": files})

    def _batch(self, name: str) -> None:
        objects = []
        for entry in json.loads(self.body)["objects"]:
            answer: dict[str, Any] = {"oid": entry["oid"], "size": entry["size"]}
            if entry["oid"] not in self.hub.objects:
                answer["actions"] = {
                    "upload": {"href": f"{self.hub.url}/lfs/{entry['oid']}", "header": {}},
                    "verify": {"href": f"{self.hub.url}/api/lfs/verify", "header": {}},
                }
            objects.append(answer)
        self._answer({"transfer": "basic", "objects": objects})

    def _upload(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            self._answer({"error": "digest"}, 400)
            return
        self.hub.objects[oid] = self.body
        self._answer({})

    def _verify(self) -> None:
        asked = json.loads(self.body)
        found = self.hub.objects.get(asked["oid"])
        self._answer({}, 200 if found is not None and len(found) == asked["size"] else 422)

    def _commit(self, name: str) -> None:
        repository = self._repository(name)
        if repository is None:
            return
        changed = []
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                assert value["summary"]
                continue
            path = value["path"]
            changed.append(path)
            if entry["key"] == "file":
                assert value["encoding"] == "base64"
                repository.files[path] = base64.b64decode(value["content"])
                repository.large.discard(path)
            elif entry["key"] == "lfsFile":
                repository.files[path] = self.hub.objects[value["oid"]]
                repository.large.add(path)
            elif entry["key"] == "deletedFile":
                del repository.files[path]
                repository.large.discard(path)
            if path == self.hub.corrupt:
                repository.files[path] += b"?"
        repository.commits.append(changed)
        self._answer(
            {
                "success": True,
                "commitOid": repository.sha,
                "commitUrl": f"{self.hub.url}/{name}/commit/{repository.sha}",
            }
        )

    def _info(self, name: str) -> None:
        repository = self._repository(name)
        if repository is not None:
            siblings = [{"rfilename": file} for file in repository.files]
            self._answer(
                {
                    "id": name,
                    "modelId": name,
                    "private": repository.private,
                    "sha": repository.sha,
                    "siblings": siblings,
                    "tags": [],
                }
            )

    def _tree(self, name: str, revision: str) -> None:
        repository = self._repository(name)
        if repository is None:
            return
        entries: list[dict[str, Any]] = []
        for path, content in repository.files.items():
            for depth in range(1, path.count("/") + 1):
                folder = {"type": "directory", "oid": "0" * 40, "size": 0, "path": "/".join(path.split("/")[:depth])}
                entries += [folder] if folder not in entries else []
            entry: dict[str, Any] = {"type": "file", "oid": _git_blob(content), "size": len(content), "path": path}
            if path in repository.large:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            entries.append(entry)
        self._answer(entries)

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repository = self._repository(name)
        if repository is None:
            return
        if file not in repository.files:
            self._answer(
                {"error": "Entry not found"},
                404,
                {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"},
            )
            return
        content = repository.files[file]
        self.send_response(200)
        self.send_header("X-Repo-Commit", repository.sha)
        self.send_header("ETag", f'"{_git_blob(content)}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _repository(self, name: str) -> Repository | None:
        if name not in self.hub.repositories:
            self._answer(
                {"error": "Repository not found"},
                404,
                {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"},
            )
        return self.hub.repositories.get(name)

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, data: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serving() -> Iterator[StandIn]:
    """A stand-in that listens on a port of its own."""
    hub = StandIn()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def connect(hub: StandIn, monkeypatch: Any) -> None:
    """Point the real client at the stand-in, on line, with its token, by plain LFS, waiting milliseconds."""
    import huggingface_hub.constants as constants
    from huggingface_hub.utils import close_session

    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("pipelines.publishing.destinations.hub.WAITS", (0.01, 0.01))
    monkeypatch.setattr("pipelines.publishing.destinations.hub.LOOKING", (0.01,))
    close_session()

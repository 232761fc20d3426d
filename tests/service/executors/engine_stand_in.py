"""A Docker engine for machines without one: a real HTTP server on a unix socket that answers in the engine's own shapes.

The shapes (paths, status codes, field names, log frames) are those that docs.docker.com/reference/api/engine/version/v1.41
documents. A "container" is a process group on this machine, so that stopping, killing and logging do what they say; no
image is opened and nothing is isolated. What it cannot show is that a real engine accepts the configuration we send.
"""

import json
import os
import re
import signal
import socketserver
import subprocess
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

UNDERSTOOD = {
    "Image", "Entrypoint", "Cmd", "WorkingDir", "User", "Env", "Labels", "HostConfig",
    "Binds", "Init", "NetworkMode", "RestartPolicy", "CapDrop", "SecurityOpt", "ShmSize", "Memory", "NanoCpus", "LogConfig", "DeviceRequests",
    "MemorySwap", "PidsLimit", "IpcMode",
}  # fmt: skip
"""Fields of ContainerCreate and HostConfig that the executor may send; another one is answered with 400, as a typo would go unseen."""


class Container:
    def __init__(self, configuration):
        self.configuration = configuration
        self.process = None
        self.output = b""
        self.reader = None

    def start(self):
        c = self.configuration
        self.process = subprocess.Popen(
            [*c["Entrypoint"], *c["Cmd"]],
            cwd=c["WorkingDir"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], **dict(pair.split("=", 1) for pair in c["Env"])},
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._follow, daemon=True)
        self.reader.start()

    def _follow(self):
        while chunk := os.read(self.process.stdout.fileno(), 4096):
            self.output += chunk
        self.process.stdout.close()

    def signal(self, number):
        """Only the first process hears a signal; when that one is killed the kernel ends the rest of the container."""
        (os.killpg if number == signal.SIGKILL else os.kill)(self.process.pid, number)

    def state(self):
        code = None if self.process is None else self.process.poll()
        running = self.process is not None and code is None
        if code is not None:
            self._end_of_the_rest()
        return {
            "Status": "created" if self.process is None else "running" if running else "exited",
            "Running": running,
            "Paused": False,
            "Restarting": False,
            "OOMKilled": False,
            "Dead": False,
            "Pid": self.process.pid if running else 0,
            "ExitCode": 0 if code is None else code if code >= 0 else 128 - code,
            "Error": "",
        }

    def _end_of_the_rest(self):
        """A container's processes end with its first one."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.reader.join(5)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def address_string(self):
        return "unix"

    def do_GET(self):
        self._answer("GET")

    def do_POST(self):
        self._answer("POST")

    def do_DELETE(self):
        self._answer("DELETE")

    def _answer(self, verb):
        parts = urlsplit(self.path)
        path = re.sub(r"^/v1\.\d+", "", parts.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(text) if text else None
        engine = self.server.engine
        engine.seen.append((verb, path, query, body))
        if engine.broken:
            return self._say(500, {"message": "engine is broken"})
        if path == "/info":
            return self._say(200, {"Name": "engine-host", "NCPU": 2, "MemTotal": 8 << 30})
        if path == "/containers/json":
            labels = json.loads(query["filters"])["label"]
            found = [
                {"Names": [f"/{name}"], "Labels": each.configuration["Labels"], "State": each.state()["Status"]}
                for name, each in engine.containers.items()
                if each.state()["Status"] != "exited"
                and all(
                    "{}={}".format(*pair) in labels
                    for pair in each.configuration["Labels"].items()
                    if pair[0] == "finery.job"
                )
            ]
            return self._say(200, found)
        if path == "/containers/create":
            unknown = (set(body) | set(body["HostConfig"])) - UNDERSTOOD
            if unknown:
                return self._say(400, {"message": f"unknown fields {unknown}"})
            if query["name"] in engine.containers:
                return self._say(409, {"message": "Conflict. The container name is already in use"})
            engine.containers[query["name"]] = Container(body)
            return self._say(201, {"Id": "0" * 64, "Warnings": []})
        name, _, what = path.removeprefix("/containers/").partition("/")
        container = engine.containers.get(name)
        if container is None:
            return self._say(404, {"message": f"No such container: {name}"})
        return getattr(self, f"_{verb.lower()}_{what or 'container'}")(name, container, query)

    def _get_json(self, name, container, query):
        self._say(
            200,
            {
                "Id": "0" * 64,
                "Name": f"/{name}",
                "State": container.state(),
                "Config": {"Labels": container.configuration["Labels"]},
            },
        )

    def _post_start(self, name, container, query):
        if container.process is not None:
            return self._say(304)
        try:
            container.start()
        except OSError as error:
            return self._say(400, {"message": f"failed to create task for container: {error}"})
        return self._say(204)

    def _post_kill(self, name, container, query):
        if not container.state()["Running"]:
            return self._say(409, {"message": f"Container {name} is not running"})
        container.signal(signal.Signals[query.get("signal", "SIGKILL")])
        return self._say(204)

    def _get_logs(self, name, container, query):
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.docker.raw-stream")
        self.end_headers()
        for line in container.output.splitlines(keepends=True):
            self.wfile.write(b"\x01\0\0\0" + len(line).to_bytes(4, "big") + line)

    def _delete_container(self, name, container, query):
        if container.process is not None and container.state()["Running"]:
            container.signal(signal.SIGKILL)
            container.process.wait()
        del self.server.engine.containers[name]
        self._say(204)

    def _say(self, status, content=None):
        text = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if text:
            self.wfile.write(text)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class EngineStandIn:
    """Use as a context manager; `address` is what `DockerClient` takes."""

    def __init__(self, path):
        self.address = f"unix://{path}"
        self.containers = {}
        self.seen = []
        self.broken = False
        self._server = _Server(str(path), Handler)
        self._server.engine = self

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        for container in self.containers.values():
            if container.process is not None and container.process.poll() is None:
                container.signal(signal.SIGKILL)
                container.process.wait()

"""A real MLflow server on this machine, from an environment of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.environments import environment


@contextmanager
def mlflow_server(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Its address, until the block is left."""
    binaries = environment(folder / "server", "FINERY_MLFLOW_BIN", "mlflow>=3")
    with socket.socket() as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    root = f"http://{host}:{port}"
    place = ["--host", host, "--port", str(port), "--allowed-hosts", f"{host}:{port}"]
    command = [str(binaries / "mlflow"), "server", *place, "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    log = (folder / "server.log").open("wb")
    with subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=folder) as serving:
        try:
            until(lambda: _answers(root))
            yield root
        finally:
            os.killpg(serving.pid, signal.SIGKILL)


def runs_of(root: str, experiment: str) -> list[dict[str, Any]]:
    """The runs of the experiment of that name."""
    every = _asked(f"{root}/api/2.0/mlflow/experiments/search", {"max_results": 10})["experiments"]
    found = next(each["experiment_id"] for each in every if each["name"] == experiment)
    runs: list[dict[str, Any]] = _asked(f"{root}/api/2.0/mlflow/runs/search", {"experiment_ids": [found]})["runs"]
    return runs


def until(met: Callable[[], Any], seconds: float = 120.0) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.1)


def _asked(url: str, data: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(data).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _answers(root: str) -> bool:
    try:
        with urllib.request.urlopen(f"{root}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False

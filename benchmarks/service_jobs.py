"""Jobs of a service forked from a warm process, beside the same jobs in a new process each: until the first step.

Two services run, one with `FINERY_WARM=1`, one with 0. They get the same jobs in turns, each a seed of its own: some
steps of SST-2 on the tiny encoder, whose vocabulary the first job of each service leaves to the others. That job is not
counted. Measured is the time from the submission over HTTP to the end of the first optimizer step, as the job's event
has it; medians. A ratio above 1 means that the warm side is faster. In the same run the weights of each job on both
sides are compared, byte by byte.

    FINERY_DATA=<mirror> OMP_NUM_THREADS=2 python benchmarks/service_jobs.py [--rounds 5] [--isolation landlock]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import yaml
from rows import Row, report


def recipe(seed: int) -> str:
    """A job that is nearly all start."""
    stages = [
        {
            "stage": "supervised",
            "task": "glue/sst2",
            "max_length": 64,
            "max_train_samples": 200,
            "seed": seed,
            "arguments": {"max_steps": 5, "global_batch_size": 16},
        }
    ]
    return yaml.safe_dump(
        {
            "name": f"job-{seed}",
            "model": {"architecture": {"preset": "bert-tiny"}},
            "tokenizer": {"train": "wordpiece", "vocab_size": 2000},
            "stages": stages,
        }
    )


class Service:
    """One `finery serve`, and its jobs."""

    def __init__(self, home: Path, start: dict[str, Any]) -> None:
        self.home = home
        token = Path(start["admin_token"]).read_text().strip()
        self.http = httpx.Client(base_url=start["url"], headers={"Authorization": f"Bearer {token}"}, timeout=60.0)

    def job(self, seed: int) -> tuple[float, str]:
        """Seconds from the submission to the end of the first step, and a hash of the weights."""
        began = time.time()
        answer = self.http.post("/api/v1/jobs", content=recipe(seed), headers={"Content-Type": "application/yaml"})
        answer.raise_for_status()
        job = answer.json()["id"]
        while (state := self.http.get(f"/api/v1/jobs/{job}").json())["state"] not in (
            "succeeded",
            "failed",
            "canceled",
        ):
            time.sleep(0.1)
        folder = self.home / "jobs" / job
        if state["state"] != "succeeded":
            raise SystemExit(f"{job} ended as {state['state']}: {state.get('message')}")
        (events,) = folder.glob("runs/*/events.jsonl")
        lines = [json.loads(line) for line in events.read_text().splitlines()]
        first = next(
            line
            for line in lines
            if line["event"] == "progress" and line.get("stage") == "supervised" and line.get("step")
        )
        (stage,) = folder.glob("runs/*/stages/*-supervised")
        weights = stage.resolve() / "model" / "model.safetensors"
        return (
            datetime.fromisoformat(first["time"]).timestamp() - began,
            hashlib.sha256(weights.read_bytes()).hexdigest(),
        )


@contextmanager
def service(folder: Path, warm: int, isolation: str) -> Iterator[Service]:
    """A running service."""
    environment = {name: value for name, value in os.environ.items() if name != "FINERY_HOME"} | {
        "FINERY_WARM": str(warm)
    }
    command = [sys.executable, "-m", "service.cli", "serve", "--home", str(folder), "--port", "0", "--json"]
    with subprocess.Popen([*command, "--isolation", isolation], stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            yield Service(folder, json.loads(process.stdout.readline()))
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isolation", default="landlock")
    given = parser.parse_args()
    seconds: dict[int, list[float]] = {0: [], 1: []}
    equal = 0
    with tempfile.TemporaryDirectory(prefix="finery-", dir="/var/tmp") as place, ExitStack() as stack:
        services = {
            warm: stack.enter_context(service(Path(place) / str(warm), warm, given.isolation)) for warm in (0, 1)
        }
        for each in services.values():
            each.job(1)
        time.sleep(20)  # while the interpreter gets warm
        for seed in range(2, given.rounds + 2):
            hashes = []
            for warm in (0, 1) if seed % 2 else (1, 0):
                taken, weights = services[warm].job(seed)
                seconds[warm].append(taken)
                hashes.append(weights)
            equal += len(set(hashes)) == 1
    print(json.dumps({"new process": seconds[0], "warm": seconds[1]}))
    report(
        Row(
            f"a job of the service until its first step ({given.isolation})",
            "a new process a job",
            statistics.median(seconds[0]),
            statistics.median(seconds[1]),
            "s",
            f"weights of {equal} of {given.rounds} jobs, byte by byte",
        )
    )


if __name__ == "__main__":
    main()

"""How long the service takes while 10,000 jobs wait: to accept a job, and to start its process when a slot is free.

    python benchmarks/service_latency.py                                   SQLite
    python benchmarks/service_latency.py --database-url postgresql://postgres@127.0.0.1:5432/test
                                                                           a database of its own on that server

A real server process (API, scheduler, supervisor, local executor) runs on a host that pretends to have one GPU. One
job holds the GPU, 10,000 more wait for it, and then jobs that need only a core are submitted over HTTP, one after the
other. Their process writes the time when it begins. The goals are 50 ms (submit) and 1 s (to the process), both p99.
The ratio is against a bare transaction, one row inserted and committed, of the same database in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

WORKLOAD = """
import sys, time
recipe = open(sys.argv[-1]).read() if sys.argv[1] == "run" else ""
began = time.time()
import os
os.makedirs("runs", exist_ok=True)
with open("runs/began.tmp", "w") as file:
    file.write(repr(began))
os.rename("runs/began.tmp", "runs/began")
if "holds-the-gpu" in recipe:
    time.sleep(3600)
"""
RECIPE = """\
name: NAME
model: {architecture: {preset: bert-tiny}}
tokenizer: {train: wordpiece, vocab_size: 600}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 1}}
"""
GOALS = {"submit over HTTP": 0.050, "submit to process": 1.0}


def serve(home: Path, url: str) -> None:
    """The server: `finery serve`, but for what an attempt runs and what the host has."""
    from service.cli import serve as command
    from service.executors.isolation import isolation_of
    from service.executors.local import LocalExecutor
    from service.executors.protocol import Gpu, HostCapacity
    from service.supervisor import Supervisor as RealSupervisor

    host = HostCapacity("here", 4, 16 << 30, (Gpu(0, 80 << 30, "pretended"),))
    pipelines = (sys.executable, "-I", "-S", "-c", WORKLOAD)

    class Supervisor(RealSupervisor):
        def __init__(self, settings: Any, store: Any) -> None:
            super().__init__(
                settings, store, LocalExecutor(host, isolation=isolation_of(settings.isolation)), pipelines
            )

    command.Supervisor = Supervisor  # type: ignore[misc]
    command.serve("127.0.0.1", 0, home, url or None, None, True)


@contextmanager
def database(given: str | None) -> Iterator[str]:
    """The URL to use: empty for SQLite, else a new database of that server."""
    if given is None:
        yield ""
        return
    import psycopg

    name = f"finery_{os.getpid()}"
    with psycopg.connect(given, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        yield f"{given.rpartition('/')[0]}/{name}"
    finally:
        with psycopg.connect(given, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def server(home: Path, url: str) -> Iterator[tuple[str, str]]:
    """A running server: (address, token)."""
    command = [sys.executable, __file__, "--serve", str(home), "--database-url", url]
    environment = {**os.environ, "FINERY_REQUESTS_PER_SECOND": "1000", "FINERY_BURST": "10000"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        line = (process.stdout or sys.stdin).readline()
        yield json.loads(line)["url"], (home / "admin.token").read_text().strip()
    finally:
        process.terminate()
        process.wait(30)


def post(address: str, token: str, name: str, gpus: int) -> str:
    """Submit a job over HTTP; returns its id."""
    return str(
        sent(address, token, "jobs", {"recipe": RECIPE.replace("NAME", name), "resources": {"gpus": gpus, "cpus": 1}})[
            "id"
        ]
    )


def sent(address: str, token: str, path: str, body: Any) -> Any:
    """The answer to a request."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{address}/api/v1/{path}", json.dumps(body).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def leave(store: Any, address: str, token: str, seconds: float = 60.0) -> None:
    """End what runs and start nothing more: the folder that it works in is about to be deleted."""
    sent(address, token, "hosts/here/state", {"state": "draining"})
    limit = time.monotonic() + seconds
    while (live := store.live_attempts()) and time.monotonic() < limit:
        for _, job in live:
            with suppress(urllib.error.HTTPError):  # it ended by itself, or is being cancelled
                sent(address, token, f"jobs/{job.id}/cancel", {})
        time.sleep(0.2)
    if live:
        raise TimeoutError(f"{len(live)} attempts did not end within {seconds:.0f} s")


def began(home: Path, job: str, seconds: float = 60.0) -> float:
    """When the job's process began."""
    place = home / "jobs" / job / "runs" / "began"
    limit = time.monotonic() + seconds
    while not place.is_file():
        if time.monotonic() > limit:
            raise TimeoutError(f"job {job} did not begin within {seconds:.0f} s")
        time.sleep(0.005)
    return float(place.read_text())


def fill(store: Any, jobs: int) -> None:
    """So many waiting jobs, written at once."""
    from sqlalchemy import insert

    from service.jobs.job import JobRequest, Resources, new_id
    from service.store import tables
    from service.store.tables import row_of_request

    request = JobRequest(RECIPE.replace("NAME", "waits"), "default", name="waits", resources=Resources(gpus=1))
    rows = [row_of_request(new_id("job"), request, time.time()) for _ in range(jobs)]
    events = [
        {"job": row["id"], "id": 1, "time": row["created"], "event": "state", "fields": {"state": "queued"}}
        for row in rows
    ]

    def work(transaction: Any) -> None:
        for begin in range(0, jobs, 500):
            transaction.execute(insert(tables.jobs), rows[begin : begin + 500])
            transaction.execute(insert(tables.events), events[begin : begin + 500])

    store.write(work)


def bare(store: Any, samples: int) -> list[float]:
    """Seconds of transactions that insert one row."""
    from sqlalchemy import text

    store.write(lambda transaction: transaction.execute(text("CREATE TABLE bare (number INTEGER)")))
    found = []
    for number in range(samples):
        begun = time.perf_counter()
        store.write(
            lambda transaction, number=number: transaction.execute(
                text("INSERT INTO bare VALUES (:number)"), {"number": number}
            )
        )
        found.append(time.perf_counter() - begun)
    return found


def measure(home: Path, url: str, jobs: int, samples: int) -> dict[str, list[float]]:
    """Seconds of everything that is measured."""
    from service.jobs.job import JobRequest, Resources
    from service.settings import read_settings
    from service.store.store import open_store

    store = open_store(read_settings({}, home=home, database_url=url or None))
    found: dict[str, list[float]] = {
        "a bare transaction": bare(store, samples),
        "submit to the store": [],
        "submit over HTTP": [],
        "submit to process": [],
    }
    with server(home, url) as (address, token):
        began(home, post(address, token, "holds-the-gpu", 1))
        fill(store, jobs)
        time.sleep(3)
        for number in range(samples):
            begun, clock = time.perf_counter(), time.time()
            job = post(address, token, f"sample-{number}", 0)
            found["submit over HTTP"].append(time.perf_counter() - begun)
            found["submit to process"].append(began(home, job) - clock)
            while not store.job(job).over:
                time.sleep(0.01)
        for _ in range(samples):
            request = JobRequest(
                RECIPE.replace("NAME", "direct"), "default", name="direct", resources=Resources(gpus=1)
            )
            begun = time.perf_counter()
            store.submit(request, max_queued=1_000_000)
            found["submit to the store"].append(time.perf_counter() - begun)
        waiting = store.count()
        print(f"jobs at the end: {', '.join(f'{count} {state}' for state, count in waiting.items() if count)}")
        leave(store, address, token)
    store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000, help="that wait meanwhile")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--database-url", help="a PostgreSQL server, with a database to connect to")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.database_url)
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="finery-latency-") as folder, database(arguments.database_url) as url:
        found = measure(Path(folder), url, arguments.jobs, arguments.samples)
    kind = "PostgreSQL" if url else "SQLite"
    print(
        f"{kind}, {arguments.jobs:,} jobs wait, {arguments.samples} samples, load average {load:.1f} on {os.cpu_count()} cores before"
    )
    for name, seconds in found.items():
        ordered = sorted(seconds)
        worst = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        goal = (
            f"   goal {GOALS[name] * 1e3:.0f} ms: {'met' if worst <= GOALS[name] else 'NOT met'}"
            if name in GOALS
            else ""
        )
        print(f"  {name:<20} p50 {statistics.median(ordered) * 1e3:8.1f} ms   p99 {worst * 1e3:8.1f} ms{goal}")
    ratio = statistics.median(found["submit to the store"]) / statistics.median(found["a bare transaction"])
    print(f"ratio: to take a job costs {ratio:.1f} bare transactions")


if __name__ == "__main__":
    main()

"""Kills parts of a working service at random, seeded moments, and counts what was lost, doubled or left behind.

A server (the real `finery serve`) runs jobs while this process submits more of them over HTTP, each under an idempotency
key that is sent again until an answer comes. Every kill is a SIGKILL (or PostgreSQL's immediate stop), and counts only if
its victim was seen at work within the second before. When all jobs have ended, `verdict` compares the store, the run
folders and the process table with what must hold.
"""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from service.executors.local import marked
from service.executors.process_tree import start_time
from service.jobs.states import AttemptState, State
from service.settings import read_settings
from service.store.errors import Unavailable
from service.store.store import Store

SERVER = Path(__file__).with_name("server.py")
CONCURRENT = {"stand-in": 6, "pipelines": 2, "alone": 6}
"""Jobs that wait or run at once, by workload; `alone` are real pipelines on one process. A job that was killed time after time waits
minutes before it is tried again, and meanwhile the others are struck."""
LATEST_STEP = 100
"""A kill of the real pipelines waits for a step up to this one, drawn at random: starting costs far more than training."""


@dataclass
class Kill:
    """One strike."""

    victim: str
    job: str = ""
    step: int = 0
    """What it had done when it was struck."""


@dataclass
class Verdict:
    """What was found when everything had ended. All lists are empty when the service kept its word."""

    jobs: int = 0
    kills: Counter = field(default_factory=Counter)
    attempts: int = 0
    lost: list = field(default_factory=list)
    """Jobs that were submitted and did not succeed, or that nobody submitted."""
    published_twice: list = field(default_factory=list)
    orphans: list = field(default_factory=list)
    """Processes of attempts that outlived them."""
    two_writers: list = field(default_factory=list)
    restarted_from_scratch: list = field(default_factory=list)
    """Attempts that did not go on from the last checkpoint."""
    events_wrong: list = field(default_factory=list)
    """Jobs whose events in the store are not exactly those of the run."""
    slots_held: list = field(default_factory=list)
    resumed: int = 0
    """Attempts that went on from a checkpoint above 0."""

    @property
    def clean(self):
        return not any(
            (
                self.lost,
                self.published_twice,
                self.orphans,
                self.two_writers,
                self.restarted_from_scratch,
                self.events_wrong,
                self.slots_held,
            )
        )


class Chaos:
    """One deployment and its tormentor. Use as a context manager."""

    def __init__(self, folder, database, seed, recipe, workload="stand-in", step_seconds=0.04, processes=2):
        self.home = Path(folder) / "home"
        self.home.mkdir(mode=0o700)
        self.database = database
        self.random = random.Random(seed)
        self.recipe = recipe
        self.workload = workload
        self.processes = processes
        """Of an attempt of the real pipelines."""
        self.resources = {"cpus": 2} if workload == "pipelines" else {"cpus": 1, "gpus": 1}
        self.environment = os.environ | {"STAND_IN_STEP_SECONDS": str(step_seconds)}
        self.environment.pop("FINERY_HOME", None)
        self.server = None
        self.port = free_port()
        self.submitted = {}
        self.kills = []
        self.misses = Counter()
        self._next = ""
        """Who is struck next: chosen once, and waited for until it is at work."""
        self._from_step = 0
        """And at which step at the earliest; the stand-in is fast enough for the pauses between kills to choose it."""

    def __enter__(self):
        self.database.start()
        self.start_server()
        self._wait_until_it_answers()
        self.store = Store(read_settings({}, home=self.home, database_url=self.database.url or None).url)
        return self

    def __exit__(self, *_):
        self.stop_server()
        for attempt, _ in self._asked(self.store.live_attempts) or ():
            for pid in marked(attempt.id):
                os.kill(pid, signal.SIGKILL)
        self.store.close()
        self.database.stop()

    def start_server(self):
        """Start it; it answers a moment later."""
        log = open(self.home.parent / "server.log", "ab")  # noqa: SIM115
        self.server = subprocess.Popen(
            [sys.executable, str(SERVER), str(self.home), str(self.port), self.database.url, self.workload],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()

    def _wait_until_it_answers(self, seconds=60.0):
        limit = time.monotonic() + seconds
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5).close()
                return
            except OSError:
                if time.monotonic() > limit or self.server.poll() is not None:
                    raise TimeoutError(f"the server does not answer: see {self.home.parent / 'server.log'}") from None
                time.sleep(0.05)

    def stop_server(self):
        """End it gently, as a restart of the machine's service would."""
        if self.server is not None and self.server.poll() is None:
            self.server.terminate()
            self.server.wait(60)

    def torment(self, jobs, kills, pause=(0.2, 1.2), seconds=3600.0, strike_seconds=float("inf")):
        """Submit so many jobs and strike so many times while they run; then let everything come to its end."""
        limit = time.monotonic() + seconds
        last_kill = time.monotonic() + strike_seconds
        next_kill = time.monotonic() + 1.0
        while True:
            if self.server.poll() is not None:
                self.start_server()
            standing = self._asked(self.store.count)
            if standing is not None:
                open_jobs = sum(
                    count
                    for state, count in standing.items()
                    if state not in (State.SUCCEEDED, State.FAILED, State.CANCELLED)
                )
                kills = kills if time.monotonic() < last_kill else len(self.kills)
                more = len(self.kills) < kills  # while there is something left to strike there must be work
                if (len(self.submitted) < jobs or more) and open_jobs < CONCURRENT[
                    "alone" if self.workload == "pipelines" and self.processes == 1 else self.workload
                ]:
                    self.submit()
                elif not more and open_jobs == 0:
                    return
            if len(self.kills) < kills and time.monotonic() >= next_kill:
                struck = self.strike()
                next_kill = time.monotonic() + (self.random.uniform(*pause) if struck else 0.05)
            assert time.monotonic() < limit, (
                f"{len(self.kills)} of {kills} kills, {standing}: see {self.home.parent / 'server.log'}"
            )
            time.sleep(0.02)

    def submit(self):
        """Send one job over HTTP. An answer that never came leaves the key to be sent again: the job exists once."""
        key = f"key-{len(self.submitted):05d}"
        name = f"job-{len(self.submitted):05d}"
        body = {
            "recipe": self.recipe.replace("NAME", name).replace("INDEX", str(len(self.submitted))),
            "resources": self.resources,
            "max_retries": 20,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/v1/jobs",
            json.dumps(body).encode(),
            method="POST",
            headers={
                "Content-Type": "application/json",
                "Idempotency-Key": key,
                "Authorization": f"Bearer {self.token()}",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                self.submitted[key] = json.load(answer)["id"]
        except urllib.error.HTTPError as error:
            if error.code not in (500, 503):
                raise ValueError(error.read()) from error
        except (OSError, json.JSONDecodeError, http.client.HTTPException):  # it was killed, or is only now starting
            time.sleep(0.05)

    def token(self):
        """The admin's, once the first server has written it."""
        try:
            return (self.home / "admin.token").read_text().strip()
        except FileNotFoundError:
            return "none"

    def strike(self):
        """Kill something that is at work; False when nothing suitable was."""
        choices = ["server", "server", "launcher", "run", "launcher and server", "run and server"]
        choices += ["rank", "rank"] if self.workload == "pipelines" and self.processes > 1 else []
        choices += ["database"] if self.database.restarts else []
        if not self._next:
            self._next = self.random.choice(choices)
            self._from_step = self.random.randint(0, LATEST_STEP) if self.workload == "pipelines" else 0
        victim = self._next
        if victim == "database":
            return self._strike_database()
        target = self._working()
        if target is None or self.server.poll() is not None:
            self.misses[victim] += 1
            return False
        attempt, job, step = target
        if victim.startswith(("launcher", "run", "rank")) and not self._kill_process(attempt, victim.split()[0]):
            self.misses[victim] += 1
            return False
        if victim.endswith("server"):
            victim += "" if self._answers() else " while it starts"
            self.server.kill()
            assert self.server.wait(30) == -signal.SIGKILL
        self.kills.append(Kill(victim, job.id, step))
        self._next = ""
        return True

    def _answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 0.2).close()
        except OSError:
            return False
        return True

    def _working(self):
        """An attempt that is in the middle of its steps: the newest event in its run folder is less than a second old."""
        found = self._asked(self.store.live_attempts) or []
        self.random.shuffle(found)
        for attempt, job in found:
            events = self.home / "jobs" / job.id / "runs" / job.name / "events.jsonl"
            try:
                fresh = time.time() - events.stat().st_mtime < (1.0 if self.workload == "stand-in" else 20.0)
                last = json.loads(events.read_bytes().splitlines()[-1])
            except (OSError, ValueError, IndexError):
                continue
            at_work = (
                last["event"] in ("metric", "checkpoint", "started")
                if self.workload == "stand-in"
                else last["event"] in ("metric", "checkpoint")
            )
            step = int(last.get("step") or 0)
            if (
                attempt.state is AttemptState.STARTED
                and job.state in (State.RUNNING, State.STARTING)
                and fresh
                and at_work
                and step >= self._from_step
            ):
                return attempt, job, step
        return None

    def _kill_process(self, attempt, who):
        pid = attempt.handle["launcher_pid" if who == "launcher" else "child_pid"]
        if who == "rank":
            ranks = [each for each in marked(attempt.id) if "RANK" in variables(each)]
            if not ranks:
                return False
            pid = self.random.choice(ranks)
        began = start_time(pid)
        if not began or (
            who != "rank" and began != attempt.handle["launcher_start" if who == "launcher" else "child_start"]
        ):
            return False
        os.kill(pid, signal.SIGKILL)
        limit = time.monotonic() + 10
        while start_time(pid) == began and time.monotonic() < limit:
            time.sleep(0.001)
        assert start_time(pid) != began
        return True

    def _strike_database(self):
        try:
            before = self.database.commits()
            time.sleep(0.2)
            busy = self.database.commits() - before
        except Exception:
            busy = 0
        if busy < 2:
            self.misses["database"] += 1
            return False
        self.database.stop()
        time.sleep(self.random.uniform(0.0, 1.0))
        self.database.start()
        self.kills.append(Kill("database", step=int(busy)))
        self._next = ""
        return True

    def _asked(self, question):
        try:
            return question()
        except Unavailable:
            return None


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def variables(pid):
    """The names in a process's environment."""
    try:
        return {part.partition(b"=")[0].decode() for part in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
    except OSError:
        return set()

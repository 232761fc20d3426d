"""A store, a local executor and a watcher around the stand-in for `python -m pipelines`."""

import sys
import time
from pathlib import Path

import pytest

from service.attempts.folders import folders_of
from service.attempts.watching import Watcher
from service.executors.local import LocalExecutor
from service.executors.protocol import HostCapacity
from service.jobs.job import Host, HostShare, JobRequest
from service.settings import Settings
from service.store.store import open_store

RUN = (sys.executable, "-S", str(Path(__file__).resolve().parents[1] / "stand_in_run.py"))
RECIPE = """\
name: tiny
model: {{architecture: {{preset: bert-tiny}}}}
tokenizer: {{train: wordpiece, vocab_size: 600}}
stages:
  - {{stage: pretrain, objective: masked_lm, datasets: [{{path: builtin/python-docs}}], arguments: {{max_steps: {steps}}}}}
  - {{stage: evaluate, id: {evaluate}}}
  - {{stage: publish, to: my-model}}
"""
"""What the stand-in reads of it: the name, max_steps, the folder to publish to, and `fail-with-REASON`."""


class Server:
    """What one server process holds, and what a test asks of it."""

    def __init__(self, settings):
        self.settings = settings = settings.model_copy(update={"isolation": "none"})  # attempts are stand-ins
        self.store = open_store(settings)
        self.executor = LocalExecutor(HostCapacity("here", 2, 8 << 30))
        self.watchers = []
        self.watcher = self.restarted()
        self.store.ensure_project("default")
        self.store.report_host(Host("here", cpus=2, memory=8 << 30))

    def restarted(self):
        """A new watcher, as a restarted server has one."""
        self.watcher = Watcher(self.store, self.settings, self.executor, "me", RUN)
        self.watchers.append(self.watcher)
        return self.watcher

    def submit(self, steps=4, evaluate="scores", recipe=None, **fields):
        request = JobRequest(
            recipe=recipe or RECIPE.format(steps=steps, evaluate=evaluate), project="default", name="tiny", **fields
        )
        return self.store.submit(request)[0].id

    def place(self, job):
        return self.store.start(job, (HostShare("here"),), executor="local", holder="me", lease_seconds=60)

    def until(self, job, condition, seconds=20.0):
        """Look at the attempts until the condition holds of the job; returns it."""
        limit = time.monotonic() + seconds
        while True:
            self.watcher.step()
            if condition(found := self.store.job(job)):
                return found
            assert time.monotonic() < limit, found
            time.sleep(0.02)

    def run(self, job):
        """Give it a place and see it to its end."""
        attempt = self.place(job)
        return self.until(job, lambda found: not found.active), attempt

    def folders(self, job):
        return folders_of(self.settings.jobs, self.store.job(job))

    def steps(self, job):
        """(process, step, step of the checkpoint that it began with) of every step that was done, in order."""
        return [
            tuple(map(int, line.split())) for line in (self.folders(job).run / "steps.log").read_text().splitlines()
        ]


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.delenv("FINERY_HOME")
    server = Server(Settings(home=tmp_path / "service"))
    yield server
    for attempt, _ in server.store.live_attempts():
        if attempt.handle:
            server.executor.kill(server.executor.reattach(attempt.handle))
    for watcher in server.watchers:
        watcher.stop()
    server.store.close()

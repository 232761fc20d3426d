"""What must hold when chaos is over, read from the store, the run folders and the process table."""

import json
import time
from collections import Counter
from pathlib import Path

from service.executors.process_tree import MARK, start_time
from service.jobs.states import State
from tests.service.chaos.harness import Verdict
from tests.service.stand_in_run import EVERY


def verdict(chaos, seconds=10.0):
    """Everything that is wrong. Processes get a moment to leave the table."""
    found = Verdict(kills=Counter(kill.victim for kill in chaos.kills))
    jobs = every_job(chaos.store)
    found.jobs = len(jobs)
    known = set(chaos.submitted.values())
    found.lost = [f"{job.id} {job.state}: {job.message}" for job in jobs if job.state is not State.SUCCEEDED]
    found.lost += sorted(known - {job.id for job in jobs})
    keys = Counter(job.request.idempotency_key for job in jobs)
    found.lost += [f"{key} became {count} jobs" for key, count in keys.items() if count > 1]
    for job in jobs:
        look_at(chaos, job, found)
    published = Counter(model.job for model in chaos.store.models(None, limit=100_000))
    found.published_twice += [f"{job}: {count} models" for job, count in published.items() if count != 1]
    found.published_twice += [
        f"{job.id}: none" for job in jobs if job.state is State.SUCCEEDED and published[job.id] == 0
    ]
    found.published_twice += [
        str(path) for path in (chaos.home / "models").glob("*/*") if len(list(path.iterdir())) != 1
    ]
    found.slots_held = [f"{slot}: {holder}" for slot, holder in chaos.store.slot_holders().items()]
    found.slots_held += [attempt.id for attempt, _ in chaos.store.live_attempts()]
    limit = time.monotonic() + seconds
    while (orphans := orphans_of(chaos.home)) and time.monotonic() < limit:
        time.sleep(0.05)
    found.orphans = orphans
    return found


def every_job(store):
    jobs = []
    while page := store.jobs(None, limit=500, newest_first=False, after=jobs[-1].id if jobs else None):
        jobs += page
    return jobs


def look_at(chaos, job, found):
    """One job's folder against its rows."""
    attempts = chaos.store.attempts(job.id)
    found.attempts += len(attempts)
    run = chaos.home / "jobs" / job.id / "runs" / job.name
    if (run / "two-writers").exists():
        found.two_writers.append(job.id)
    try:
        written = [json.loads(line) for line in (run / "events.jsonl").read_bytes().splitlines()]
    except OSError:
        written = []
    stored, after = [], 0
    while page := chaos.store.events_after(job.id, after, limit=5000):
        stored += page
        after = page[-1].id
    mine = [(event.event, event.step) for event in stored if event.event not in ("state", "priority")]
    if mine != [(event["event"], event.get("step")) for event in written]:
        found.events_wrong.append(f"{job.id}: {len(mine)} in the store, {len(written)} written")
    if [event.id for event in stored] != list(range(1, len(stored) + 1)):
        found.events_wrong.append(f"{job.id}: ids are not 1, 2, 3 …")
    if chaos.workload == "pipelines":
        look_at_checkpoints(job, written, found)
    elif (run / "steps.log").exists():
        look_at_steps(
            job, [tuple(map(int, line.split())) for line in (run / "steps.log").read_text().splitlines()], found
        )


def look_at_steps(job, steps, found):
    """One process after the other, each from the last checkpoint of the one before."""
    order = list(dict.fromkeys(process for process, _, _ in steps))
    if [process for process, _, _ in steps] != [
        process for each in order for process, _, _ in steps if process == each
    ]:
        found.two_writers.append(f"{job.id}: steps of two processes alternate")
    reached = 0
    for process in order:
        mine = [(step, began) for each, step, began in steps if each == process]
        began = mine[0][1]
        last = reached - reached % EVERY
        # killed between a step and its checkpoint: the one before is the last; stopped with SIGTERM: the step itself
        if began not in {last, last - EVERY if reached % EVERY == 0 else last, reached}:
            found.restarted_from_scratch.append(f"{job.id}: had reached {reached}, went on from {began}")
        found.resumed += began > 0
        if [step for step, _ in mine] != list(range(began + 1, began + 1 + len(mine))):
            found.restarted_from_scratch.append(f"{job.id}: left steps out after {began}")
        reached = mine[-1][0]


def look_at_checkpoints(job, written, found, save_steps=5, logging_steps=2):
    """The real thing, by its events: after a restart the first step that is told follows the last checkpoint."""
    checkpoint, reached, restarted = 0, 0, False
    for event in written:
        if event["event"] == "started" and "stage" not in event:
            restarted = reached > 0
        elif event["event"] == "checkpoint":
            checkpoint = event["step"]
        elif event["event"] == "metric" and event.get("stage") == "pretrain" and event.get("step"):
            if restarted:
                # killed between a checkpoint and the event that tells of it: it is one further than was told
                if not checkpoint < event["step"] <= checkpoint + save_steps + logging_steps:
                    found.restarted_from_scratch.append(
                        f"{job.id}: checkpoint {checkpoint}, went on with step {event['step']}"
                    )
                found.resumed += checkpoint > 0
                restarted = False
            reached = event["step"]


def orphans_of(home):
    """Processes that carry an attempt's mark and work below `home`."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            environment = (path / "environ").read_bytes()
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            folder = (path / "cwd").readlink()
        except OSError:
            continue
        ours = MARK.encode() + b"=" in environment and str(folder).startswith(str(home))
        if (ours or ("executors.launcher" in command and str(home) in command)) and start_time(int(path.name)):
            found.append(f"{path.name} {command}")
    return found

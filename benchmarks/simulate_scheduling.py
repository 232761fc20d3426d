"""Replays 100,000 jobs over thousands of GPUs: how well the scheduler's `choose` fills them, and how long it thinks (processor time).

    python benchmarks/simulate_scheduling.py                          4,096 GPUs, 100,000 jobs
    python benchmarks/simulate_scheduling.py --jobs 5000 --hosts 32   in seconds

A discrete-event simulation: time jumps from one arrival or end to the next tick, and the same function that the service
calls decides there. The jobs are drawn, not recorded: most need one GPU, few need many hosts, and the length is
log-normal, as in the traces of Jeon et al. 2019, "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training
Workloads" (USENIX ATC). A second replay of the same jobs, in strict order without back-filling, gives the ratio.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from service.jobs.job import GpuSlot, Host, Resources
from service.scheduler import choose as choosing
from service.scheduler.capacity import Capacity
from service.scheduler.choose import choose
from service.scheduler.queue import Decision, Queue, RunningJob, Share, Usage, WaitingJob

GPUS = 8
"""Of each host."""
SIZES = [(1, 1, 0.50), (2, 1, 0.13), (4, 1, 0.14), (8, 1, 0.17), (8, 2, 0.04), (8, 8, 0.02)]
"""(GPUs on each host, hosts, share of the jobs)."""
PRIORITIES = [(0, 0.80), (1, 0.15), (2, 0.05)]
PROJECTS = 20
STOP_SECONDS = 60.0
"""How long a preempted job takes to save its checkpoint and stop."""
ESTIMATED = 0.8
"""Share of the jobs whose user says how long they run at most."""


@dataclass
class Work:
    """A job of the simulation, and what became of it."""

    job: WaitingJob
    seconds: float
    """How long it really runs."""
    left: float
    first_start: float | None = None
    finished: float | None = None
    preemptions: int = 0
    began: float = 0.0
    run: int = 0
    """Counts its starts, so that the end of an earlier one is not taken for its own."""


@dataclass
class Tally:
    """Sums over time."""

    gpu_seconds: float = 0.0
    fairness: float = 0.0
    contended: float = 0.0
    decisions: list[float] = field(default_factory=list)
    deepest: int = 0


def drawn(jobs: int, gpus: int, load: float, seed: int) -> list[Work]:
    """The jobs, in the order in which they arrive, so that they need `load` of the GPUs on average."""
    rng = random.Random(seed)
    sizes = rng.choices([(gpu, hosts) for gpu, hosts, _ in SIZES], [share for *_, share in SIZES], k=jobs)
    lengths = [min(86_400.0, rng.lognormvariate(math.log(1200), 1.4)) for _ in range(jobs)]
    total = sum(gpu * hosts * length for (gpu, hosts), length in zip(sizes, lengths, strict=True))
    between = total / (gpus * load) / jobs
    projects = [f"project-{number:02}" for number in range(PROJECTS)]
    popularity = [1 / (number + 1) for number in range(PROJECTS)]
    moment, made = 0.0, []
    for number, ((gpu, hosts), length) in enumerate(zip(sizes, lengths, strict=True)):
        moment += rng.expovariate(1 / between)
        job = WaitingJob(
            id=f"job-{number:06}",
            project=rng.choices(projects, popularity)[0],
            priority=rng.choices([level for level, _ in PRIORITIES], [share for _, share in PRIORITIES])[0],
            resources=Resources(
                gpus=gpu, cpus=gpu * 8, memory=gpu << 36, hosts=hosts, gpu_kind=rng.choice([None, None, "H200"])
            ),
            submitted=moment,
            expected_seconds=length * rng.uniform(1, 3) if rng.random() < ESTIMATED else math.inf,
        )
        made.append(Work(job, length, length))
    return made


def cluster(hosts: int) -> list[Host]:
    """Three quarters of the hosts with one kind of GPU, one quarter with another."""
    kinds = [("H200", 141 << 30)] * 3 + [("A100", 80 << 30)]
    found = []
    for number in range(hosts):
        kind, memory = kinds[number % 4]
        slots = tuple(GpuSlot(index, kind, memory) for index in range(GPUS))
        found.append(Host(f"host-{number:04}", cpus=128, memory=2 << 40, slots=slots))
    return found


class Simulation:
    """The replay of one list of jobs."""

    def __init__(self, hosts: list[Host], work: list[Work], usage: Usage, tick: float) -> None:
        self.tick = tick
        self.hosts = hosts
        self.work = {each.job.id: each for each in work}
        self.usage = usage
        self.capacity = Capacity(hosts)
        self.queue = Queue()
        self.now = 0.0
        self.tally = Tally()
        self.events: list[tuple[float, int, str, int]] = [(each.job.submitted, 0, each.job.id, 0) for each in work]
        """(time, 0 arrives | 1 ends | 2 has stopped, job, run)."""
        heapq.heapify(self.events)
        self.last_arrival = max(each.job.submitted for each in work)

    def run(self) -> None:
        """From the first arrival to the last end."""
        while self.events:
            moment = math.ceil(self.events[0][0] / self.tick) * self.tick
            self._pass_time(moment)
            while self.events and self.events[0][0] <= moment:
                _, kind, identifier, run = heapq.heappop(self.events)
                self._happen(kind, self.work[identifier], run)
            begun = time.process_time()
            decision = choose(self.queue, self.capacity, self.now, self.usage)
            self.tally.decisions.append(time.process_time() - begun)
            self.tally.deepest = max(self.tally.deepest, len(self.queue))
            self._apply(decision)
        assert not self.queue.jobs, "jobs were left"
        assert not self.capacity.running, "jobs still run"

    def _pass_time(self, moment: float) -> None:
        span = min(moment, self.last_arrival) - min(self.now, self.last_arrival)
        self.now = moment
        if span <= 0:
            return
        busy = sum(held.gpus for held in self.capacity.projects.values())
        assert busy <= self.capacity.total.gpus
        self.tally.gpu_seconds += busy * span
        waiting = {project for lines in self.queue.levels.values() for project in lines}
        if len(waiting) > 1:
            shares = [
                held.gpus / self.usage[project].weight
                for project in waiting
                for held in [self.capacity.projects.get(project)]
                if held
            ] + [0.0 for project in waiting if project not in self.capacity.projects]
            squares = sum(share * share for share in shares)
            if squares:
                self.tally.fairness += span * sum(shares) ** 2 / (len(shares) * squares)
                self.tally.contended += span

    def _happen(self, kind: int, work: Work, run: int) -> None:
        if kind == 0:
            self.queue.add(work.job)
        elif work.run == run:
            held = self.capacity.free(work.job.id)
            work.run += 1
            if kind == 1:
                work.finished = self.now
            else:  # it ran until it was asked to stop
                work.left -= self.now - STOP_SECONDS - held.began
                work.preemptions += 1
                self.queue.add(work.job)

    def _apply(self, decision: Decision) -> None:
        for preemption in decision.preemptions:
            work = self.work[preemption.job]
            self.capacity.take(replace(self.capacity.free(preemption.job), stopping=True))
            work.run += 1
            heapq.heappush(self.events, (self.now + STOP_SECONDS, 2, preemption.job, work.run))
        for start in decision.starts:
            work = self.work[start.job]
            job = work.job
            self.queue.remove(start.job)
            self.capacity.take(
                RunningJob(
                    job.id, start.placement, job.project, job.priority, job.resources, self.now, job.expected_seconds
                )
            )
            work.first_start = self.now if work.first_start is None else work.first_start
            heapq.heappush(self.events, (self.now + work.left, 1, start.job, work.run))
        assert not decision.unplaceable, decision.unplaceable[:1]


def quantile(values: list[float], at: float) -> float:
    """The value below which this part of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(at * len(ordered)))] if ordered else math.nan


def figures(simulation: Simulation, seconds: float) -> dict[str, Any]:
    """What is reported of a replay."""
    work = list(simulation.work.values())
    tally = simulation.tally
    by_priority, by_size, by_project = defaultdict(list), defaultdict(list), defaultdict(list)
    for each in work:
        wait = (each.first_start or 0.0) - each.job.submitted
        by_priority[each.job.priority].append(wait)
        by_size[each.job.resources.total_gpus].append(wait)
        by_project[each.job.project].append(wait)
    waits = [wait for found in by_priority.values() for wait in found]
    return {
        "jobs": len(work),
        "gpus": simulation.capacity.total.gpus,
        "utilisation": tally.gpu_seconds / (simulation.capacity.total.gpus * simulation.last_arrival),
        "days": simulation.last_arrival / 86_400,
        "last_end_after_last_arrival_hours": (max(each.finished or 0.0 for each in work) - simulation.last_arrival)
        / 3600,
        "mean_wait": sum(waits) / len(waits),
        "wait_by_priority": {
            level: {"p50": quantile(found, 0.5), "p90": quantile(found, 0.9), "p99": quantile(found, 0.99)}
            for level, found in sorted(by_priority.items())
        },
        "wait_by_gpus": {
            size: {"p50": quantile(found, 0.5), "p90": quantile(found, 0.9), "p99": quantile(found, 0.99)}
            for size, found in sorted(by_size.items())
        },
        "mean_wait_by_project": {project: sum(found) / len(found) for project, found in sorted(by_project.items())},
        "fairness": tally.fairness / tally.contended if tally.contended else math.nan,
        "contended_share_of_time": tally.contended / simulation.last_arrival,
        "preemptions": sum(each.preemptions for each in work),
        "longest_queue": tally.deepest,
        "decisions": len(tally.decisions),
        "decisions_per_second": len(tally.decisions) / sum(tally.decisions),
        "decision_ms": {
            "p50": quantile(tally.decisions, 0.5) * 1e3,
            "p99": quantile(tally.decisions, 0.99) * 1e3,
            "max": max(tally.decisions) * 1e3,
        },
        "seconds": seconds,
    }


def replay(arguments: argparse.Namespace, backfill: bool) -> dict[str, Any]:
    """Simulate once."""
    hosts = cluster(arguments.hosts)
    usage = {f"project-{number:02}": Share(weight=1.0) for number in range(PROJECTS)}
    simulation = Simulation(
        hosts, drawn(arguments.jobs, len(hosts) * GPUS, arguments.load, arguments.seed), usage, arguments.tick
    )
    depth = choosing.DEPTH
    choosing.DEPTH = depth if backfill else 0
    begun = time.process_time()
    try:
        simulation.run()
    finally:
        choosing.DEPTH = depth
    return figures(simulation, time.process_time() - begun)


def told(found: dict[str, Any]) -> str:
    """The figures as lines for people."""
    lines = [
        f"{found['jobs']:,} jobs over {found['gpus']:,} GPUs and {found['days']:.1f} days, simulated in {found['seconds']:.0f} s",
        f"  utilisation while jobs arrive {found['utilisation']:.1%}, longest queue {found['longest_queue']:,}, preemptions {found['preemptions']:,}",
        f"  fairness between projects that wait (Jain's index) {found['fairness']:.3f}, over {found['contended_share_of_time']:.0%} of the time",
        f"  {found['decisions']:,} decisions, {found['decisions_per_second']:,.0f} a second; p50 {found['decision_ms']['p50']:.2f} ms, "
        f"p99 {found['decision_ms']['p99']:.2f} ms, max {found['decision_ms']['max']:.0f} ms",
        f"  mean wait {found['mean_wait'] / 60:.1f} min",
    ]
    for title, key in (("priority", "wait_by_priority"), ("GPUs", "wait_by_gpus")):
        for value, waits in found[key].items():
            lines.append(
                f"  wait of {title} {value}: "
                + ", ".join(f"{name} {wait / 60:.1f} min" for name, wait in waits.items())
            )
    means = found["mean_wait_by_project"]
    lines.append(f"  mean wait by project: {min(means.values()) / 60:.1f} to {max(means.values()) / 60:.1f} min")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--hosts", type=int, default=512, help="of 8 GPUs each")
    parser.add_argument("--load", type=float, default=0.95, help="GPU time asked for, as a share of what there is")
    parser.add_argument("--tick", type=float, default=10.0, help="simulated seconds between two decisions, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("backfill", "strict"), help="one replay instead of both")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"load": arguments.load, "seed": arguments.seed}
    for name, backfill in (("backfill", True), ("strict", False)):
        if arguments.only in (None, name):
            found[name] = replay(arguments, backfill)
            print(f"{name}: {told(found[name])}", flush=True)
    if arguments.only is None:
        ratio = found["strict"]["mean_wait"] / found["backfill"]["mean_wait"]
        print(f"ratio: in strict order jobs wait {ratio:.2f} times as long on average")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

"""Kills a working service at random moments and says what it cost: jobs lost, models published twice, processes left.

The real `finery serve`, its scheduler, launchers and store run jobs submitted over HTTP; SIGKILL strikes the server, an
attempt's launcher, the run itself, or two of them at once, and PostgreSQL is stopped as by a crash. Each kill is counted
only if its victim was at work. The attempts run a stand-in that writes the same files as `python -m pipelines` and no
model, or, with `--workload pipelines`, the real thing: on two processes, whose ranks are killed as well, or on one.

    python benchmarks/chaos.py --kills 200 [--database postgresql] [--seed 1]
    python benchmarks/chaos.py --kills 10 --workload pipelines
    python benchmarks/chaos.py --kills 200 --workload pipelines --processes 1
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.service.chaos.databases import Postgresql, Sqlite  # noqa: E402
from tests.service.chaos.harness import Chaos  # noqa: E402
from tests.service.chaos.recipes import ALONE, REAL, TINY  # noqa: E402
from tests.service.chaos.verdict import verdict  # noqa: E402

COUNTED = ("lost", "published_twice", "orphans", "two_writers", "restarted_from_scratch", "events_wrong", "slots_held")


def main() -> int:
    """Strike, wait, count. Exit code 1 when anything was lost."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--kills", type=int, default=200)
    words.add_argument(
        "--jobs", type=int, default=20, help="at least so many; more are submitted while there are kills left"
    )
    words.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    words.add_argument("--workload", choices=("stand-in", "pipelines"), default="stand-in")
    words.add_argument("--processes", type=int, choices=(1, 2), default=2, help="of an attempt of the real pipelines")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument(
        "--minutes", type=float, default=360.0, help="strike no longer than this, however many kills are left"
    )
    words.add_argument("--keep", type=Path, help="keep the home and the server's log in this folder")
    given = words.parse_args()
    real = given.workload == "pipelines"
    folder = given.keep or Path(tempfile.mkdtemp(prefix="finery-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    if given.database == "postgresql" and (why := Postgresql.missing()):
        sys.exit(why)
    database = Postgresql() if given.database == "postgresql" else Sqlite()
    started = time.monotonic()
    recipe, pause = TINY, (0.2, 1.2)
    if real:
        recipe, pause = (REAL, (2.0, 15.0)) if given.processes == 2 else (ALONE, (0.5, 5.0))
    with Chaos(folder, database, given.seed, recipe, given.workload, processes=given.processes) as chaos:
        chaos.torment(
            2 if real else given.jobs, given.kills, pause, seconds=8 * 3600.0, strike_seconds=60 * given.minutes
        )
        found = verdict(chaos)
    print(
        f"{len(chaos.kills)} kills of busy processes in {time.monotonic() - started:.0f} s on {given.database}, seed {given.seed}\n"
    )
    print("| victim | kills |\n|---|---|")
    for victim, count in sorted(found.kills.items()):
        print(f"| {victim} | {count} |")
    print(
        f"\n| outcome | number |\n|---|---|\n| jobs submitted and succeeded | {found.jobs - len(found.lost)} of {found.jobs} |"
    )
    print(f"| attempts | {found.attempts} |\n| went on from a checkpoint | {found.resumed} |")
    for name in COUNTED:
        print(f"| {name.replace('_', ' ')} | {len(getattr(found, name))} |")
    for name in COUNTED:
        for line in getattr(found, name):
            print(f"{name}: {line}", file=sys.stderr)
    return 0 if found.clean else 1


if __name__ == "__main__":
    sys.exit(main())

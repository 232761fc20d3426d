"""What only GPUs can show, made for ten minutes: `make test-gpu`, on any number of NVIDIA GPUs from one up.

Each recipe of `tests/end_to_end/test_profiles.py` runs on one GPU, then under every profile on two and on all of them: the
losses and the norms of gradients must be those of one GPU, and each process must hold the share of the weights that the
profile promises. A run that is killed under fsdp2 goes on on one GPU. What needs more GPUs, or a package that is not
installed, is listed as not run.

`python -m tests.gpu --on-cpu 2` does the same with two processes on the CPU, to try the script itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pipelines.core.events import read_events
from tests.end_to_end.test_profiles import RECIPES, RELATIVE, SMALLEST, numbers

LIMIT = 600.0
"""Seconds for everything."""
UNAVAILABLE = 69
"""The exit code where there is no GPU, as EX_UNAVAILABLE of sysexits.h."""
LONG = "stages.pretrain.arguments={max_steps: 4000, global_batch_size: 8, learning_rate: 1e-3, save_steps: 50, logging_steps: 50}"


class Failure(Exception):
    """What was not as it should be."""


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    what: str
    processes: int
    do: Callable[[], None]
    lacking: str = ""
    """Why it is not run."""


class Bench:
    """The folder that all checks work in, and the time that is left."""

    def __init__(self, folder: Path, devices: int, on_cpu: bool) -> None:
        self.folder, self.devices, self.on_cpu = folder, devices, on_cpu
        self.ends = time.monotonic() + LIMIT

    def command(self, place: Path, recipe: str, words: list[str]) -> subprocess.Popen[bytes]:
        place.mkdir(parents=True, exist_ok=True)
        (place / "recipe.yaml").write_text(recipe)
        environment = os.environ | {"FINERY_HOME": str(place / "home"), "HF_HUB_OFFLINE": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "pipelines", "run", "recipe.yaml", *words],
            cwd=place,
            env=environment | ({"CUDA_VISIBLE_DEVICES": ""} if self.on_cpu else {}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, name: str, recipe: str, words: list[str]) -> Path:
        """The run folder of a recipe that was run to its end. Raises Failure."""
        place = self.folder / name
        child = self.command(place, recipe, words)
        try:
            _, said = child.communicate(timeout=max(1.0, self.ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise Failure("did not end in time") from None
        if child.returncode != 0:
            raise Failure(
                said.decode(errors="replace").strip().splitlines()[-1] if said else f"exit {child.returncode}"
            )
        return next((place / "runs").iterdir())

    def equal(self, name: str, profile: str, processes: int, precision: str) -> None:
        """One recipe under one profile against the same on one device."""
        words = [f"launch.mixed_precision={precision}"]
        recipe = RECIPES[name]
        alone = self.folder / f"{name}-{precision}"
        if not alone.exists():
            self.run(alone.name, recipe, [*words, "launch.num_processes=1"])
        expected = numbers(next((alone / "runs").iterdir()))
        words += [f"launch.profile={profile}", f"launch.num_processes={processes}"]
        run = self.run(f"{name}-{precision}-{profile}-{processes}", recipe, words)
        found = numbers(run)
        if found.keys() != expected.keys():
            raise Failure("other steps were logged than on one device")
        for key, number in expected.items():
            if abs(found[key] - number) > max(RELATIVE[key[2]] * abs(number), SMALLEST):
                raise Failure(f"{key[0]}, step {key[1]}: {key[2]} is {found[key]:.5g}, on one device {number:.5g}")
        for event in read_events(run / "events.jsonl"):
            for rank in event["ranks"] if event["event"] == "distributed" else ():
                share = rank["local"] / rank["global"]
                if not (share == 1 if profile in ("ddp", "zero2") else share < 1.3 / processes):
                    raise Failure(f"{event['stage']}: rank {rank['rank']} holds {share:.0%} of the weights")

    def goes_on(self, processes: int) -> None:
        """Killed under fsdp2 behind its first checkpoint, a run goes on on one device."""
        recipe, place = RECIPES["decoder"].split("  - {stage: reward")[0], self.folder / "killed"
        words = [LONG, "launch.profile=fsdp2", f"launch.num_processes={processes}"]
        child = self.command(place, recipe, words)
        events = place / "runs" / "decoder" / "events.jsonl"
        while not any(event["event"] == "checkpoint" for event in read_events(events)):
            if child.poll() is not None or time.monotonic() > self.ends:
                os.killpg(child.pid, signal.SIGKILL)
                raise Failure("no checkpoint was written")
            time.sleep(0.1)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        self.run("killed", recipe, [LONG, "launch.num_processes=1"])
        if not any(event.get("what") == "resumed" for event in read_events(events)):
            raise Failure("it began anew")

    def checks(self) -> Iterator[Check]:
        """Every row, in the order of the table."""
        counts = sorted({2, self.devices} - {1})
        for precision in ("no", "bf16"):
            for profile in ("ddp", "fsdp2"):
                for processes in counts:
                    lacking = "" if self.devices >= processes else f"needs {processes} GPUs"
                    for name in RECIPES:
                        do = lambda n=name, p=profile, c=processes, m=precision: self.equal(n, p, c, m)  # noqa: E731
                        yield Check(f"{name}, {profile}, precision {precision}", processes, do, lacking)
        lacking = "" if self.devices >= 2 else "needs 2 GPUs"
        yield Check("killed under fsdp2, goes on on one", 2, lambda: self.goes_on(2), lacking)
        for name, precision in [(name, precision) for precision in ("no", "bf16") for name in RECIPES]:
            yield Check(f"{name}, one device, precision {precision}", 1, lambda n=name, m=precision: self.alone(n, m))
        for profile in ("zero2", "zero3"):
            without = "needs the package deepspeed" if find_spec("deepspeed") is None else ""
            yield Check(f"pretraining, {profile}", 2, lambda p=profile: self.by_zero(p), without or lacking)

    def alone(self, name: str, precision: str) -> None:
        """The recipe ends on one device, with losses that are numbers."""
        place = self.folder / f"{name}-{precision}"
        run = next((place / "runs").iterdir()) if place.exists() else None
        run = run or self.run(
            place.name, RECIPES[name], [f"launch.mixed_precision={precision}", "launch.num_processes=1"]
        )
        if not numbers(run):
            raise Failure("no losses were logged")

    def by_zero(self, profile: str) -> None:
        """Pretraining under DeepSpeed ends, and each process holds what the profile promises."""
        recipe = RECIPES["decoder"].split("  - {stage: reward")[0]
        self.run(
            profile, recipe, [f"launch.profile={profile}", "launch.num_processes=2", "launch.mixed_precision=bf16"]
        )


def main() -> int:
    """Run the checks; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--on-cpu", type=int, metavar="N", help="so many processes on the CPU instead of GPUs")
    given = arguments.parse_args()
    import torch

    devices = given.on_cpu or torch.cuda.device_count()
    if not devices:
        print("make test-gpu needs an NVIDIA GPU that torch can use, and there is none here.", file=sys.stderr)
        return UNAVAILABLE
    where = "the CPU" if given.on_cpu else torch.cuda.get_device_name(0)
    print(f"{devices} x {where}, torch {torch.__version__}\n")
    folder = Path(tempfile.mkdtemp(prefix="finery-gpu-"))
    bench, failed = Bench(folder, devices, bool(given.on_cpu)), 0
    print(f"{'what':<44} {'processes':>9}  {'seconds':>7}  outcome")
    for check in bench.checks():
        began = time.monotonic()
        outcome = f"not run: {check.lacking}" if check.lacking else ""
        if not outcome and began > bench.ends:
            outcome = f"not run: the {LIMIT:.0f} s are over"
        if not outcome:
            try:
                check.do()
                outcome = "passed"
            except Failure as error:
                outcome, failed = f"FAILED: {error}", failed + 1
        print(f"{check.what:<44} {check.processes:>9}  {time.monotonic() - began:>7.1f}  {outcome}", flush=True)
    if not failed:
        shutil.rmtree(folder)
    print(f"\n{f'{failed} failed; their runs lie in {folder}' if failed else 'none failed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

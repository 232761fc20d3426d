"""A study of many short cells, its runs forked from one process, beside the same study with a new process each.

Three families (encoder, decoder, encoder-decoder) by three tuners by `--seeds` seeds, each cell some steps of SST-2 and
an evaluation: what a cell costs beside its steps decides. The sides take turns, each time with an empty home, and the
medians are compared. A ratio above 1 means that the forked side is faster. In the same run the scores and the weights
of every cell of both sides are compared, byte by byte. `first step` is the time from the start of a cell to the end of
its first optimizer step. Processors' time is told beside, for a machine that does other work at the same time.

    FINERY_DATA=<mirror> OMP_NUM_THREADS=1 python benchmarks/study_cells.py [--seeds 3] [--steps 20] [--rounds 5]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rows import Row, report

NEW_PROCESSES = """
import sys
from pipelines.studies import workers
workers.can_fork = lambda: False
from pipelines.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
"""`python -m pipelines`, where runs cannot be forked."""


class Done(NamedTuple):
    """What one study took."""

    seconds: float
    """From its command to its end."""
    cpu: float
    """Seconds that processors worked for it, all its processes together."""
    first_step: list[float]
    """Of each cell, seconds."""
    results: dict[str, tuple[Any, ...]]
    """Of each cell: hashes of its weights, and its scores."""


def recipe(seeds: int, steps: int) -> dict[str, Any]:
    """The study."""
    return {
        "name": "cells",
        "model": {"architecture": {"preset": "bert-tiny"}},
        "tokenizer": {"train": "wordpiece", "vocab_size": 2000},
        "stages": [
            {
                "stage": "supervised",
                "task": "glue/sst2",
                "max_length": 64,
                "max_train_samples": 1000,
                "arguments": {"max_steps": steps, "global_batch_size": 16},
            },
            {"stage": "evaluate", "max_eval_samples": 200},
        ],
        "matrix": {
            "family": {
                "encoder": {},
                "decoder": {"model": {"architecture": {"preset": "gpt-tiny"}}},
                "encoder-decoder": {"model": {"architecture": {"preset": "transformer-tiny"}}},
            },
            "method": {each: {"stages.supervised.tuner": each} for each in ("full", "lora", "bitfit")},
            "stages.supervised.seed": list(range(1, seeds + 1)),
        },
    }


def study(words: list[str], given: dict[str, Any]) -> Done:
    """Do the study with `python WORDS study …`."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "study.yaml").write_text(json.dumps(given))
        environment = os.environ | {
            "FINERY_HOME": str(folder / "home"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]),
        }
        began, before = time.perf_counter(), worked()
        done = subprocess.run(
            [sys.executable, *words, "study", "study.yaml"], cwd=folder, env=environment, capture_output=True, text=True
        )
        seconds, cpu = time.perf_counter() - began, worked() - before
        if done.returncode:
            sys.exit(f"the study failed:\n{(done.stdout + done.stderr)[-3000:]}")
        own = folder / "runs" / "cells"
        cells = sorted((own / "cells").iterdir())
        return Done(seconds, cpu, first_steps(own, cells), {each.name: results(each) for each in cells})


def worked() -> float:
    """Seconds that processors worked for processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def first_steps(own: Path, cells: list[Path]) -> list[float]:
    began = {
        event["cell"]: datetime.fromisoformat(event["time"])
        for event in map(json.loads, (own / "events.jsonl").read_text().splitlines())
        if event["event"] == "cell" and event["status"] == "running"
    }
    taken = []
    for cell in cells:
        events = map(json.loads, (cell / "events.jsonl").read_text().splitlines())
        first = next(each for each in events if each["event"] == "progress" and each.get("step") == 1)
        taken.append((datetime.fromisoformat(first["time"]) - began[f"cells/{cell.name}"]).total_seconds())
    return taken


def results(cell: Path) -> tuple[Any, ...]:
    weights = sorted(cell.glob("stages/01-*/model/*.safetensors"))
    [scores] = cell.glob("stages/02-*/metrics.json")
    return (*(hashlib.sha256(each.read_bytes()).hexdigest() for each in weights), json.loads(scores.read_text()))


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    sides = {"new processes": ["-c", NEW_PROCESSES], "forked": ["-m", "pipelines"]}
    done: dict[str, list[Done]] = {name: [] for name in sides}
    wanted = recipe(given.seeds, given.steps)
    for _ in range(given.rounds):
        for name, words in sides.items():
            done[name].append(study(words, wanted))
            print(f"{name}: {done[name][-1].seconds:.1f} s", file=sys.stderr)
    every = [each.results for took in done.values() for each in took]
    alike = sum(all(each[cell] == every[0][cell] for each in every) for cell in every[0])
    work = f"study of {len(every[0])} cells x {given.steps} steps"
    equal = f"weights and scores in {alike} of {len(every[0])} cells, byte by byte"
    for what, goal, take in (
        ("", 3.0, lambda each: each.seconds),
        (", processors' time", None, lambda each: each.cpu),
        (", first step of a cell", None, lambda each: statistics.median(each.first_step)),
    ):
        theirs, ours = (statistics.median(take(each) for each in done[name]) for name in sides)
        report(Row(work + what, "a new process a cell", theirs, ours, "s", equal, goal))


if __name__ == "__main__":
    main()

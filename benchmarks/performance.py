"""`make benchmark`: every comparison with a peer, one after another, and their table in docs/performance.md.

Each program runs Finery and its peer in the same run, takes turns between them and checks that they do the same work;
the table gives the ratio of their medians, the goal, what was equal, and below it the command, the machine and the
versions. Rows that miss their goal stay. What was measured is kept in docs/results/scores/performance.jsonl: with `--only`
the rows of the other programs stay as they are, each with its date. A program whose peer is not installed is named below
the table with the reason, where it was never measured. Nothing else should run meanwhile.

    FINERY_DATA=<mirror> python benchmarks/performance.py [--only NAME …] [--quick] [--trl ENV/bin/python]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from rows import ROWS, Row

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "performance.md"
KEPT = HERE.parent / "docs" / "results" / "scores" / "performance.jsonl"
"""A measurement a line."""
PROGRAMS: dict[str, tuple[list[str], list[str]]] = {
    "fine-tuning-sst2": (
        ["fine_tuning.py", "--task", "glue/sst2", "--rounds", "5", "--steps", "50", "150"],
        ["--rounds", "2", "--steps", "50", "100"],
    ),
    "fine-tuning-mrpc": (
        ["fine_tuning.py", "--task", "glue/mrpc", "--rounds", "5", "--steps", "28", "84"],
        ["--rounds", "2", "--steps", "28", "56"],
    ),
    "fine-tuning-cola": (
        ["fine_tuning.py", "--task", "glue/cola", "--rounds", "5", "--steps", "50", "150"],
        ["--rounds", "2", "--steps", "50", "100"],
    ),
    "fine-tuning-minilm": (
        ["fine_tuning.py", "--shape", "minilm", "--rounds", "5", "--steps", "50", "150"],
        ["--rounds", "2", "--steps", "50", "100"],
    ),
    "causal-lm": (
        ["pretraining.py", "--objective", "causal_lm", "--rates", "2e-3", "4e-3", "8e-3", "--rate", "8e-3"],
        ["--minutes", "1", "--rates", "4e-3"],
    ),
    "masked-lm": (
        ["pretraining.py", "--objective", "masked_lm", "--rates", "1e-3", "2e-3", "4e-3", "--rate", "8e-3"],
        ["--minutes", "1", "--rates", "2e-3"],
    ),
    "vocabulary": (["vocabulary_loss.py"], ["--rounds", "1", "--steps", "1", "3"]),
    "masked-lm-step": (["masked_lm_step.py"], ["--rounds", "3"]),
    "evaluation": (["evaluation.py", "--rounds", "5", "--rows", "300"], ["--rounds", "2", "--rows", "150"]),
    "dpo": (["dpo_step.py"], ["--rounds", "1", "--steps", "2", "8"]),
    "study": (["study_cells.py"], ["--rounds", "1"]),
    "jobs": (["service_jobs.py"], ["--rounds", "2"]),
    "ppo": (["ppo_step.py"], ["--rounds", "1", "--steps", "3"]),
}
"""Name: the program with its arguments, and those that replace them for a quick look."""


@dataclass(frozen=True)
class Measurement:
    """What one program measured, and where."""

    program: str
    command: str
    date: str
    machine: str
    """With its threads and the versions of what ran on it."""
    rows: tuple[Row, ...] = ()
    lacking: str = ""
    """Why there are no rows."""

    @staticmethod
    def today(program: str, command: str, machine: str, found: Sequence[Row] | str) -> Measurement:
        """What was found now: rows, or why there are none."""
        rows, lacking = ((), found) if isinstance(found, str) else (tuple(found), "")
        return Measurement(program, command, datetime.date.today().isoformat(), machine, rows, lacking)

    @staticmethod
    def from_json(text: str) -> Measurement:
        """As `json.dumps(asdict(…))` wrote it."""
        given = json.loads(text)
        return Measurement(**given | {"rows": tuple(Row(**row) for row in given["rows"])})


VERSIONS = ("torch", "transformers", "accelerate", "trl", "lm_eval")


def processor() -> str:
    """As Linux names it, with what it has for products in bfloat16."""
    from pipelines.core import launch

    name, flags = launch.processor("model name") or platform.processor() or platform.machine(), launch.processor_flags()
    has = "AMX" if "amx_bf16" in flags else "AVX-512, bfloat16" if "avx512_bf16" in flags else ""
    return f"{name} ({has})" if has else name


def machine(device: str) -> str:
    """The device, and what computes on it."""
    import torch

    installed = []
    for name in VERSIONS:
        try:
            installed.append(f"{name} {version(name)}")
        except ModuleNotFoundError:
            continue
    return f"{device}, {torch.get_num_threads()} threads, Python {platform.python_version()}, {', '.join(installed)}"


def measured(name: str, quick: bool, trl: str | None) -> tuple[str, tuple[Row, ...] | str]:
    """The command of a program, and its rows or why there are none."""
    program, shorter = PROGRAMS[name]
    again = [each for each in shorter if each.startswith("--")] if quick else []
    words, left = [], False
    for each in program:  # what is shorter stands in the place of what is longer
        left = each in again or (left and not each.startswith("--"))
        if not left:
            words.append(each)
    words += shorter if quick else []
    command = f"python benchmarks/{' '.join(words)}"
    if name == "ppo":
        command += " --peer ENV/bin/python"
        if trl is None:
            return command, "needs --trl with the Python of an environment that has TRL 1.12.0"
        words += ["--peer", trl]
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        print(f"# {command}", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, str(HERE / words[0]), *words[1:]],
            env={**os.environ, ROWS: str(rows), "HF_HUB_OFFLINE": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()
            return command, f"failed: {said[-1] if said else done.returncode}"
        return command, tuple(Row(**json.loads(line)) for line in rows.read_text().splitlines())


def table(found: Sequence[Measurement]) -> list[str]:
    """The rows as Markdown."""
    lines = [
        "| work | peer | peer's | Finery's | ratio | goal | equal in the same run | date |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    for each in found:
        for row in each.rows:
            goal = "" if row.goal is None else f"{row.goal:g}"
            lines.append(
                f"| {row.work} | {row.peer} | {row.theirs:.4g} {row.unit} | {row.ours:.4g} {row.unit} | {row.ratio:.2f} | "
                f"{goal} | {row.equal} | {each.date} |"
            )
    return lines


def page(found: Sequence[Measurement]) -> str:
    """The page on performance."""
    lines = [
        "# Performance",
        "",
        "Finery beside named peers, each pair measured in one run, taking turns; medians. A ratio above 1 means that",
        "Finery is faster or needs less memory. Written by `make benchmark`; what was tried and did not pay is in",
        "[experiments](experiments.md), measurements with other conditions, and how far a ratio can go, are in",
        "[speed](results/speed.md).",
        "",
        *table(found),
    ]
    for place in dict.fromkeys((each.date, each.machine) for each in found if each.rows):
        commands = [f"- `{each.command}`" for each in found if each.rows and (each.date, each.machine) == place]
        lines += ["", f"{place[0]}, {place[1]}:", "", *commands]
    lacking = [f"- `{each.command}`: {each.lacking}" for each in found if each.lacking]
    return "\n".join([*lines, *(["", "Not measured:", "", *lacking] if lacking else []), ""])


def joined(old: Sequence[Measurement], new: Sequence[Measurement]) -> list[Measurement]:
    """One measurement a program, in the order of PROGRAMS: the new one where it has rows, else the old."""
    best = {each.program: each for each in old}
    for each in new:
        if each.rows or each.program not in best or not best[each.program].rows:
            best[each.program] = each
    return sorted(best.values(), key=lambda each: list(PROGRAMS).index(each.program))


def main() -> None:
    """Run the programs and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--quick", action="store_true", help="few steps: a look, which no page keeps")
    parser.add_argument("--trl", help="Python of an environment with TRL 1.12.0")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--kept", type=Path, default=KEPT, help="what was measured before, and is added to")
    given = parser.parse_args()
    import torch

    here = machine(torch.cuda.get_device_name() if torch.cuda.is_available() else processor())
    old = [Measurement.from_json(line) for line in given.kept.read_text().splitlines()] if given.kept.exists() else []
    found: list[Measurement] = []
    for name in given.only:
        command, rows = measured(name, given.quick, given.trl)
        found.append(Measurement.today(name, command, here, rows))
        if not given.quick:
            kept = joined(old, found)
            given.kept.write_text("".join(json.dumps(asdict(each)) + "\n" for each in kept))
            given.page.write_text(page(kept))
    print(page(found))


if __name__ == "__main__":
    main()

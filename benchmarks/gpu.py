"""The GPU's side of `make benchmark`, within one call of ten minutes on a bare host.

It needs torch with CUDA and Finery, installed from this repository: no network. Text is Python's own
documentation, models begin from random weights. Fine-tuning and evaluation read a mirror of GLUE and RACE where
FINERY_DATA names one (the folders alpaca_eval_preferences/, glue/, race/ and tokenizers/ of it are enough); without one they are named as not measured. What
is left when the minutes are over is named too. The table goes to performance-gpu.md beside docs/performance.md, the
rows as JSON lines to `--rows`, and both are written after every program, so that a call that is cut off leaves what it measured.

    python benchmarks/gpu.py [--minutes 9.5] [--page PATH] [--rows PATH] [--trl ENV/bin/python] [--only NAME …]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from performance import HERE, PAGE, Measurement, machine, page
from rows import ROWS, Row

STEPS = [
    *("pretraining.py", "--shape", "base", "--step-only", "--optimizer", "adamw_torch_fused"),
    *("--rates", "1e-4", "--rate", "1e-4"),
]
PROGRAMS: dict[str, list[str]] = {
    "causal-lm": [*STEPS, "--objective", "causal_lm", "--steps", "100", "200"],
    "fine-tuning-minilm": ["fine_tuning.py", "--shape", "minilm", "--rounds", "1", "--steps", "50", "250"],
    "fine-tuning-mini": ["fine_tuning.py", "--rounds", "1", "--steps", "100", "500"],
    "dpo": ["dpo_step.py", "--gpu", "--rounds", "1", "--steps", "50", "500"],
    "ppo": ["ppo_step.py", "--gpu", "--rounds", "1", "--steps", "8"],
    "evaluation": ["evaluation.py", "--rounds", "5", "--rows", "872"],
    "masked-lm": [*STEPS, "--objective", "masked_lm", "--steps", "100", "200"],
    "causal-lm-compiled": [*STEPS, "--objective", "causal_lm", "--steps", "40", "120", "--compile"],
    "masked-lm-compiled": [*STEPS, "--objective", "masked_lm", "--steps", "40", "120", "--compile"],
    "fine-tuning-minilm-compiled": [
        *("fine_tuning.py", "--shape", "minilm", "--rounds", "1", "--steps", "100", "500", "--compile"),
    ],
    "vocabulary": ["vocabulary_kernels.py"],
    "packed-documents": [
        *("packed_documents.py", "--shape", "base", "--block", "1024", "--batch", "8", "--mean", "300"),
        *("--precision", "bf16", "--rounds", "30"),
    ],
    "fine-tuning-mrpc": ["fine_tuning.py", "--task", "glue/mrpc", "--rounds", "1", "--steps", "100", "300"],
}
"""In the order of what is wanted first."""
READS_DATA = ("fine_tuning.py", "dpo_step.py", "evaluation.py")
"""Programs that read a mirror."""
PPO = "ppo_step.py"


def measured(words: list[str], seconds: float) -> list[Row] | str:
    """The rows of a program, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        environment = {**os.environ, ROWS: str(rows), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, str(HERE / words[0]), *words[1:]]
        try:
            done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return "the time was over before it ended"
        print(done.stderr, file=sys.stderr, flush=True)
        if done.returncode:
            said = done.stderr.strip().splitlines()
            return f"failed: {said[-1] if said else done.returncode}"
        return [Row(**json.loads(line)) for line in rows.read_text().splitlines()]


def main() -> int:
    """Run the programs while there is time, and write the page after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--trl", help="the Python of an environment with TRL 1.12.0")
    parser.add_argument("--page", type=Path, default=PAGE.with_name("performance-gpu.md"))
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("benchmarks/gpu.py measures a GPU, and torch finds none here; `make benchmark` measures a CPU")
        return 69  # EX_UNAVAILABLE of sysexits.h
    end = time.monotonic() + 60 * given.minutes
    found: list[Measurement] = []
    here = machine(torch.cuda.get_device_name())
    for name in given.only:
        words, left = PROGRAMS[name], end - time.monotonic()
        if words[0] == PPO and given.trl:
            words = [*words, "--peer", given.trl]
        if words[0] == PPO and not given.trl:
            rows: list[Row] | str = "needs --trl with the Python of an environment that has TRL 1.12.0"
        elif words[0] in READS_DATA and not os.environ.get("FINERY_DATA"):
            rows = "needs a mirror of the data, which FINERY_DATA names"
        else:
            rows = measured(words, left) if left > 30 else "no time was left"
        found.append(Measurement.today(name, f"python benchmarks/{' '.join(words)}", here, rows))
        given.page.write_text(page(found))
        if given.rows is not None:
            lines = [asdict(row) for each in found for row in each.rows]
            given.rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(given.page.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())

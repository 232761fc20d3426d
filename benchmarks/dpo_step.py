"""One DPO step: Finery beside TRL's own command, in one run.

Both train the same GPT-2 shape from the same weights on the same pairs, with the same batch, learning rate, optimizer, precision
(fp32) and lengths, full weights, a frozen reference in memory. Each command runs twice a round, with few and with more steps; the
difference over the steps between is the time of a step, without start-up, reading and saving. The commands take turns. CPU seconds
are counted beside the seconds that passed, for a machine that is busy otherwise. The peak is that of the largest process.
A ratio above 1 means that Finery is faster, or needs less memory. Two more lines show Finery with the reference asked beforehand,
whose one pass over the pairs is outside of the steps, and with a LoRA adapter switched off as the reference. On a GPU both sides
compute in bf16, each command runs once a round and a step is what lies between its logs at few and at more steps, there are two
lines, and neither CPU seconds nor peaks are told.

    FINERY_DATA=<mirror> python benchmarks/dpo_step.py [--rounds 3] [--steps 4 20] [--gpu]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from rows import Row, report
from step_times import a_step, of_run

SHAPE = {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 512, "vocab_size": 8192}
BATCH, LENGTH, PAIRS = 8, 256, 400
RATE, BETA = 1e-5, 0.1
GPU = "--gpu"
PRECISION = "bf16" if GPU in sys.argv else "fp32"
MIXED = {"bf16": "bf16", "fp32": '"no"'}
"""What a recipe calls it."""


class Taken(NamedTuple):
    """What a command took."""

    seconds: float
    """Of training, as the trainer says; on a GPU of a step."""
    cpu: float
    """Of all its processes."""
    peak: int
    """Bytes of the largest process."""


def prepare(folder: Path) -> None:
    """The pairs, a tokenizer and a model of random weights, where both commands find them."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from pipelines.data.sources import find
    from pipelines.data.tokenizers.bpe import ByteBPE

    rows = find("alpaca_eval_preferences", None).load("train")
    pairs = [{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in rows.select(range(PAIRS))]
    pairs = [
        {name: text if isinstance(text, str) else text[-1]["content"] for name, text in pair.items()} for pair in pairs
    ]
    pairs = [{**pair, "prompt": pair["prompt"] + "\n\n"} for pair in pairs]
    (folder / "pairs").mkdir()
    (folder / "pairs" / "train.jsonl").write_text("\n".join(json.dumps(pair) for pair in pairs))
    tokenizer = ByteBPE().train((text for pair in pairs for text in pair.values()), SHAPE["vocab_size"])
    torch.manual_seed(0)
    ends = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = GPT2Config(
        **{**SHAPE, "vocab_size": len(tokenizer)}, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **ends
    )
    GPT2LMHeadModel(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


def recipe(folder: Path, name: str, steps: int, keys: str, settings: str) -> Path:
    """Our recipe of one DPO stage."""
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\nmodel: {{checkpoint: {folder / 'model'}}}\nlaunch: {{num_processes: 1, mixed_precision: {MIXED[PRECISION]}}}\nstages:\n"
        f"  - {{stage: dpo, datasets: [{{path: {folder / 'pairs' / 'train.jsonl'}}}], max_length: {LENGTH}{keys}, arguments: "
        f"{{max_steps: {steps}, per_device_train_batch_size: {BATCH}, learning_rate: {RATE}, beta: {BETA}, save_strategy: no, "
        f"logging_steps: {logged(steps)}{settings}}}}}\n"
    )
    return path


def logged(steps: int) -> int:
    """Between two logs: all steps, or on a GPU a tenth of them."""
    return max(1, steps // 10) if GPU in sys.argv else steps


def run(command: list[str], folder: Path, home: Path) -> tuple[list[tuple[float, str]], float, int]:
    """(the lines that the command said, with the time of each; CPU seconds; bytes at the peak)."""
    environment = {
        **os.environ,
        "FINERY_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_DATASETS_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]),
        "PYTHONUNBUFFERED": "1",
        # The same for both: accelerate, which starts the peer, takes one thread where nothing is said.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0)))),
        **({} if GPU in sys.argv else {"CUDA_VISIBLE_DEVICES": ""}),
    }
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines = [(time.time(), line) for line in process.stdout]
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{''.join(line for _, line in lines)[-3000:]}")
    return lines, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def finery(folder: Path, name: str, steps: int, keys: str = "", settings: str = "") -> Taken:
    """Our command, in a home of its own so that nothing is used again."""
    with tempfile.TemporaryDirectory() as home:
        path = recipe(folder, f"{name}-{steps}-{time.time_ns()}", steps, keys, settings)
        _, cpu, peak = run([sys.executable, "-m", "pipelines", "run", str(path)], folder, Path(home))
        metrics = json.loads(next((folder / "runs" / path.stem / "stages").glob("*/metrics.json")).read_text())
        if GPU in sys.argv:
            return Taken(a_step(of_run(folder / "runs" / path.stem), logged(steps), steps), cpu, peak)
        return Taken(metrics["train_runtime"], cpu, max(peak, int(metrics["peak_memory_bytes"])))


def trl(folder: Path, steps: int) -> Taken:
    """TRL's command with the same numbers; what it does by default and we do not (bf16, recomputed activations) is off."""
    words: dict[str, Any] = {
        "model_name_or_path": folder / "model",
        "dtype": "float32",
        "dataset_name": folder / "pairs",
        "output_dir": folder / "trl",
        "max_steps": steps,
        "per_device_train_batch_size": BATCH,
        "learning_rate": RATE,
        "beta": BETA,
        "max_length": LENGTH,
        "bf16": GPU in sys.argv,
        "gradient_checkpointing": False,
        "use_cpu": GPU not in sys.argv,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": logged(steps),
        "disable_tqdm": True,
    }
    command = [
        *(sys.executable, "-c", "from trl.cli import main; main()", "dpo"),
        *(part for name, value in words.items() for part in (f"--{name}", str(value))),
    ]
    lines, cpu, peak = run(command, folder, folder)
    if GPU in sys.argv:
        times = [when for when, line in lines if re.search(r"'loss'", line)]
        if len(times) < 2:
            sys.exit(f"trl logged {len(times)} losses")
        return Taken((times[-1] - times[0]) / (logged(steps) * (len(times) - 1)), cpu, peak)
    text = "".join(line for _, line in lines)
    found = re.search(r"train_runtime'?\"?: '?\"?([\d.]+)", text)
    if found is None:
        sys.exit(f"trl said nothing of its time:\n{text[-2000:]}")
    return Taken(float(found.group(1)), cpu, peak)


def main() -> None:
    """Print the time of a step, the peaks and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, nargs=2, default=(4, 20))
    parser.add_argument(GPU, action="store_true", help="on a GPU, which neither side sees otherwise")
    arguments = parser.parse_args()
    few, many = arguments.steps
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        ways = {
            "trl dpo": lambda steps: trl(folder, steps),
            "finery": lambda steps: finery(folder, "full", steps),
            "finery, reference beforehand": lambda steps: finery(
                folder, "stored", steps, settings=", precompute_ref_log_probs: true"
            ),
            "finery, LoRA": lambda steps: finery(folder, "lora", steps, keys=", tuner: lora"),
        }
        if arguments.gpu:
            ways = {name: ways[name] for name in ("trl dpo", "finery")}
        wall: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        peak: dict[str, int] = dict.fromkeys(ways, 0)
        for _ in range(arguments.rounds):
            for name, way in ways.items():
                long = way(many)
                if arguments.gpu:
                    wall[name].append(long.seconds)
                else:
                    short = way(few)
                    wall[name].append((long.seconds - short.seconds) / (many - few))
                    cpu[name].append((long.cpu - short.cpu) / (many - few))
                    peak[name] = max(peak[name], long.peak)
                print(f"{name}: {wall[name][-1]:.4f} s a step", file=sys.stderr)
    theirs = "trl dpo"
    for name in ways if not arguments.gpu else ():
        print(
            f"{name:30} {statistics.median(wall[name]) * 1000:8.0f} ms a step {statistics.median(cpu[name]) * 1000:8.0f} ms of CPU "
            f"{peak[name] / 2**20:8.0f} MiB at the peak"
        )
    for name in list(ways)[1:] if not arguments.gpu else ():
        print(
            f"{name} against {theirs}: {statistics.median(wall[theirs]) / statistics.median(wall[name]):.2f}x by the clock, "
            f"{statistics.median(cpu[theirs]) / statistics.median(cpu[name]):.2f}x by CPU time, {peak[theirs] / peak[name]:.2f}x in memory"
        )
    report(
        Row(
            "a DPO step",
            "trl dpo",
            statistics.median(wall[theirs]) * 1000,
            statistics.median(wall["finery"]) * 1000,
            "ms a step",
            f"weights, pairs, batch, lengths, learning rate, {PRECISION}",
            1.7,
        )
    )
    import torch
    import transformers
    import trl as library

    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, trl {library.__version__}, {torch.get_num_threads()} threads, {PRECISION}, "
        f"{SHAPE['n_layer']} layers of {SHAPE['n_embd']}, {BATCH} pairs of at most {LENGTH} tokens, vocabulary {SHAPE['vocab_size']}, "
        f"{arguments.rounds} rounds of {logged(many) if arguments.gpu else few} and {many} steps"
    )


if __name__ == "__main__":
    main()

"""One iteration of PPO: Finery beside TRL 1.12.0, the last release that had PPO, in one run.

The same GPT-2 shape with the same random weights, the same reward model, prompts, lengths, batch, epochs and learning rate, fp32, one
process. TRL needs a value model of its own; Finery is timed so too, and with a value head on the policy's body, and with LoRA, whose
reference is the policy without it. Each way runs in a process of its own, one after another in every round; iterations after the first are counted, by
the clock and by CPU time, for a machine that is busy otherwise. On a CPU the matrix products of Finery's last iteration are done again
alone (`products.py`): the peer's time over theirs is the highest ratio that could be. A sample is a completion that was written, scored and learnt from.
A ratio above 1 means that Finery is faster, or needs less memory.

TRL 1.12.0 goes into an environment of its own: `python -m venv ENV && ENV/bin/pip install trl==1.12.0 torch`.

    python benchmarks/ppo_step.py --peer ENV/bin/python [--rounds 2] [--steps 6] [--gpu]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from products import alone, products_of
from rows import Row, report

SHAPE = {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128}
VOCABULARY = 4096
PROMPT, RESPONSE, BATCH, EPOCHS, RATE = 16, 32, 32, 4, 1e-5
GPU = "--gpu"
WAYS = {
    "finery": {"value": "separate"},
    "finery, shared body": {"value": "shared"},
    "finery, shared body, LoRA": {"value": "shared", "tuner": {"name": "lora", "r": 8}},
}


def prepare(folder: Path) -> None:
    """Prompts, a tokenizer, a policy and a reward model of random weights, where both sides find them."""
    import torch
    from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

    from pipelines.data.builtin import find
    from pipelines.data.tokenizers.bpe import ByteBPE

    source = find("builtin/python-docs", None)
    assert source is not None
    texts = [" ".join(str(row).split()) for row in source.load("train")["text"][:4000]]
    tokenizer = ByteBPE().train(iter(texts), VOCABULARY)
    long = [text for text in texts if len(tokenizer(text)["input_ids"]) >= PROMPT + 2]
    (folder / "prompts.txt").write_text("\n".join(long[: 4 * BATCH]) + "\n")
    tokens = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    silent = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    torch.manual_seed(0)
    config = GPT2Config(**SHAPE, **tokens, **silent, vocab_size=len(tokenizer))
    GPT2LMHeadModel(config).save_pretrained(folder / "policy")
    GPT2ForSequenceClassification(
        GPT2Config(**SHAPE, **tokens, **silent, vocab_size=len(tokenizer), num_labels=1)
    ).save_pretrained(folder / "reward")
    for name in ("policy", "reward"):
        tokenizer.save_pretrained(folder / name)


def ours(folder: Path, asked: dict[str, Any]) -> None:
    """Run a recipe with one ppo stage in this process and write `ours.json`."""
    import torch

    from pipelines.core.recipe import validated
    from pipelines.runs.run import run
    from pipelines.trainers.ppo_trainer import PPOTrainer

    torch.set_num_threads(asked["threads"])
    stage = {
        "stage": "ppo",
        "prompts": {"path": str(folder / "prompts.txt"), "max_length": PROMPT},
        "reward": {"checkpoint": str(folder / "reward")},
        **asked["keys"],
        "arguments": {
            "max_steps": asked["steps"],
            "global_batch_size": BATCH,
            "response_length": RESPONSE,
            "num_ppo_epochs": EPOCHS,
            "learning_rate": RATE,
            "kl_coef": 0.05,
            "local_rollout_forward_batch_size": BATCH,
            "save_strategy": "no",
            "save_steps": 10**6,
        },
    }
    data = {
        "name": "ours",
        "model": {"checkpoint": str(folder / "policy")},
        "launch": {"num_processes": 1, "mixed_precision": "no"},
        "stages": (stage,),
    }
    clocks: list[tuple[float, float]] = []
    original = PPOTrainer.training_step

    least: list[float] = []

    def timed(self: Any, *given: Any, **keywords: Any) -> Any:
        clocks.append((time.perf_counter(), time.process_time()))  # an iteration begins where the one before has ended
        if len(clocks) < asked["steps"] or GPU in sys.argv:
            return original(self, *given, **keywords)
        learnt: list[Any] = []  # of the last one, whose time is not counted
        products = products_of(lambda: learnt.append(original(self, *given, **keywords)))
        least.append(alone(products, time.process_time))
        return learnt[0]

    PPOTrainer.training_step = timed  # type: ignore[method-assign]
    run(validated(data, folder), folder / f"run-{time.time_ns()}")
    peak = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )
    (folder / "ours.json").write_text(
        json.dumps({"clocks": clocks, "peak": peak, "products": min(least, default=None)})
    )


def started(command: list[str], folder: Path, result: str) -> dict[str, Any]:
    """What a child process wrote."""
    root = Path(__file__).resolve().parents[1]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **({} if GPU in sys.argv else {"CUDA_VISIBLE_DEVICES": ""}),
        "FINERY_HOME": str(folder / "home"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if command[0] == sys.executable:
        environment["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if said.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{said.stdout[-1500:]}{said.stderr[-3000:]}")
    found: dict[str, Any] = json.loads((folder / result).read_text())
    return found


def main() -> None:
    """Print samples a second, the peaks and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the Python of an environment with TRL 1.12.0")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(GPU, action="store_true", help="on a GPU, which neither side sees otherwise")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        ours(Path(arguments.child[0]), json.loads(arguments.child[1]))
        return
    if not arguments.peer:
        parser.error("--peer is missing: the Python of an environment with TRL 1.12.0")
    theirs = "trl 1.12.0"
    ways = [name for name in WAYS if "LoRA" not in name or not arguments.gpu]
    wall: dict[str, list[float]] = {name: [] for name in (theirs, *ways)}
    cpu: dict[str, list[float]] = {name: [] for name in wall}
    peak = dict.fromkeys(wall, 0)
    products: dict[str, list[float]] = {name: [] for name in ways}
    versions = ""
    common = {"steps": arguments.steps, "threads": arguments.threads}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        for _ in range(arguments.rounds):
            for name in wall:
                if name == theirs:
                    words = common | {
                        "batch": BATCH,
                        "prompt": PROMPT,
                        "response": RESPONSE,
                        "epochs": EPOCHS,
                        "rate": RATE,
                    }
                    script = str(Path(__file__).resolve().with_name("ppo_step_trl.py"))
                    found = started([arguments.peer, script, str(folder), json.dumps(words)], folder, "trl.json")
                    versions = found["versions"]
                else:
                    words = common | {"keys": WAYS[name]}
                    found = started(
                        [sys.executable, str(Path(__file__).resolve()), "--child", str(folder), json.dumps(words)],
                        folder,
                        "ours.json",
                    )
                for (begun, begun_cpu), (ended, ended_cpu) in itertools.pairwise(found["clocks"]):
                    wall[name].append(ended - begun)
                    cpu[name].append(ended_cpu - begun_cpu)
                peak[name] = max(peak[name], int(found["peak"]))
                if found.get("products") is not None:
                    products[name].append(found["products"])
    for name in wall:
        by_clock, by_cpu = BATCH / statistics.median(wall[name]), BATCH / statistics.median(cpu[name])
        print(
            f"{name:28} {by_clock:7.1f} samples/s by the clock {by_cpu:7.1f} by CPU time {peak[name] / 2**20:7.0f} MiB at the peak"
        )
    for name in ways:
        print(
            f"{name} against {theirs}: {statistics.median(wall[theirs]) / statistics.median(wall[name]):.2f}x by the clock, "
            f"{statistics.median(cpu[theirs]) / statistics.median(cpu[name]):.2f}x by CPU time, {peak[theirs] / peak[name]:.2f}x in memory"
        )
    for name in ("finery", "finery, shared body"):
        threads = "" if arguments.gpu else f", threads: {arguments.threads}"
        equal = f"weights, reward model, prompts, lengths, epochs, learning rate, fp32{threads}"
        if products[name]:
            seconds = statistics.median(products[name])
            equal += f"; its products alone {seconds:.2f} s of {BATCH} samples, a ratio of {statistics.median(cpu[theirs]) / seconds:.2f}"
        report(
            Row(
                f"PPO, value {WAYS[name]['value']}",
                "TRL 1.12.0",
                BATCH / statistics.median(wall[theirs]),
                BATCH / statistics.median(wall[name]),
                "samples a second",
                equal,
                2.0,
            )
        )
    import torch
    import transformers

    print(
        f"{versions}; finery: transformers {transformers.__version__}, torch {torch.__version__}; {arguments.threads} threads, fp32, {SHAPE['n_layer']} layers of {SHAPE['n_embd']}, "
        f"vocabulary {VOCABULARY}, {BATCH} prompts of {PROMPT} tokens, completions of {RESPONSE}, {EPOCHS} epochs, {arguments.rounds} rounds of {arguments.steps} iterations"
    )


if __name__ == "__main__":
    main()

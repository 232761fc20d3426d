"""Pretraining: the time until a held-out loss, `finery run` beside what run_mlm and run_clm do, in one run.

The peer is the best-configured Trainer: text tokenised once and packed into full blocks, transformers' own collator,
bf16 where the machine is faster in it, fused AdamW, a linear schedule with warm-up. It trains for a fixed time, with
each of several learning rates; the lowest held-out loss is what has to be reached. Finery trains from the same weights on
the same text with `optim: muon`, for shorter and longer, each run with a whole schedule of its own, and the time until
that loss is read off the line between the two runs around it. Both losses are computed by the same program, from the
saved models, in fp32, on the same held-out blocks with the same masks. The plain step of both sides is timed first.

`--step-only` ends there, and reports beside the time the peak of memory and, where Finery measured it, the share of the
machine's rate of matrix products: with `--shape base` for BERT-base and GPT-2 of 124 million parameters. `--compile`
sets `torch_compile` on both sides.

    python benchmarks/pretraining.py [--objective masked_lm|causal_lm] [--minutes 10] [--rates 1e-3 2e-3 4e-3]
    python benchmarks/pretraining.py --objective causal_lm --shape base --step-only --steps 20 100
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rows import Row, report
from step_times import Times, a_step, callback, of_run

VOCABULARY, SHARE = 8192, 0.15
"""Entries of the tokenizer, and the share of words that are masked."""


class Shape(NamedTuple):
    """A model and its batch."""

    width: int
    layers: int
    batch: int
    block: int
    words: dict[str, int]
    """Rows of the vocabulary, by objective: those of the models that are named for the shape."""


SHAPES = {
    "mini": Shape(256, 4, 32, 128, {"masked_lm": VOCABULARY, "causal_lm": VOCABULARY}),
    "base": Shape(768, 12, 64, 512, {"masked_lm": 30_522, "causal_lm": 50_257}),
}
PARTS = (0.2, 1 / 3, 0.5, 1.0)
"""Shares of the peer's time that Finery trains for."""


class Trained(NamedTuple):
    """One training."""

    seconds: float
    model: Path
    peak: int
    """Bytes of memory at most, of the GPU where there is one."""
    share: float | None = None
    """Of the machine's rate of matrix products, that one token a second takes; None where it was not measured."""
    times: Times = {}
    """Of the logs."""


def prepare(folder: Path, objective: str, shape: Shape) -> None:
    """Text, a tokenizer, blocks and a model of random weights, where both sides find them."""
    import numpy as np
    import torch
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    from pipelines.data.builtin import find
    from pipelines.data.tokenizers.bpe import ByteBPE
    from pipelines.data.tokenizers.wordpiece import WordPiece

    source = find("builtin/python-docs", None)
    assert source is not None
    texts = {split: [str(text) for text in source.load(split)["text"]] for split in ("train", "validation")}
    masked = objective == "masked_lm"
    tokenizer = (WordPiece() if masked else ByteBPE()).train(iter(texts["train"]), VOCABULARY)
    end = tokenizer.sep_token_id if masked else tokenizer.eos_token_id
    for split, rows in texts.items():
        ids = [each for row in tokenizer(rows, add_special_tokens=False)["input_ids"] for each in (*row, end)]
        whole = len(ids) // shape.block * shape.block
        np.save(folder / f"{split}.npy", np.array(ids[:whole], dtype=np.int64).reshape(-1, shape.block))
        (folder / f"{split}.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    torch.manual_seed(0)
    size, heads = max(len(tokenizer), shape.words[objective]), shape.width // 64
    if masked:
        words: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model: Any = BertForMaskedLM(
            BertConfig(
                hidden_size=shape.width,
                num_hidden_layers=shape.layers,
                num_attention_heads=heads,
                intermediate_size=4 * shape.width,
                vocab_size=size,
                pad_token_id=tokenizer.pad_token_id,
                **words,
            )
        )
    else:
        words = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": end, "eos_token_id": end}
        places = {"n_embd": shape.width, "n_layer": shape.layers, "n_head": heads, "n_positions": shape.block}
        model = GPT2LMHeadModel(GPT2Config(**places, **words, vocab_size=size))
    model.save_pretrained(folder / "start")
    tokenizer.save_pretrained(folder / "start")


def opened(folder: Path, objective: str) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    return (AutoModelForMaskedLM if objective == "masked_lm" else AutoModelForCausalLM).from_pretrained(folder)


def peer(
    folder: Path, objective: str, shape: Shape, steps: int, logs: int, rate: float, out: Path, compiled: bool = False
) -> None:
    """The best-configured Trainer, in a process of its own; prints its seconds and its peak of memory."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments

    from pipelines.runs.hardware import precision

    tokenizer = AutoTokenizer.from_pretrained(folder / "start")
    masked = objective == "masked_lm"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    blocks = [{"input_ids": row} for row in torch.from_numpy(np.load(folder / "train.npy"))]
    times: Times = {}
    trainer = Trainer(
        opened(folder / "start", objective),
        TrainingArguments(
            str(out),
            max_steps=steps,
            per_device_train_batch_size=shape.batch,
            learning_rate=rate,
            weight_decay=0.01,
            warmup_steps=0.1,
            adam_beta2=0.98,
            optim="adamw_torch_fused",
            bf16=precision("auto") == "bf16",
            torch_compile=compiled,
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to="none",
            logging_steps=logs,
            disable_tqdm=True,
            remove_unused_columns=False,
        ),
        data_collator=DataCollatorForLanguageModeling(
            tokenizer, **({"mlm": True, "mlm_probability": SHARE} if masked else {"mlm": False})
        ),
        train_dataset=blocks,
        callbacks=[callback(times)],
    )
    ended = trainer.train()
    trainer.save_model(str(out / "model"))
    from pipelines.trainers.throughput import peak_memory

    print(json.dumps({"seconds": ended.metrics["train_runtime"], "peak": peak_memory(), "times": times}))


def held_out(model_folder: Path, folder: Path, objective: str) -> float:
    """Nats a predicted token of the held-out blocks, in fp32, with masks that depend on nothing but the block."""
    import numpy as np
    import torch

    model = opened(model_folder, objective).eval()
    blocks = torch.from_numpy(np.load(folder / "validation.npy"))
    draws = torch.rand(blocks.shape, generator=torch.Generator().manual_seed(1))
    mask = int(json.loads((folder / "mask.json").read_text())) if objective == "masked_lm" else -1
    total, count = 0.0, 0
    with torch.no_grad():
        for rows, chances in zip(blocks.split(32), draws.split(32), strict=True):
            if objective == "masked_lm":
                asked = chances < SHARE
                logits = model(rows.masked_fill(asked, mask)).logits[asked]
                labels = rows[asked]
            else:
                logits, labels = model(rows).logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten()
            total += torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum").item()
            count += len(labels)
    return total / count


def run(command: list[str], folder: Path, home: Path) -> str:
    """What the command said."""
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "FINERY_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def theirs(
    folder: Path, objective: str, shape: str, steps: int, rate: float, logs: int, compiled: bool = False
) -> Trained:
    out = folder / f"peer-{steps}-{rate}"
    words = [
        "--peer",
        str(folder),
        str(steps),
        str(logs),
        str(rate),
        str(out),
        "--objective",
        objective,
        "--shape",
        shape,
    ]
    words += ["--compile"] if compiled else []
    said = run([sys.executable, str(Path(__file__).resolve()), *words], folder, folder)
    taken = json.loads(said.strip().split("\n")[-1])
    times = {int(step): when for step, when in taken["times"].items()}
    return Trained(taken["seconds"], out / "model", taken["peak"], times=times)


def ours(
    folder: Path,
    objective: str,
    shape: Shape,
    steps: int,
    rate: float,
    optimizer: str,
    logs: int,
    compiled: bool = False,
) -> Trained:
    name = f"ours-{steps}-{time.time_ns()}"
    words = {"name": objective, **({"probability": SHARE} if objective == "masked_lm" else {})}
    recipe = {
        "name": name,
        "model": {"checkpoint": str(folder / "start")},
        "launch": {"num_processes": 1, "mixed_precision": "auto"},
        "stages": [
            {
                "stage": "pretrain",
                "objective": words,
                "datasets": [{"path": str(folder / "train.jsonl")}],
                "block_size": shape.block,
                "arguments": {
                    "max_steps": steps,
                    "per_device_train_batch_size": shape.batch,
                    "learning_rate": rate,
                    "weight_decay": 0.01,
                    "warmup_steps": 0.1,
                    "adam_beta2": 0.98,
                    "optim": optimizer,
                    "torch_compile": compiled,
                    "save_strategy": "no",
                    "logging_steps": logs,
                },
            }
        ],
    }
    (folder / f"{name}.yaml").write_text(json.dumps(recipe))
    run([sys.executable, "-m", "pipelines", "run", f"{name}.yaml"], folder, folder / "home")
    stage = next((folder / "runs" / name / "stages").glob("01-*"))
    metrics = json.loads((stage / "metrics.json").read_text())
    used = metrics.get("train_utilisation")
    each = None if used is None else used / metrics["train_tokens_per_second"]
    times = of_run(folder / "runs" / name)
    return Trained(metrics["train_runtime"], stage / "model", int(metrics["peak_memory_bytes"]), each, times)


def report_step(work: str, tokens: int, peer: Trained, own: Trained, steps: dict[str, float]) -> None:
    """The rows of a step of so many tokens: its time, its memory, and its share of what the machine can do."""
    import torch

    from pipelines.runs.hardware import precision
    from pipelines.trainers.throughput import matrix_rate

    same = "weights, text, batch"
    report(Row(f"{work}: a step", "best-configured Trainer", steps["peer"] * 1000, steps["finery"] * 1000, "ms", same))
    least = peer.peak / 2**20, own.peak / 2**20
    report(Row(f"{work}: peak memory", "best-configured Trainer", *least, "MiB at most", same, 4.0))
    if own.share is not None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        computed = precision("auto")
        rate = matrix_rate(device, computed) / 1e12
        name = "measured rate of large products"
        same = "operations of products that a step really did, counted by torch"
        found = own.share * tokens / steps["finery"] * rate
        in_words = "fp32" if computed == "no" else computed
        report(Row(f"{work}: {in_words} rate", name, rate, found, "TFLOP a second", same, 0.5))


def reached(target: float, points: list[tuple[float, float]]) -> float:
    """Seconds until a loss, on the lines between (seconds, loss); infinite where it is not reached."""
    if points[0][1] <= target:
        return points[0][0]
    for (before, high), (after, low) in pairwise(points):
        if low <= target < high:
            return before + (after - before) * (high - target) / (high - low)
    return math.inf


def main() -> None:
    """Print the losses of both sides and the ratio of times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objective", choices=("masked_lm", "causal_lm"), default="causal_lm")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rates", type=float, nargs="+", default=(1e-3, 2e-3, 4e-3))
    parser.add_argument("--rate", type=float, default=4e-3, help="Finery's, for Muon")
    parser.add_argument("--optimizer", default="muon")
    parser.add_argument("--shape", choices=SHAPES, default="mini")
    parser.add_argument("--compile", action="store_true", help="by torch.compile, on both sides")
    parser.add_argument("--step-only", action="store_true", help="time steps, and train until no loss")
    parser.add_argument(
        "--steps", type=int, nargs=2, default=(10, 40), help="few and many, between whose logs is timed"
    )
    parser.add_argument("--peer", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    shape = SHAPES[given.shape]
    if given.peer:
        place, steps, logs, rate, out = given.peer
        peer(Path(place), given.objective, shape, int(steps), int(logs), float(rate), Path(out), given.compile)
        return
    from transformers import AutoTokenizer

    seconds = given.minutes * 60
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder, given.objective, shape)
        (folder / "mask.json").write_text(json.dumps(AutoTokenizer.from_pretrained(folder / "start").mask_token_id))
        few, many = given.steps
        step, longest = {}, {}
        for name, side in {
            "peer": lambda: theirs(folder, given.objective, given.shape, many, given.rates[0], few, given.compile),
            "finery": lambda: ours(
                folder, given.objective, shape, many, given.rate, given.optimizer, few, given.compile
            ),
        }.items():
            longest[name] = side()
            step[name] = a_step(longest[name].times, few, many)
            print(f"{name}: {step[name] * 1000:.0f} ms a step", file=sys.stderr)
        if given.step_only:
            work = f"{given.objective}, {shape.layers} layers of {shape.width}, {shape.batch} x {shape.block} tokens"
            work += ", compiled" if given.compile else ""
            report_step(work, shape.batch * shape.block, longest["peer"], longest["finery"], step)
            return
        best = math.inf
        for rate in given.rates:
            steps = round(seconds / step["peer"])
            trained = theirs(folder, given.objective, given.shape, steps, rate, steps)
            loss = held_out(trained.model, folder, given.objective)
            print(f"peer, rate {rate:g}: {trained.seconds:.0f} s, held-out loss {loss:.4f}", file=sys.stderr)
            if loss < best:
                best, peers = loss, trained.seconds
        points = []
        for part in PARTS:
            steps = round(part * seconds / step["finery"])
            trained = ours(folder, given.objective, shape, steps, given.rate, given.optimizer, steps)
            loss = held_out(trained.model, folder, given.objective)
            print(f"finery, {given.optimizer}: {trained.seconds:.0f} s, held-out loss {loss:.4f}", file=sys.stderr)
            points.append((trained.seconds, loss))
            if loss <= best:
                break
    report(
        Row(
            f"{given.objective} until the held-out loss {best:.3f} that the peer has after {given.minutes:g} minutes",
            "best-configured Trainer",
            peers,
            reached(best, points),
            "s",
            f"weights, text, batch; a step takes {step['peer'] * 1000:.0f} and {step['finery'] * 1000:.0f} ms",
            3.0,
        )
    )


if __name__ == "__main__":
    main()

"""Memory and time of causal-LM training with a large vocabulary: `finery run` beside transformers' Trainer, in one run.

Both train the same GPT-2 shape from the same random weights on the same blocks, which are one batch, so that every step
has the same loss on both sides whatever the order. Precision is bf16 where asked, the optimizer fused AdamW, without
dropout. Each side runs in processes of its own, with few and with more steps. Peak memory is the most that torch held of the
GPU, and without one the most that the process was resident with, as the kernel tells its parent (`ru_maxrss`); beside it stands the same less that of a process that
has imported transformers' Trainer and loaded the model. The time of a step is the difference over the steps between.
The sides take turns, and medians of the rounds are compared. A ratio of memory below 1 means that Finery needs less, a
ratio of time above 1 that it is faster. On a machine that does other work, processor time with one thread
(OMP_NUM_THREADS=1) says more than seconds.

    python benchmarks/vocabulary_loss.py [--batch 8] [--length 512] [--vocabulary 50257] [--width 256] [--rounds 3] [--fp32]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rows import Row, report

LAYERS, RATE = 4, 1e-4
TOKENIZER = 2_000
"""Entries of the tokenizer that the text is read with; the model's vocabulary is larger, as a Hub model's would be."""
MIB = 2**20


class Taken(NamedTuple):
    """What one training took."""

    seconds: float
    """Of the steps, as the trainer says."""
    loss: float
    """Mean of all steps."""
    peak: int
    """Bytes that the process was resident with at most."""
    processor: float
    """Seconds that processors spent on the whole process, in all of its threads."""


def prepare(folder: Path, given: argparse.Namespace) -> None:
    """The text, its blocks, a tokenizer and a model of random weights, where both sides find them."""
    import numpy as np
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from pipelines.data import python_docs
    from pipelines.data.packing import pack
    from pipelines.data.tokenizers.bpe import ByteBPE

    texts = [row["text"] for row in python_docs.text_rows("train")]
    tokenizer = ByteBPE().train(iter(texts), TOKENIZER)
    wanted, tokens, used = given.batch * given.length, 0, []
    for text in texts:
        longer = tokens + len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1
        if tokens < wanted and longer < wanted + given.length:  # whole blocks for one batch, and no more
            tokens, used = longer, [*used, text]
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in used))
    blocks = pack(tokenizer, iter(used), given.length, folder, "benchmark", "stream")
    if len(blocks) != given.batch:
        sys.exit(f"the text makes {len(blocks)} blocks where {given.batch} are needed: lower --batch or --length")
    np.save(folder / "blocks.npy", blocks)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=given.vocabulary,
        n_positions=given.length,
        n_embd=given.width,
        n_layer=LAYERS,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    GPT2LMHeadModel(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


def peer(folder: Path, steps: int, bf16: bool) -> None:
    """The best-configured Trainer, in a process of its own; prints what it took. Without steps it only loads."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, default_data_collator

    blocks = np.load(folder / "blocks.npy").tolist()
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    if not steps:
        return
    trainer = Trainer(
        model,
        TrainingArguments(
            str(folder / "peer"),
            max_steps=steps,
            per_device_train_batch_size=len(blocks),
            learning_rate=RATE,
            optim="adamw_torch_fused",
            bf16=bf16,
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to="none",
            logging_steps=steps,
            disable_tqdm=True,
        ),
        data_collator=default_data_collator,
        # A first token is predicted by nobody: as a label, the Trainer would divide by it all the same.
        train_dataset=[{"input_ids": block, "labels": [-100, *block[1:]]} for block in blocks],
    )
    ended = trainer.train()
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    print(json.dumps({"seconds": ended.metrics["train_runtime"], "loss": ended.training_loss, "on_gpu": on_gpu}))


def run(command: list[str], folder: Path, home: Path) -> tuple[str, int, float]:
    """(what the command said, the most that one of its processes was resident with in bytes, processor seconds)."""
    environment = {
        **os.environ,
        "FINERY_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    with tempfile.TemporaryFile("w+") as output:
        child = os.posix_spawnp(
            command[0],
            command,
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, output.fileno(), descriptor) for descriptor in (1, 2)],
        )
        _, status, usage = os.wait4(child, 0)
        output.seek(0)
        said = output.read()
    if status:
        sys.exit(f"{' '.join(command)} failed:\n{said[-3000:]}")
    return said, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), usage.ru_utime + usage.ru_stime


def theirs(folder: Path, steps: int, bf16: bool) -> Taken:
    words = ["--peer", str(folder), str(steps), *([] if bf16 else ["--fp32"])]
    said, peak, processor = run([sys.executable, str(Path(__file__).resolve()), *words], folder, folder)
    took = json.loads(said.strip().split("\n")[-1]) if steps else {"seconds": 0.0, "loss": 0.0, "on_gpu": None}
    return Taken(took["seconds"], took["loss"], took["on_gpu"] or peak, processor)


def ours(folder: Path, steps: int, bf16: bool, given: argparse.Namespace) -> Taken:
    name = f"ours-{steps}-{time.time_ns()}"
    recipe = {
        "name": name,
        "model": {"checkpoint": str(folder / "model")},
        "launch": {"num_processes": 1, "mixed_precision": "bf16" if bf16 else "no"},
        "stages": [
            {
                "stage": "pretrain",
                "objective": "causal_lm",
                "datasets": [{"path": str(folder / "texts.jsonl")}],
                "block_size": given.length,
                "arguments": {
                    "max_steps": steps,
                    "per_device_train_batch_size": given.batch,
                    "learning_rate": RATE,
                    "save_strategy": "no",
                    "logging_steps": steps,
                },
            }
        ],
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(recipe))
    with tempfile.TemporaryDirectory() as home:
        os.chdir(folder)
        _, peak, processor = run([sys.executable, "-m", "pipelines", "run", str(path)], folder, Path(home))
        metrics = json.loads(next((folder / "runs" / name / "stages").glob("*/metrics.json")).read_text())
    peak = int(metrics["peak_memory_bytes"]) if on_gpu() else peak
    return Taken(metrics["train_runtime"], metrics["train_loss"], peak, processor)


def on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def main() -> None:
    """Print memory, time and loss of both sides, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=50_257)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, nargs=2, default=(2, 6))
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        peer(Path(given.peer[0]), int(given.peer[1]), not given.fp32)
        return
    import torch
    import transformers

    few, many = given.steps
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder, given)
        sides = {
            "Trainer": lambda steps: theirs(folder, steps, not given.fp32),
            "finery": lambda steps: ours(folder, steps, not given.fp32, given),
        }
        loaded = 0 if on_gpu() else theirs(folder, 0, False).peak
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        processor: dict[str, list[float]] = {name: [] for name in sides}
        peaks: dict[str, list[int]] = {name: [] for name in sides}
        losses: dict[str, float] = {}
        for _ in range(given.rounds):
            for name, side in sides.items():
                short, long = side(few), side(many)
                seconds[name].append((long.seconds - short.seconds) / (many - few))
                processor[name].append((long.processor - short.processor) / (many - few))
                peaks[name].append(max(short.peak, long.peak))
                losses[name] = long.loss
                print(
                    f"{name}: {seconds[name][-1]:.2f} s and {processor[name][-1]:.2f} processor s a step, {peaks[name][-1] / MIB:,.0f} MiB, loss {long.loss:.5f}",
                    file=sys.stderr,
                )
    peak = {name: statistics.median(each) for name, each in peaks.items()}
    second = {name: statistics.median(each) for name, each in seconds.items()}
    busy = {name: statistics.median(each) for name, each in processor.items()}
    for name in sides:
        print(
            f"{name:8} {peak[name] / MIB:8,.0f} MiB at most, {(peak[name] - loaded) / MIB:8,.0f} more than loaded, "
            f"{second[name]:6.2f} s and {busy[name]:6.2f} processor s a step, mean loss of {many} steps {losses[name]:.5f}"
        )
    work = f"causal LM, {given.vocabulary:,} words, {given.batch} x {given.length} tokens"
    same = f"mean loss of {many} steps {losses['finery']:.5f} and {losses['Trainer']:.5f}"
    report(
        Row(
            f"{work}: peak memory",
            "Trainer",
            peak["Trainer"] / MIB,
            peak["finery"] / MIB,
            "MiB at most",
            same,
            4.0 if on_gpu() else 2.0,
        )
    )
    report(Row(f"{work}: a step", "Trainer", second["Trainer"], second["finery"], "s", same))
    print(
        f"memory {peak['finery'] / peak['Trainer']:.2f} of the Trainer's, without what is loaded "
        f"({loaded / MIB:,.0f} MiB) {(peak['finery'] - loaded) / (peak['Trainer'] - loaded):.2f}; "
        f"{second['Trainer'] / second['finery']:.2f} times as fast, {busy['Trainer'] / busy['finery']:.2f} by processor time"
    )
    print(
        f"GPT-2 of {LAYERS} layers of {given.width}, vocabulary {given.vocabulary:,}, batch {given.batch} x "
        f"{given.length}, {'fp32' if given.fp32 else 'bf16'}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, {torch.get_num_threads()} threads, {given.rounds} rounds of {few} and {many} steps"
    )


if __name__ == "__main__":
    main()

"""Steps of fine-tuning a classifier: `finery run` beside the best-configured transformers Trainer, in one run.

Both train the same BERT shape from the same random weights on the same rows, with the same batch, learning rate, weight
decay, precision (bf16 where the machine is faster in it), dropout, lengths and optimizer. The peer is not the Trainer's
default but what an expert sets: rows tokenised once, padded to the longest of their batch (on a GPU to a multiple of
eight, without cuDNN's attention, which plans each length anew), grouped by length, fused AdamW, batches copied without
waiting, eager attention on a CPU (faster there than sdpa), no column or device work in the loop. `--compile` sets
`torch_compile` on both sides. The time of a step is that between the logs of two steps, without start-up and saving. The
peer's batches fall in length over each 50 of them (28 of MRPC's), and Finery's do not: `--steps` are to be multiples of that.
The sides take turns, and the medians of the rounds are compared. A ratio above 1 means that Finery is faster. Both mean losses are printed: the order of rows and the
numbers of dropout differ, so that they are near each other and not equal. On a CPU the matrix products of Finery's steps
are done again alone (`products.py`): the peer's time over theirs is the highest ratio that could be.

    FINERY_DATA=<mirror> python benchmarks/fine_tuning.py [--task glue/sst2] [--shape mini] [--rounds 5] [--steps 50 250]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from products import alone, products_of
from rows import Row, report
from step_times import a_step, callback, of_run

SHAPES: dict[str, dict[str, int]] = {
    "mini": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "minilm": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
}
"""Of BERT-Mini, and of MiniLM-L6-H384."""
VOCABULARY, BATCH, LENGTH, RATE, DECAY = 30_522, 32, 128, 1e-4, 0.01


class Taken(NamedTuple):
    """What one training took."""

    seconds: float
    """Of a step."""
    loss: float
    """Mean of all steps."""


def prepare(folder: Path, task: str, shape: str) -> None:
    """The rows, a tokenizer and a model of random weights, where both sides find them."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    from pipelines.core.registry import TASKS
    from pipelines.data.tokenizers.wordpiece import WordPiece

    rows = TASKS.load(task).rows("train", None)
    pairs = rows.pairs or [None] * len(rows)
    tokenizer = WordPiece().train(
        (text for texts in zip(rows.texts, pairs, strict=True) for text in texts if text), VOCABULARY
    )
    torch.manual_seed(0)
    config = BertConfig(**SHAPES[shape], vocab_size=VOCABULARY, pad_token_id=tokenizer.pad_token_id)
    BertForMaskedLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    lines = [
        json.dumps({"text": text, "pair": pair, "label": label})
        for text, pair, label in zip(rows.texts, pairs, rows.labels, strict=True)
    ]
    (folder / "rows.jsonl").write_text("\n".join(lines))


def peer(folder: Path, steps: tuple[int, int], bf16: bool, compiled: bool) -> None:
    """The best-configured Trainer, in a process of its own; prints what it took."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().split("\n")]
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available()
    torch.backends.cuda.enable_cudnn_sdp(False)  # which plans each length anew
    attention = None if on_gpu else "eager"  # on a CPU faster than sdpa, with dropout in bf16
    model = AutoModelForSequenceClassification.from_pretrained(
        folder / "model", num_labels=2, attn_implementation=attention
    )
    pairs = None if rows[0]["pair"] is None else [row["pair"] for row in rows]
    encoded = tokenizer([row["text"] for row in rows], pairs, truncation=True, max_length=LENGTH)
    examples = [{**{key: encoded[key][at] for key in encoded}, "labels": row["label"]} for at, row in enumerate(rows)]
    times: dict[int, float] = {}
    trainer = Trainer(
        model,
        TrainingArguments(
            str(folder / "peer"),
            max_steps=steps[1],
            per_device_train_batch_size=BATCH,
            learning_rate=RATE,
            weight_decay=DECAY,
            optim="adamw_torch_fused",
            train_sampling_strategy="group_by_length",
            bf16=bf16,
            torch_compile=compiled,
            use_cpu=not on_gpu,
            save_strategy="no",
            report_to="none",
            logging_steps=steps[0],
            disable_tqdm=True,
            remove_unused_columns=False,
            accelerator_config={"non_blocking": on_gpu},
        ),
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if on_gpu else None),
        train_dataset=examples,
        callbacks=[callback(times)],
    )
    ended = trainer.train()
    print(json.dumps({"seconds": a_step(times, *steps), "loss": ended.training_loss}))


def run(command: list[str], folder: Path, home: Path) -> str:
    """What the command said."""
    environment = {
        **os.environ,
        "FINERY_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def theirs(folder: Path, steps: tuple[int, int], bf16: bool, compiled: bool) -> Taken:
    words = ["--peer", str(folder), "--steps", *map(str, steps)]
    words += [*(["--bf16"] if bf16 else []), *(["--compile"] if compiled else [])]
    said = run([sys.executable, str(Path(__file__).resolve()), *words], folder, folder)
    return Taken(**json.loads(said.strip().split("\n")[-1]))


def ours(folder: Path, steps: tuple[int, int], bf16: bool, compiled: bool, task: str) -> Taken:
    name = f"ours-{time.time_ns()}"
    recipe: dict[str, Any] = {
        "name": name,
        "model": {"checkpoint": str(folder / "model")},
        "launch": {"num_processes": 1, "mixed_precision": "bf16" if bf16 else "no"},
        "stages": [
            {
                "stage": "supervised",
                "task": task,
                "max_length": LENGTH,
                "arguments": {
                    "max_steps": steps[1],
                    "per_device_train_batch_size": BATCH,
                    "learning_rate": RATE,
                    "weight_decay": DECAY,
                    "save_strategy": "no",
                    "torch_compile": compiled,
                    "logging_steps": steps[0],
                },
            }
        ],
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(recipe))
    with tempfile.TemporaryDirectory() as home:
        run([sys.executable, "-m", "pipelines", "run", str(path)], folder, Path(home))
        metrics = json.loads(next((folder / "runs" / name / "stages").glob("*/metrics.json")).read_text())
    return Taken(a_step(of_run(folder / "runs" / name), *steps), metrics["train_loss"])


def least(folder: Path, steps: int, bf16: bool, sampled: int = 16) -> float:
    """Seconds of the matrix products of a step as Finery does it: the mean of some batches of that many steps."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
    from transformers.trainer_pt_utils import LengthGroupedSampler

    from pipelines.objectives.losses import classification_loss

    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().split("\n")]
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    pairs = None if rows[0]["pair"] is None else [row["pair"] for row in rows]
    encoded = tokenizer([row["text"] for row in rows], pairs, truncation=True, max_length=LENGTH)
    generator = torch.Generator().manual_seed(0)
    order = list(LengthGroupedSampler(BATCH, lengths=[len(ids) for ids in encoded["input_ids"]], generator=generator))
    model = AutoModelForSequenceClassification.from_pretrained(
        folder / "model", num_labels=2, attn_implementation="eager"
    ).train()
    collate = DataCollatorWithPadding(tokenizer)

    def step(at: int) -> None:
        places = order[at * BATCH : (at + 1) * BATCH]
        batch = dict(collate([{key: encoded[key][place] for key in encoded} for place in places]))
        batch["labels"] = torch.tensor([rows[place]["label"] for place in places])
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = classification_loss(model, batch, head_alone=True)[0]
        loss.backward()

    step(0)  # which tries what the head reads
    there = min(steps, len(rows) // BATCH)
    chosen = range(0, there, max(1, there // sampled))
    return alone(products_of(lambda: [step(at) for at in chosen])) / len(chosen)


def main() -> None:
    """Print the time of a step on both sides, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="glue/sst2")
    parser.add_argument("--shape", choices=SHAPES, default="mini")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, nargs=2, default=(50, 250), help="few and many; many is a multiple of few")
    parser.add_argument("--fp32", action="store_true", help="where the machine is faster in bf16, too")
    parser.add_argument("--compile", action="store_true", help="by torch.compile, on both sides")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--bf16", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        peer(Path(given.peer), given.steps, given.bf16, given.compile)
        return
    import torch
    import transformers

    from pipelines.runs.hardware import precision

    few, many = given.steps
    mixed = not given.fp32 and precision("auto") == "bf16"
    taken: dict[str, list[float]] = {"Trainer": [], "finery": []}
    losses: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder, given.task, given.shape)
        sides = {
            "Trainer": lambda: theirs(folder, given.steps, mixed, given.compile),
            "finery": lambda: ours(folder, given.steps, mixed, given.compile, given.task),
        }
        for _ in range(given.rounds):
            for name, side in sides.items():
                done = side()
                taken[name].append(done.seconds)
                losses[name] = done.loss
                print(f"{name}: {taken[name][-1] * 1000:.1f} ms a step, loss {losses[name]:.4f}", file=sys.stderr)
        products = None if torch.cuda.is_available() else least(folder, many, mixed)
    medians = {name: statistics.median(each) for name, each in taken.items()}
    for name, each in medians.items():
        print(f"{name:10} {each * 1000:8.1f} ms a step, mean loss of {many} steps {losses[name]:.4f}")
    equal = f"mean loss of {many} steps {losses['finery']:.4f} and {losses['Trainer']:.4f}"
    if products is not None:
        print(f"its matrix products alone {products * 1000:.1f} ms, {medians['Trainer'] / products:.2f} times as fast")
        equal += f"; its products alone {products * 1000:.1f} ms, a ratio of {medians['Trainer'] / products:.2f}"
    report(
        Row(
            f"fine-tune {given.task}, {given.shape}" + (", compiled" if given.compile else ""),
            "best-configured Trainer",
            medians["Trainer"] * 1000,
            medians["finery"] * 1000,
            "ms a step",
            equal,
            1.5,
        )
    )
    print(
        f"{given.task}, {given.shape}, batch {BATCH}, {'bf16' if mixed else 'fp32'}, vocabulary {VOCABULARY:,}, torch "
        f"{torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads, {given.rounds} "
        f"rounds, steps {few} to {many}"
    )


if __name__ == "__main__":
    main()

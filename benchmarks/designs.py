"""Positions × norms × attention scoring × initial weights, at equal parameters and tokens: which choice matters?

Every cell is a small decoder pretrained with a causal LM on `english_novels` and scored in bits per byte on held-out
novels, beside a bigram model over the same tokens. Cells differ in `position`, `norm_position`, `attention_scoring` and
initial weights; the feed-forward width is chosen so that each has as many weights as the reference, as nearly as whole
numbers allow. Initial weights are `normal` (all of them 0.02), `wide words` (the same but word embeddings of
hidden_size^-0.5, Vaswani et al. 2017's, so that sines of 0.7 do not drown them) or `xavier_uniform`. Seeds change the initial weights and the order of the text; vocabulary, text, steps and learning rate are the same for all. A
stopped study goes on where it was.

    FINERY_DATA=<mirror> python benchmarks/designs.py --out designs.jsonl [--seeds 1 2 3] [--steps 200]
        [--attention_scoring …] [--initial_weights …]             # some choices of a factor alone
    python benchmarks/designs.py --out designs.jsonl --table          # as Markdown

The noise floor is the pooled standard deviation over the seeds of a cell. A main effect is the mean over all cells with a
choice; its standard error follows from the noise floor and the number of runs behind it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import get_linear_schedule_with_warmup

POSITIONS = ("none", "learned", "sinusoidal", "rotary", "alibi", "relative")
NORMS = ("post", "pre", "sandwich")
SCORINGS = ("scaled_dot_product", "dot_product", "general", "additive", "cosine")
WEIGHTS = ("normal", "wide words", "xavier_uniform")
FACTORS = {
    "position": POSITIONS,
    "norm_position": NORMS,
    "attention_scoring": SCORINGS,
    "initial_weights": WEIGHTS,
}
REFERENCE = {"position": "rotary", "norm_position": "pre", "attention_scoring": "scaled_dot_product"}
DEFAULT = {"initial_weights": "normal"}
"""The choice of lines that were written before their factor was."""

SHAPE: dict[str, Any] = {
    "family": "decoder",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-5,
}
VOCABULARY, BLOCK, BATCH, LEARNING_RATE = 1024, 64, 16, 4e-3
TRAIN, HELD_OUT = 400, 40
"""Novels' parts (about 8 kB each) that are trained on, and that are held out."""


def shape(choice: dict[str, str]) -> dict[str, Any]:
    """The architecture of a cell, with the feed-forward width that comes nearest to the reference's weights."""
    from pipelines.architectures.arithmetic import parameter_count

    def count(words: dict[str, Any]) -> int:
        return parameter_count({**words, "vocab_size": VOCABULARY}, "causal_lm")["total"]

    goal = count({**SHAPE, **REFERENCE})
    words = {**SHAPE, **choice}
    start = words.pop("initial_weights", "normal")
    words["initializer"] = "normal" if start == "wide words" else start
    each = count({**words, "intermediate_size": 2}) - count({**words, "intermediate_size": 1})
    words["intermediate_size"] += round((goal - count(words)) / each)
    return words


class Text:
    """The vocabulary, the training blocks and the held-out blocks that all runs share."""

    def __init__(self, cache: Path) -> None:
        from pipelines.data.packing import end_of_text
        from pipelines.data.sentences import lay_out
        from pipelines.data.sources import find
        from pipelines.data.tokenizers.bpe import ByteBPE
        from pipelines.evaluation.ngrams import fit

        source = find("english_novels", None)
        novels = {
            split: list(source.load(split)["text"][:rows])
            for split, rows in (("train", TRAIN), ("validation", HELD_OUT))
        }
        self.tokenizer = ByteBPE().train(novels["train"], VOCABULARY)
        end = end_of_text(self.tokenizer)
        train, held_out = (
            lay_out("stream", self.tokenizer, texts, BLOCK, cache, f"{split} {len(texts)}")
            for split, texts in novels.items()
        )
        self.train = train
        self.held_out = np.stack([held_out[place]["input_ids"] for place in range(len(held_out))]).astype(np.int64)
        tokens = np.concatenate([train[place]["input_ids"] for place in range(len(train))]).astype(np.int64)
        ngrams = fit([(tokens, np.array([0]))], len(self.tokenizer), end)
        asked, left = self.held_out[:, 1:].reshape(-1), self.held_out[:, :-1].reshape(-1)
        words = self.tokenizer.convert_ids_to_tokens(list(range(len(self.tokenizer))))
        lengths = np.array([len(word) for word in words])  # byte-level: one letter of a token is one byte of the text
        lengths[self.tokenizer.all_special_ids] = 0
        self.bytes = int(lengths[asked].sum())
        self.bigram = float(ngrams.bigram_bits(left, asked).sum()) / self.bytes
        self.unigram = float(ngrams.unigram_bits(asked).sum()) / self.bytes


def train(text: Text, choice: dict[str, str], seed: int, steps: int) -> dict[str, Any]:
    """One run: its bits per byte on the held-out blocks, its weights, and the seconds of its training steps."""
    from pipelines.architectures import FineryConfig, FineryForCausalLM
    from pipelines.objectives.causal_lm import CausalLM
    from pipelines.trainers.trainer import order

    torch.manual_seed(seed)
    words = shape(choice) | {"vocab_size": VOCABULARY, "pad_token_id": text.tokenizer.pad_token_id}
    model = FineryForCausalLM._from_config(FineryConfig(**words), attn_implementation="eager")
    if choice["initial_weights"] == "wide words":
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=SHAPE["hidden_size"] ** -0.5)
    objective = CausalLM()
    collate = objective.collate(text.tokenizer, seed, model.config)
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98))
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    places = order(seed, 0, len(text.train), BATCH)
    model.train()
    started = time.process_time()
    for step in range(steps):
        chosen = places[step * BATCH : (step + 1) * BATCH]
        batch = collate([{**text.train[int(place)], "draw": int(place)} for place in chosen])
        items = (batch["labels"] != -100).sum()
        sums, _ = objective.loss(model, batch)
        loss = sums.sum() / items
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if not torch.isfinite(loss):
            return {"failed": f"the loss is {loss.item()} at step {step + 1}"}
    seconds = time.process_time() - started
    model.eval()
    total = 0.0
    with torch.no_grad():
        for part in torch.from_numpy(text.held_out).split(128):
            logits = model(input_ids=part).logits[:, :-1].float()
            total += torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), part[:, 1:].reshape(-1), reduction="sum"
            ).item()
    weights = sum(weight.numel() for weight in model.parameters())
    return {"bits_per_byte": total / math.log(2) / text.bytes, "parameters": weights, "seconds": round(seconds, 2)}


def measure(out: Path, seeds: Iterable[int], steps: int, factors: dict[str, tuple[str, ...]]) -> None:
    """Run every cell of `factors` that `out` does not hold yet; one JSON line each."""
    known = {(*(line[factor] for factor in FACTORS), line["seed"]) for line in read(out)}
    with tempfile.TemporaryDirectory() as place:
        text = Text(Path(place))
        if steps * BATCH > len(text.train):
            raise SystemExit(
                f"{steps} steps need {steps * BATCH} blocks, and the text has {len(text.train)}: fewer --steps"
            )
        cells = [(seed, cell) for seed in seeds for cell in itertools.product(*factors.values())]
        for number, (seed, cell) in enumerate(cells, start=1):
            if (*cell, seed) in known:
                continue
            choice = dict(zip(FACTORS, cell, strict=True))
            line = {**choice, "seed": seed, "steps": steps, "bigram": text.bigram, "unigram": text.unigram}
            line |= train(text, choice, seed, steps)
            with open(out, "a") as file:
                file.write(json.dumps(line) + "\n")
            print(
                f"{number}/{len(cells)} {'-'.join(cell)}, seed {seed}: {line.get('bits_per_byte', line.get('failed'))}",
                file=sys.stderr,
                flush=True,
            )


def read(out: Path) -> list[dict[str, Any]]:
    """The lines measured so far."""
    return [DEFAULT | json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def table(lines: list[dict[str, Any]]) -> str:
    """The noise floor, main effects, pairs of choices, and every cell, as Markdown."""
    good = [line for line in lines if "bits_per_byte" in line]
    cells: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for line in good:
        cells[tuple(line[factor] for factor in FACTORS)].append(line["bits_per_byte"])
    repeated = [scores for scores in cells.values() if len(scores) > 1]
    spread = sum(statistics.variance(scores) * (len(scores) - 1) for scores in repeated)
    if not repeated:
        raise SystemExit("no cell has two runs yet, so the noise floor is unknown; measure a second seed first")
    noise = math.sqrt(spread / sum(len(scores) - 1 for scores in repeated))
    low, high = min(line["parameters"] for line in good), max(line["parameters"] for line in good)
    text = [
        f"{len(good)} runs in {len(cells)} cells, {len(lines) - len(good)} failed; {low:,} to {high:,} weights; noise floor "
        f"(standard deviation over seeds within a cell) {noise:.4f} bits per byte; bigram {good[0]['bigram']:.3f}, "
        f"unigram {good[0]['unigram']:.3f}."
    ]
    for factor, choices in FACTORS.items():
        if len({line[factor] for line in good}) == 1:
            continue
        text += [
            "",
            f"| {factor} | bits per byte, mean | ± standard error | runs | seconds a run |",
            "|---|---|---|---|---|",
        ]
        rows = []
        for choice in choices:
            chosen = [line for line in good if line[factor] == choice]
            if not chosen:
                continue
            scores = [line["bits_per_byte"] for line in chosen]
            seconds = statistics.median(line["seconds"] for line in chosen)
            rows.append(
                (
                    statistics.mean(scores),
                    f"| {choice} | {statistics.mean(scores):.4f} | {noise / math.sqrt(len(scores)):.4f} | {len(scores)} | {seconds:.1f} |",
                )
            )
        text += [row for _, row in sorted(rows)]
    varied = [factor for factor in FACTORS if len({line[factor] for line in good}) > 1]
    for first, second in itertools.combinations(varied, 2):
        text += [
            "",
            f"{first} × {second}, mean over seeds and the other factors:",
            "",
            f"| | {' | '.join(FACTORS[second])} |",
            "|---" * (len(FACTORS[second]) + 1) + "|",
        ]
        for one in FACTORS[first]:
            means = []
            for two in FACTORS[second]:
                scores = [line["bits_per_byte"] for line in good if line[first] == one and line[second] == two]
                means.append(f"{statistics.mean(scores):.3f}" if scores else "–")
            text.append(f"| {one} | {' | '.join(means)} |")
    text += ["", "Every cell, mean over seeds and, in brackets, lowest to highest:", ""]
    columns = sorted(
        {cell[2:] for cell in cells}, key=lambda pair: [(*SCORINGS, *WEIGHTS).index(each) for each in pair]
    )
    shown = [" · ".join(column) for column in columns]
    text += [f"| position · norm_position | {' | '.join(shown)} |", "|---" * (len(columns) + 1) + "|"]
    for position, norm in itertools.product(POSITIONS, NORMS):
        found = [cells.get((position, norm, *column), []) for column in columns]
        text.append(f"| {position} · {norm} | {' | '.join(in_brackets(scores) for scores in found)} |")
    return "\n".join(text)


def in_brackets(scores: list[float]) -> str:
    """Mean and range of a cell's runs."""
    if not scores:
        return "–"
    around = f" ({min(scores):.3f} to {max(scores):.3f})" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.3f}{around}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--table", action="store_true")
    for option in ("--position", "--norm_position", "--attention_scoring", "--initial_weights"):
        choices = FACTORS[option.removeprefix("--")]
        parser.add_argument(option, nargs="+", choices=choices, default=choices)
    words = parser.parse_args()
    if words.table:
        print(table(read(words.out)))
    else:
        measure(words.out, words.seeds, words.steps, {factor: tuple(getattr(words, factor)) for factor in FACTORS})

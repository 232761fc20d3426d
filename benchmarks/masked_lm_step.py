"""One masked-LM training step: Finery's way beside transformers' own, in one run.

Peer: `BertForMaskedLM` called with `labels`, as transformers' examples do: logits over the vocabulary at every position.
Ours: the same model, the same weights and the same batch through `token_loss`, whose head sees masked positions
only. Both losses are checked to be equal first. A ratio above 1 means that ours is faster. A second ratio compares eager
with sdpa attention; Finery takes eager on a CPU.

    python benchmarks/masked_lm_step.py [--rounds 10]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rows import Row, report
from transformers import BertConfig, BertForMaskedLM

from pipelines.objectives.losses import token_loss

SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 8192,
}
BATCH, LENGTH, SHARE = 32, 128, 0.15


def model(attention: str) -> BertForMaskedLM:
    """The same BERT-Mini at every call, without dropout."""
    torch.manual_seed(0)
    config = BertConfig(**SHAPE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForMaskedLM._from_config(config, attn_implementation=attention)


def batch() -> dict[str, torch.Tensor]:
    """Random tokens, 15 % of them to be predicted."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(5, SHAPE["vocab_size"], (BATCH, LENGTH), generator=generator)
    wanted = torch.rand(BATCH, LENGTH, generator=generator) < SHARE
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.masked_fill(~wanted, -100)}


def seconds(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median seconds of each step; the steps take turns, so that a noisy moment hits all of them."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 2):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if number >= 2:
                taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    """Print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    data = batch()
    eager, sdpa = model("eager"), model("sdpa")
    count = int(data["labels"].ne(-100).sum())
    ours = token_loss(eager, data)[0] / count
    torch.testing.assert_close(ours, eager(**data).loss, rtol=1e-5, atol=1e-5)

    def step(loss: Callable[[], torch.Tensor], network: BertForMaskedLM) -> Callable[[], None]:
        def run() -> None:
            network.zero_grad()
            loss().backward()

        return run

    taken = seconds(
        {
            "transformers, all positions": step(lambda: eager(**data).loss, eager),
            "finery, masked positions": step(lambda: token_loss(eager, data)[0] / count, eager),
            "finery, sdpa": step(lambda: token_loss(sdpa, data)[0] / count, sdpa),
        },
        rounds,
    )
    for name, each in taken.items():
        print(f"{name:30} {each * 1000:8.1f} ms")
    report(
        Row(
            "a masked-LM step",
            "BertForMaskedLM",
            taken["transformers, all positions"] * 1000,
            taken["finery, masked positions"] * 1000,
            "ms a step",
            "the loss to 1e-5",
        )
    )
    print(f"eager against sdpa:                     {taken['finery, sdpa'] / taken['finery, masked positions']:.2f}x")
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, fp32, 4 layers of 256, batch {BATCH} x {LENGTH}, vocabulary {SHAPE['vocab_size']}"
    )


if __name__ == "__main__":
    main()

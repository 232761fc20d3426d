"""A classifier whose last layer runs for the first token alone, beside the whole layer, in one run.

Both are the same BERT with the same weights on the same batch: a training step (forward, backward, gradient norm, fused
AdamW) and an evaluation pass, in bf16. The sides take turns; medians of processor time with one thread are compared, so
that other work on the machine counts little. A ratio above 1 means that the first token alone is faster.

    python benchmarks/first_token.py [--rounds 12]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import BertConfig, BertForSequenceClassification

from pipelines.objectives.losses import classification_loss

SHAPES = {
    "mini": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}
"""Of BERT-Mini, and of MiniLM-L6-H384."""
BATCHES = ((32, 13), (32, 50), (8, 256))
"""Texts, and tokens of each: as in SST-2, in MRPC, and of long texts."""
VOCABULARY = 8_000
"""Of which a fine-tuning reads some thousand rows, and learns no others."""


def step(model: BertForSequenceClassification, batch: dict[str, torch.Tensor]) -> Callable[[bool], float]:
    """A training step with or without the first token alone; its loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def run(first_token: bool) -> float:
        model.train()
        with torch.autocast("cpu", torch.bfloat16):
            loss = classification_loss(model, batch, first_token=first_token)[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return run


def evaluation(model: BertForSequenceClassification, batch: dict[str, torch.Tensor]) -> Callable[[bool], float]:
    """A pass without gradients, with or without the first token alone; its loss."""

    def run(first_token: bool) -> float:
        model.eval()
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            return classification_loss(model, batch, first_token=first_token)[0].item()

    return run


def medians(side: Callable[[bool], float], rounds: int) -> dict[bool, float]:
    """Processor seconds of both sides, which take turns."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 2):
        for first_token in (True, False) if number % 2 else (False, True):
            started = time.process_time()
            side(first_token)
            if number >= 2:
                taken[first_token].append(time.process_time() - started)
    return {first_token: statistics.median(each) for first_token, each in taken.items()}


def main() -> None:
    """Print milliseconds, ratios and the difference of losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for name, shape in SHAPES.items():
        for texts, tokens in BATCHES:
            torch.manual_seed(0)
            model = BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, **shape))
            ids = torch.randint(5, VOCABULARY, (texts, tokens))
            batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:, 1] % 2}
            loss = evaluation(model, batch)
            apart = abs(loss(True) - loss(False)) / loss(False)
            for what, side in (("training step", step(model, batch)), ("evaluation", loss)):
                both = medians(side, rounds)
                print(
                    f"{name:7} {texts:2} x {tokens:3} {what:13} {both[False] * 1000:7.1f} ms, first token "
                    f"{both[True] * 1000:7.1f} ms, {both[False] / both[True]:.2f}x, losses apart by {apart:.1e}",
                    flush=True,
                )
    print(f"bf16, torch {torch.__version__}, one thread, processor time, {rounds} rounds")


if __name__ == "__main__":
    main()

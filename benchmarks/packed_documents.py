"""Packed documents that do not see each other: attention by sequences beside masks of every token against every other.

Both sides take the same training step, the loss with its gradients, of the same GPT-2 (or BERT) on the same batches of
random tokens whose documents are log-normally long; collating is part of it, since the masks are made there. The peer
is what `cross_document_attention: false` was before: a ready mask and the attention that is usual on the device, eager
on a processor and sdpa on a GPU. Losses are compared first. On a processor seconds are those that it worked; on a GPU
they are waited for.

    python benchmarks/packed_documents.py [--shape mini|base] [--objective causal_lm|masked_lm] [--block 1024]
        [--batch 4] [--mean 300] [--precision no|bf16] [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rows import Row, report

from pipelines.core.interfaces import IGNORED
from pipelines.models import varlen
from pipelines.objectives.attention_masks import SeparateDocuments
from pipelines.objectives.batches import tensors
from pipelines.objectives.losses import token_loss

SHAPES = {"mini": (256, 4, 4, 8192), "base": (768, 12, 12, 50_257)}
"""Width, layers, heads and words; `base` is GPT-2 of 124 million parameters."""
END = 3
CLOSE = {"no": 1e-4, "bf16": 2e-3}
"""How close the losses must be, relatively."""


def model(objective: str, shape: str, block: int, attention: str, device: str) -> Any:
    """The same weights at every call, without dropout."""
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    width, layers, heads, words = SHAPES[shape]
    torch.manual_seed(0)
    if objective == "causal_lm":
        gpt2 = GPT2Config(
            vocab_size=words,
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            n_positions=block,
            bos_token_id=END,
            eos_token_id=END,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        return GPT2LMHeadModel._from_config(gpt2, attn_implementation=attention).to(device)
    bert = BertConfig(
        vocab_size=words,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=block,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForMaskedLM._from_config(bert, attn_implementation=attention).to(device)


def blocks(words: int, rows: int, block: int, mean: int) -> np.ndarray:
    """Documents of about `mean` tokens, each with its end, as blocks (rows, block)."""
    generator, stream = np.random.default_rng(0), []
    while len(stream) < rows * block:
        length = max(2, int(generator.lognormal(np.log(mean) - 0.32, 0.8)))
        stream += [*generator.integers(END + 1, words, length).tolist(), END]
    return np.asarray(stream[: rows * block], dtype=np.int64).reshape(rows, block)


def asked(causal: bool) -> Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]:
    """The next token, or 15 % of the tokens that stand there."""

    def collate(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = np.stack([each["input_ids"] for each in examples])
        if causal:
            labels = np.concatenate([ids[:, 1:], np.full((len(ids), 1), IGNORED)], axis=1)
        else:
            labels = np.where(np.random.default_rng(1).random(ids.shape) < 0.15, ids, IGNORED)
        return tensors(input_ids=ids, attention_mask=np.ones_like(ids), labels=labels)

    return collate


def main() -> None:
    """Measure both sides in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="mini")
    parser.add_argument("--objective", choices=("causal_lm", "masked_lm"), default="causal_lm")
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--mean", type=int, default=300)
    parser.add_argument("--precision", choices=CLOSE, default="no")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    usual, causal = "sdpa" if device == "cuda" else "eager", given.objective == "causal_lm"
    sides = {name: model(given.objective, given.shape, given.block, usual, device) for name in ("masks", "sequences")}
    varlen.adopt(sides["sequences"])
    ids = blocks(SHAPES[given.shape][3], given.batch, given.block, given.mean)
    examples = [{"input_ids": row} for row in ids]

    def step(name: str) -> tuple[float, float]:
        """(the loss of a step, its seconds)"""
        clock = time.perf_counter if device == "cuda" else time.process_time
        began = clock()
        batch = SeparateDocuments(asked(causal), END, causal, masks=name == "masks")(examples)
        batch = {key: value.to(device) for key, value in batch.items()}
        sides[name].zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=given.precision == "bf16"):
            total, _ = token_loss(sides[name], batch)
        loss = total / batch["labels"].ne(IGNORED).sum()
        loss.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        return loss.item(), clock() - began

    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(given.rounds + 2):
        losses = {}
        for name in sides:
            losses[name], seconds = step(name)
            if number >= 2:
                taken[name].append(seconds)
        torch.testing.assert_close(losses["sequences"], losses["masks"], rtol=CLOSE[given.precision], atol=0.0)
    rates = {name: ids.size / statistics.median(each) for name, each in taken.items()}
    kind = "causal" if causal else "masked"
    work = f"packed {kind} pretraining, {given.shape}, {given.batch} x {given.block}, documents of {given.mean}, "
    report(
        Row(
            work + f"{given.precision}, {device}",
            f"{usual} with masks",
            rates["masks"],
            rates["sequences"],
            "tokens a second",
            f"the loss to {CLOSE[given.precision]:g}",
        )
    )


if __name__ == "__main__":
    main()

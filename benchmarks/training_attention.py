"""What attention costs a training step on a processor: the trainer's own and torch's fused one, beside eager attention.

The body of a model of transformers learns from random vectors of which every second row is padded by an eighth, forward
and backward pass, in turn with each attention from the same weights. With dropout all draw the trainer's random bits, so
that the first losses can be compared, and the fused kernel, which the trainer does not take there, is left out. Printed
are times of eager attention over those of the others, medians over rounds of processor time, and the million scores of a
layer, which decide what a trainer takes (`core.costs`).

    OMP_NUM_THREADS=1 python benchmarks/training_attention.py [--shape bert|llama|gpt2] [--width 384] [--heads 12]
        [--layers 2] [--tokens 4096] [--lengths 32 64 128] [--dropout 0.1] [--precision no|bf16] [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any

import torch

from pipelines.trainers import training_attention
from pipelines.trainers.dropout import few_bits

CLOSE = {"no": 1e-3, "bf16": 0.05}
"""How close first losses must be, relatively."""


def body(given: argparse.Namespace) -> Any:
    """A model without a head, with dropout on attention and nothing else."""
    from transformers import AutoModel, BertConfig, GPT2Config, LlamaConfig

    width, heads, layers, longest = given.width, given.heads, given.layers, max(given.lengths)
    if given.shape == "llama":
        words = {"num_key_value_heads": max(1, heads // 2), "attention_dropout": given.dropout}
        words |= {"num_attention_heads": heads, "num_hidden_layers": layers, "intermediate_size": 4 * width}
        config: Any = LlamaConfig(hidden_size=width, vocab_size=8, max_position_embeddings=longest, **words)
    elif given.shape == "gpt2":
        words = {
            "attn_pdrop": given.dropout,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        config = GPT2Config(n_embd=width, n_head=heads, n_layer=layers, n_positions=longest, vocab_size=8, **words)
    else:
        words = {"attention_probs_dropout_prob": given.dropout, "hidden_dropout_prob": 0.0}
        words |= {"num_attention_heads": heads, "num_hidden_layers": layers, "intermediate_size": 4 * width}
        config = BertConfig(hidden_size=width, vocab_size=8, max_position_embeddings=longest, **words)
    torch.manual_seed(0)
    return AutoModel.from_config(config, attn_implementation="eager").train()


def main() -> None:
    """Print a line for each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("bert", "llama", "gpt2"), default="bert")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64, 128, 256, 512, 1024])
    parser.add_argument("--dropout", type=float, default=0.0, help="on attention")
    parser.add_argument("--precision", choices=CLOSE, default="bf16")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    model = body(given)
    ways = ["eager", training_attention.register(), *([] if given.dropout else ["sdpa"])]

    def step(way: str, number: int, states: torch.Tensor, mask: torch.Tensor) -> tuple[float, float]:
        """(the loss, processor seconds)"""
        model.zero_grad()
        model.config._attn_implementation = way
        began = time.process_time()
        with few_bits() as bits, bits.batch(number):
            with torch.autocast("cpu", torch.bfloat16, enabled=given.precision == "bf16"):
                said = model(inputs_embeds=states, attention_mask=mask)[0].float()
            loss = (said * mask[..., None]).square().mean() * 1e-2 + (said * mask[..., None]).mean()
            loss.backward()
        return loss.item(), time.process_time() - began

    print(f"{vars(given)}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    for length in given.lengths:
        rows = max(1, given.tokens // length)
        states, mask = torch.randn(rows, length, given.width), torch.ones(rows, length, dtype=torch.int64)
        mask[::2, -(length // 8) :] = 0
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for number in range(given.rounds + 1):
            for way in ways:
                found[way].append(step(way, number, states, mask))
        first = {way: found[way][0][0] for way in ways}
        if any(abs(each - first["eager"]) > CLOSE[given.precision] * abs(first["eager"]) for each in first.values()):
            raise SystemExit(f"losses differ at length {length}: {first}")
        taken = {way: [seconds for _, seconds in each[1:]] for way, each in found.items()}
        ratios = (
            f"{way} {statistics.median(a / b for a, b in zip(taken['eager'], taken[way], strict=True)):.2f}"
            for way in ways[1:]
        )
        scores = rows * given.heads * length * length / 1e6
        eager = statistics.median(taken["eager"])
        print(
            f"{rows:4} x {length:<5} {scores:6.1f} M scores  eager {1000 * eager:7.1f} ms  {'  '.join(ratios)}",
            flush=True,
        )


if __name__ == "__main__":
    main()

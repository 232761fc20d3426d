"""Models whose last layer runs behind its attention for the places that are read, beside the whole layer, in one run.

Both are the same model with the same weights on the same batch, without padding: a training step (forward, backward,
gradient norm, fused AdamW) and an evaluation pass, in bf16. The sides take turns; medians of processor time with one
thread are compared, so that other work on the machine counts little. A ratio above 1 means that the cut layer is
faster.

    python benchmarks/read_places.py [--rounds 8] [--cases masked reward]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from pipelines.architectures import configuration_finery, modeling_finery_classification
from pipelines.models import read_places
from pipelines.objectives.losses import classification_loss, token_loss
from pipelines.tasks.preference.training import pair_loss

SHAPES = {"mini": (256, 4, 4, 1024), "minilm": (384, 6, 12, 1536)}
"""Width, layers, heads and feed-forward width of BERT-Mini, and of MiniLM-L6-H384."""
VOCABULARY = 8_000
"""Of which a fine-tuning reads some thousand rows, and learns no others."""
TEXTS, LONGER = ((32, 13), (32, 50), (8, 256)), ((32, 64), (8, 256))
"""Texts, and tokens of each: as in SST-2, in MRPC, and of long texts."""
BERT_WORDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
GPT2_WORDS = ("n_embd", "n_layer", "n_head", "n_inner")

Batch = dict[str, torch.Tensor]
Loss = Callable[[Any, Batch], torch.Tensor]


def model(kind: Any, config: Any, shape: tuple[int, ...], **more: Any) -> Any:
    """A model from scratch that attends as Finery has models attend on a CPU."""
    words = GPT2_WORDS if config is GPT2Config else BERT_WORDS
    named = dict(zip(words, shape, strict=True))
    return kind._from_config(
        config(vocab_size=VOCABULARY, pad_token_id=0, **named, **more), attn_implementation="eager"
    )


def finery(kind: Any, shape: tuple[int, ...]) -> Any:
    """One of ours: a decoder with rotary positions and pre-norm."""
    words = {"family": "decoder", "position": "rotary", "norm_position": "pre"}
    return model(kind, configuration_finery.FineryConfig, shape, **words)


def texts(ids: torch.Tensor) -> Batch:
    """Texts with one of two classes each."""
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[:, 1] % 2}


def answers(ids: torch.Tensor) -> Batch:
    """Pairs of answers, the better ones first."""
    return texts(ids) | {"labels": torch.zeros(len(ids) // 2, dtype=torch.long)}


def options(ids: torch.Tensor) -> Batch:
    """Questions with four options each."""
    grouped = ids.view(-1, 4, ids.shape[1])
    return {"input_ids": grouped, "attention_mask": torch.ones_like(grouped), "labels": grouped[:, 0, 1] % 4}


def labelled(share: float) -> Callable[[torch.Tensor], Batch]:
    """Texts that have a label at this share of their places."""

    def batch(ids: torch.Tensor) -> Batch:
        labels = ids.masked_fill(torch.rand(ids.shape) >= share, -100)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    return batch


def of_text(model: Any, batch: Batch) -> torch.Tensor:
    """The mean loss of a classifier."""
    return classification_loss(model, batch, head_alone=True)[0] / len(batch["labels"])


def of_pairs(model: Any, batch: Batch) -> torch.Tensor:
    """The mean loss of a reward model."""
    return pair_loss(model, batch)[0] / len(batch["labels"])


def of_tokens(model: Any, batch: Batch) -> torch.Tensor:
    """The mean loss of a language model."""
    return token_loss(model, batch)[0] / (batch["labels"] != -100).sum()


heads = modeling_finery_classification
CASES: dict[str, tuple[Callable[[tuple[int, ...]], Any], Callable[[torch.Tensor], Batch], Loss, Any]] = {
    "encoder, classes (BERT)": (
        lambda shape: model(BertForSequenceClassification, BertConfig, shape), texts, of_text, TEXTS
    ),
    "decoder, classes (GPT-2)": (
        lambda shape: model(GPT2ForSequenceClassification, GPT2Config, shape), texts, of_text, TEXTS
    ),
    "decoder, classes (Llama)": (
        lambda shape: model(LlamaForSequenceClassification, LlamaConfig, shape), texts, of_text, TEXTS
    ),
    "decoder, reward (ours)": (lambda shape: finery(heads.FineryForReward, shape), answers, of_pairs, LONGER),
    "decoder, choice (ours)": (lambda shape: finery(heads.FineryForMultipleChoice, shape), options, of_text, LONGER),
    "masked LM, 15 % (BERT)": (
        lambda shape: model(BertForMaskedLM, BertConfig, shape), labelled(0.15), of_tokens, LONGER
    ),
    "causal LM, 25 % (Llama)": (
        lambda shape: model(LlamaForCausalLM, LlamaConfig, shape), labelled(0.25), of_tokens, LONGER
    ),
    "causal LM, 50 % (Llama)": (
        lambda shape: model(LlamaForCausalLM, LlamaConfig, shape), labelled(0.5), of_tokens, LONGER
    ),
    "causal LM, 70 % (Llama)": (
        lambda shape: model(LlamaForCausalLM, LlamaConfig, shape), labelled(0.7), of_tokens, LONGER
    ),
}  # fmt: skip
"""By name: the model, its batch, its loss, and the sizes of batches."""


@contextmanager
def the_layer(cut: bool) -> Iterator[None]:
    """Inside the block the last layer is cut, or runs for all places."""
    before = read_places.can_be_cut
    if not cut:
        read_places.can_be_cut = lambda model, layer: False
    try:
        yield
    finally:
        read_places.can_be_cut = before


def step(network: Any, batch: Batch, loss: Loss) -> Callable[[], float]:
    """A training step; its loss."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, fused=True)

    def run() -> float:
        network.train()
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(network, batch)
        value.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return value.item()

    return run


def evaluation(network: Any, batch: Batch, loss: Loss) -> Callable[[], float]:
    """A pass without gradients; its loss."""

    def run() -> float:
        network.eval()
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            return loss(network, batch).item()

    return run


def medians(side: Callable[[], float], rounds: int) -> dict[bool, float]:
    """Processor seconds of both sides, which take turns."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 2):
        for cut in (True, False) if number % 2 else (False, True):
            with the_layer(cut):
                started = time.process_time()
                side()
                if number >= 2:
                    taken[cut].append(time.process_time() - started)
    return {cut: statistics.median(each) for cut, each in taken.items()}


def main() -> None:
    """Print milliseconds, ratios and the difference of losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cases", nargs="+", default=[""], help="parts of the cases' names")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for case, (build, batch_of, loss, sizes) in CASES.items():
        if not any(part in case for part in arguments.cases):
            continue
        for shape in arguments.shapes:
            for rows, tokens in sizes:
                torch.manual_seed(0)
                network = build(SHAPES[shape])
                batch = batch_of(torch.randint(5, VOCABULARY, (rows, tokens)))
                look = evaluation(network, batch, loss)
                values = []
                for cut in (True, False):
                    with the_layer(cut):
                        values.append(look())
                apart = abs(values[0] - values[1]) / values[1]
                for what, side in (("training step", step(network, batch, loss)), ("evaluation", look)):
                    both = medians(side, arguments.rounds)
                    print(
                        f"{case:24} {shape:7} {rows:2} x {tokens:3} {what:13} {both[False] * 1000:7.1f} ms, read places"
                        f" {both[True] * 1000:7.1f} ms, {both[False] / both[True]:.2f}x, losses apart by {apart:.1e}",
                        flush=True,
                    )
    print(f"bf16, torch {torch.__version__}, one thread, processor time, {arguments.rounds} rounds")


if __name__ == "__main__":
    main()

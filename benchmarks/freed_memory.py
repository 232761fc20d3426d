"""What glibc keeps between two training steps of long texts on a processor, and in how many pieces.

A mini encoder learns from 32 texts of 60 to 512 random tokens a step, in parts as the trainer divides them
(`trainers.halving`), in bfloat16. Printed after some steps: megabytes held, megabytes free in between, free pieces of
more than 100 kB, and the processor time of a step. What changes them is said by the environment:

    GLIBC_TUNABLES=glibc.malloc.tcache_count=0 ONEDNN_PRIMITIVE_CACHE_CAPACITY=128 OMP_NUM_THREADS=1 \\
        python benchmarks/freed_memory.py [--steps 40]
"""

from __future__ import annotations

import argparse
import ctypes
import random
import re
import tempfile
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

from pipelines.models.attention_by_size import attention_by_size
from pipelines.trainers import training_attention
from pipelines.trainers.dropout import few_bits
from pipelines.trainers.halving import Batch, Halving, parts_by_size

VOCABULARY, QUESTIONS, OPTIONS, SHORTEST, LONGEST = 12_146, 8, 4, 60, 512


def batch(generator: random.Random) -> Batch:
    """Options of a question are about as long as each other, and questions are sorted by length."""
    questions = sorted(min(LONGEST, max(SHORTEST, int(generator.gauss(300, 70)))) for _ in range(QUESTIONS))
    lengths = [min(LONGEST, each + generator.randint(0, 12)) for each in questions for _ in range(OPTIONS)]
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, VOCABULARY, mask.shape)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 2, (len(lengths),))}


def freed() -> tuple[int, int]:
    """(megabytes that are free in glibc's first heap, pieces of more than 100 kB among them), by `malloc_info`."""
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile() as file:
        stream = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
        library.malloc_info(0, stream)
        library.fclose(stream)
        said = Path(file.name).read_text().partition("</heap>")[0]
    size = re.search(r'<total type="rest" count="\d+" size="(\d+)"', said)
    pieces = re.findall(r'<size from="(\d+)" to="\d+" total="\d+" count="(\d+)"', said)
    return int(size[1]) >> 20 if size else 0, sum(int(count) for least, count in pieces if int(least) > 100_000)


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    config = BertConfig(**shape, vocab_size=VOCABULARY, num_labels=2, attn_implementation="eager")
    model, generator = BertForSequenceClassification(config).train(), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    halving, began = Halving(parts_by_size(model, mixed=True), recovers=False), time.process_time()

    def passes(part: Batch) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**part).loss
        loss.backward()
        return loss.detach()

    with few_bits() as masks, attention_by_size(model, training_attention.register()):
        for step in range(1, steps + 1):
            with masks.batch(0, step, 0):
                halving.loss(batch(generator), passes, optimizer.zero_grad, lambda parts: None)
            halving.begin()
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                held = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
                megabytes = int(held[1]) >> 10 if held else 0
                free, pieces = freed()
                each = (time.process_time() - began) / step
                print(f"step {step}: {megabytes} MB, {free} MB free, {pieces} pieces, {each:.2f} s")


if __name__ == "__main__":
    main()

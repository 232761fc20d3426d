"""Scoring long texts on a processor: 32 at a time, beside as many as `core.costs.TENSOR_KEPT` lets be.

A model of random weights is asked about questions of RACE (four options each, up to 512 tokens) and of SQuAD (windows
of 384) as an evaluation asks it, twice each way, in turn. Printed are the processor seconds of this process, what the
system takes of them for handing out memory included, and by how much the answers differ.

    FINERY_DATA=<mirror> OMP_NUM_THREADS=1 python benchmarks/long_texts.py [--shape minilm] [--questions 48 192]
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from evaluation import tokenizer
from fine_tuning import SHAPES, VOCABULARY
from transformers import AutoModelForMultipleChoice, AutoModelForQuestionAnswering, BertConfig

from pipelines.core import costs
from pipelines.core.registry import TASKS
from pipelines.models.predict import forward
from pipelines.tasks.extractive_qa.training import collate_questions, encode_questions
from pipelines.tasks.multiple_choice.training import collate_choices, encode_choices

BOUNDS = {"32 at a time": 1 << 50, "by size": costs.TENSOR_KEPT}


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def compare(work: str, ask: Callable[[], list[Any]]) -> None:
    taken: dict[str, list[float]] = {name: [] for name in BOUNDS}
    answers: dict[str, Any] = {}
    for _ in range(2):
        for name, costs.TENSOR_KEPT in BOUNDS.items():
            before = processor_seconds()
            answers[name] = ask()
            taken[name].append(processor_seconds() - before)
    plain, bounded = (statistics.mean(each) for each in taken.values())
    apart = max(float(np.abs(one - other).max()) for one, other in zip(*answers.values(), strict=True))
    print(f"{work}: {plain:.2f} s, {bounded:.2f} s, ratio {plain / bounded:.2f}, answers within {apart:.0e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="minilm")
    parser.add_argument("--questions", type=int, nargs=2, default=(48, 192), help="of RACE, of SQuAD")
    given = parser.parse_args()
    words = tokenizer()
    config = BertConfig(**SHAPES[given.shape], vocab_size=VOCABULARY, pad_token_id=words.pad_token_id)
    torch.manual_seed(0)
    chooser = AutoModelForMultipleChoice.from_config(config)
    asked = encode_choices(words, TASKS.load("race/middle").rows("validation", given.questions[0]), 512)
    compare(
        f"{given.questions[0]} questions of RACE, {given.shape}",
        lambda: forward(
            chooser, asked, partial(collate_choices, words), lambda outputs, _: outputs.logits.numpy(), head_alone=True
        ),
    )
    reader = AutoModelForQuestionAnswering.from_config(config)
    windows = encode_questions(words, TASKS.load("squad").rows("validation", given.questions[1]), 384, 128)

    def both_ends(outputs: Any, inputs: Any) -> list[Any]:
        real = inputs["attention_mask"].bool()
        ends = torch.stack([outputs.start_logits, outputs.end_logits], dim=1)
        return [each[:, seen].numpy() for each, seen in zip(ends, real, strict=True)]

    compare(
        f"{given.questions[1]} questions of SQuAD, {given.shape}",
        lambda: forward(reader, windows, partial(collate_questions, words), both_ends),
    )


if __name__ == "__main__":
    main()

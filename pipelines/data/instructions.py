"""Named tasks of following instructions, and of solving word problems.

Alpaca: Taori et al. 2023, "Stanford Alpaca: An Instruction-following LLaMA Model"; a part of train is held out, as the set
has no other split. Its few rows with an empty output are left out. Self-Instruct: the seed tasks of Wang et al. 2023,
arxiv.org/abs/2212.10560, written by people. GSM8K: Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems",
arxiv.org/abs/2110.14168, whose answers end with `#### ` and a number; that number is compared.
"""

from __future__ import annotations

from pipelines.data.causal import PATTERN_METRICS, TEXT_METRICS, CausalTask
from pipelines.data.tasks import Place

GSM8K_ANSWER = r"#### (\-?[0-9\.\,]+)"
"""The pattern of the authors' own `grade_school_math/dataset.py`."""


def _instructions(name: str, path: str) -> CausalTask:
    return CausalTask(
        name=name, kind="causal", columns=(), label="", metrics=TEXT_METRICS, places={"train": Place(path, None, "train")},
        format="alpaca", skip_empty=True,
    )  # fmt: skip


ALPACA = _instructions("alpaca", "tatsu-lab/alpaca")
SELF_INSTRUCT_SEED = _instructions("self_instruct_seed", "self_instruct_seed")
GSM8K = CausalTask(
    name="gsm8k", kind="causal", columns=(), label="", metrics=PATTERN_METRICS,
    places={split: Place("openai/gsm8k", "main", split) for split in ("train", "test")}, evaluation_splits={"": "test"},
    format="alpaca", names={"instruction": "question", "output": "answer"}, answer_pattern=GSM8K_ANSWER,
)  # fmt: skip

"""Exact resume with every tuner that adapts, and with packed blocks: a run killed in the middle ends as one that was never killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.registry import TUNERS
from tests.end_to_end.test_resume import forked, outcome

RECIPE = """\
name: killed
model:
  architecture: {preset: bert-tiny, hidden_size: 64, intermediate_size: 128, max_position_embeddings: 64}
tokenizer: {train: bpe, vocab_size: 500}
stages:
  - stage: supervised
    task: builtin/python-docs
    tuner: TUNER
    max_length: 32
    max_train_samples: 50
    arguments: {num_train_epochs: 2, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 3, save_steps: 4}
  - {stage: evaluate, max_eval_samples: 40}
"""
VARIANTS = {
    "pissa": "{name: lora, r: 4, init_lora_weights: pissa}",
    "olora": "{name: lora, r: 4, init_lora_weights: olora, use_dora: true}",
    "lora-plus": "{name: lora, r: 4, lora_plus_ratio: 16, lora_dropout: 0.1}",
}
ELSEWHERE = {"fusion": "needs adapters of earlier stages, which the recipe here does not have"}
ADAPTING = {name: name for name in TUNERS if TUNERS.load(name).adapts and name not in ELSEWHERE} | VARIANTS


PACKED = """\
name: killed
model:
  architecture: {preset: gpt-tiny, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 128, max_position_embeddings: 96}
tokenizer: {train: byte_bpe, vocab_size: 500}
stages:
  - stage: supervised
    task: {kind: causal, format: alpaca, columns: {instruction: text, output: source}, train: builtin/python-docs, validation: builtin/python-docs}
    packing: true
    max_length: 96
    max_train_samples: 60
    arguments: {max_steps: 14, global_batch_size: 4, learning_rate: 1e-3, logging_steps: 3, save_steps: 4}
  - {stage: evaluate, max_eval_samples: 10, generation: {max_new_tokens: 4}}
"""


@pytest.mark.long
@pytest.mark.parametrize("tuner", ADAPTING)
def test_a_killed_run_ends_as_if_it_had_not_been(tuner: str, tmp_path: Path) -> None:
    if tuner in TUNERS and (why := TUNERS.load(tuner)().unavailable_reason()) is not None:
        pytest.skip(f"{tuner} {why}")
    killed_and_resumed(RECIPE.replace("TUNER", ADAPTING[tuner]), tmp_path)


@pytest.mark.long
def test_a_killed_run_with_packed_blocks_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    killed_and_resumed(PACKED, tmp_path)


def killed_and_resumed(text: str, tmp_path: Path) -> None:
    """Run the recipe as it is, and once more with a kill in the tenth of 14 steps; both must come to the same."""
    recipe = tmp_path / "killed.yaml"
    recipe.write_text(text)

    def place(name: str, death: tuple[str, int] | None = None) -> Callable[[], Any]:
        words = (str(recipe), [], str(tmp_path / name / "run"), str(tmp_path / name / "home"))
        (tmp_path / name).mkdir(exist_ok=True)
        return lambda: forked(*words, *(() if death is None else (death,)))

    assert place("whole")() == 0
    assert place("killed", ("training step", 10))() == -9  # 14 steps; the checkpoint of the eighth is the newest
    assert place("killed")() == 0
    assert outcome(tmp_path / "killed" / "run") == outcome(tmp_path / "whole" / "run")

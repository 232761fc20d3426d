"""The costs of a ppo stage before it runs: more epochs and a second body cost more, by as much as they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.core.recipe import loads
from pipelines.runs.planning.plan import plan

RECIPE = """\
name: priced
model: {architecture: {preset: gpt-tiny}}
tokenizer: {train: byte_bpe, vocab_size: 400}
stages:
  - stage: ppo
    prompts: {path: builtin/python-docs, text: text, max_length: 8}
    reward: {name: keyword, words: [the]}
    KEYS
    arguments: {max_steps: 10, global_batch_size: 16, response_length: 24, num_ppo_epochs: EPOCHS}
"""


def priced(epochs: int = 1, keys: str = "") -> Any:
    return plan(loads(RECIPE.replace("EPOCHS", str(epochs)).replace("KEYS", keys)), flops_per_second=1e9).stages[0]


def test_an_epoch_costs_a_forward_and_a_backward_pass():
    one, two = priced(1), priced(2)
    assert one.sequence_length == 32
    assert one.steps == 10
    assert one.examples_per_step == 16
    assert two.flops / one.flops == pytest.approx(9 / 6)
    assert one.seconds
    assert one.memory is not None


def test_a_second_body_and_a_copy_of_the_reference_cost_more():
    assert priced(keys="value: separate").flops > priced().flops
    assert priced(keys="tuner: lora").memory.peak < priced().memory.peak


def test_the_plan_says_what_it_leaves_out(tmp_path: Path):
    assert any("keyword" in note for note in priced().notes)

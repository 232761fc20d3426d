"""Whole runs with PPO: a reward that visibly rises, kills that leave no trace, two processes that do what one does."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipelines.core.events import read_events
from tests.end_to_end import forked as children
from tests.end_to_end.test_resume import forked, outcome

RECIPE = """\
name: aligned
launch: {mixed_precision: no}
model:
  architecture: {preset: gpt-tiny, hidden_size: 48, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 96, max_position_embeddings: 64}
tokenizer: {train: byte_bpe, vocab_size: 500}
stages:
  - stage: pretrain
    objective: causal_lm
    datasets: [{path: builtin/python-docs}]
    block_size: 32
    max_train_samples: 1500
    arguments: {max_steps: 100, global_batch_size: 16, learning_rate: 3e-3, logging_steps: 50}
  - stage: ppo
    prompts: {path: builtin/python-docs, text: text, max_length: 8, max_samples: 300}
    reward: {name: keyword, words: [the, a]}
    arguments: {max_steps: 30, global_batch_size: 32, response_length: 12, learning_rate: 1e-3, kl_coef: 0.02, save_steps: 4}
"""
RANDOM = """\
name: aligned
launch: {mixed_precision: no}
model: {architecture: SHAPE}
tokenizer: {train: byte_bpe, vocab_size: 400}
stages:
  - stage: ppo
    prompts: {path: builtin/python-docs, text: text, max_length: 6, max_samples: 40}
    reward: {name: pattern, pattern: "[a-e]"}
    TUNER
    arguments: {max_steps: 6, global_batch_size: 8, response_length: 8, learning_rate: 2e-3, num_ppo_epochs: 2, num_mini_batches: PARTS, save_steps: 2,
      kl_target: 1.0, kl_horizon: 100, reward_normalization: running}
"""
DECODER = "{preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 32}"
BOTH = (
    "{preset: transformer-tiny, hidden_size: 32, num_hidden_layers: 1, num_decoder_layers: 1, num_attention_heads: 2, "
    "intermediate_size: 64, max_position_embeddings: 32}"
)


def written(tmp_path: Path, shape: str = DECODER, tuner: str = "", parts: int = 2) -> Path:
    recipe = tmp_path / "aligned.yaml"
    recipe.write_text(RANDOM.replace("SHAPE", shape).replace("TUNER", tuner).replace("PARTS", str(parts)))
    return recipe


def metrics(run: Path, stage: str = "ppo") -> list[dict[str, Any]]:
    return [
        event["metrics"]
        for event in read_events(run / "events.jsonl")
        if event["event"] == "metric" and event.get("stage") == stage
    ]


def mean(told: list[dict[str, Any]], name: str) -> float:
    return sum(float(each[name]) for each in told) / len(told)


def test_a_keyword_reward_rises_within_a_few_dozen_iterations(tmp_path: Path) -> None:
    recipe = tmp_path / "aligned.yaml"
    recipe.write_text(RECIPE)
    assert forked(str(recipe), [], str(tmp_path / "run"), str(tmp_path / "home")) == 0
    told = metrics(tmp_path / "run")
    assert len(told) == 30
    first, last = told[:5], told[-5:]
    assert mean(last, "reward") > 3 * mean(first, "reward") + 0.1
    assert mean(last, "kl") > mean(first, "kl")
    assert abs(told[0]["kl"]) < 1e-3
    assert (
        json.loads((tmp_path / "run" / "stages" / "02-ppo" / "model" / "head.json").read_text())["kind"] == "causal_lm"
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "reward" in page


@pytest.mark.parametrize(
    ("shape", "tuner"),
    [
        pytest.param(DECODER, "tuner: {name: lora, r: 2}", id="decoder-lora"),
        pytest.param(BOTH, "", id="encoder-decoder-full", marks=pytest.mark.long),
    ],
)
def test_a_killed_run_ends_as_if_it_had_not_been(shape: str, tuner: str, tmp_path: Path) -> None:
    recipe = written(tmp_path, shape, tuner)
    assert forked(str(recipe), [], str(tmp_path / "whole"), str(tmp_path / "home-whole")) == 0
    expected = outcome(tmp_path / "whole")
    assert len(expected["losses"]) == 6
    drawn = random.Random(shape + tuner)
    arguments = (str(recipe), [], str(tmp_path / "run"), str(tmp_path / "home"))
    assert forked(*arguments, ("iteration of ppo", drawn.randint(2, 6))) == -signal.SIGKILL
    assert forked(*arguments, ("optimizer state being saved", 1)) in (-signal.SIGKILL, 0)
    assert forked(*arguments) == 0
    assert outcome(tmp_path / "run") == expected


def test_the_value_function_can_start_as_the_reward_model(tmp_path: Path) -> None:
    pairs = [{"prompt": f"row {n}", "chosen": " a cab", "rejected": " zoo tsu"} for n in range(16)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    text = (
        RANDOM.replace("SHAPE", DECODER)
        .replace("TUNER", "value: reward")
        .replace("PARTS", "2")
        .replace("max_steps: 6", "max_steps: 2")
    )
    taught = (
        "stages:\n  - {stage: pretrain, objective: causal_lm, datasets: [{path: builtin/python-docs}], block_size: 16, max_train_samples: 50, arguments: {max_steps: 1}}\n"
        "  - {stage: reward, id: scores, from: pretrain, task: {kind: preference, train: pairs.jsonl}, max_length: 16, arguments: {max_steps: 2, global_batch_size: 4, learning_rate: 1e-2}}\n"
    )
    text = text.replace("stages:\n", taught).replace(
        'reward: {name: pattern, pattern: "[a-e]"}', "from: pretrain\n    reward: {from: scores}"
    )
    text = text.replace(
        "learning_rate: 2e-3", "learning_rate: 1e-12"
    )  # so that the value function stays what it began as
    recipe = tmp_path / "aligned.yaml"
    recipe.write_text(text)
    assert forked(str(recipe), [], str(tmp_path / "run"), str(tmp_path / "home")) == 0
    stages = tmp_path / "run" / "stages"
    began, ended, policy = (
        load_file(stages / place / "model.safetensors")
        for place in ("02-scores/model", "03-ppo/value/body", "03-ppo/model")
    )
    name = "model.layers.0.attention.query.weight"
    assert torch.allclose(ended[name], began[name], atol=1e-6)
    assert not torch.allclose(ended[name], policy[name], atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("tuner", ["", "tuner: {name: lora, r: 2}"], ids=["full", "lora"])
def test_two_processes_do_what_one_does(tuner: str, tmp_path: Path) -> None:
    """Each minibatch is the whole iteration, so that it does not matter how its rows are dealt out."""
    recipe = written(tmp_path, tuner=tuner, parts=1)
    assert forked(str(recipe), [], str(tmp_path / "alone"), str(tmp_path / "home-alone")) == 0
    two = [str(recipe), ["launch.num_processes=2"], str(tmp_path / "run"), str(tmp_path / "home")]
    assert children.fork(children.run_on_forked_ranks, *two) == 0
    told, alone = metrics(tmp_path / "run"), metrics(tmp_path / "alone")
    assert len(told) == len(alone) == 6
    for both, one in zip(told, alone, strict=True):
        for name in [
            "reward",
            "kl",
            "kl_coef",
            "response_length",
            "entropy",
            "policy_loss",
            "value_loss",
            "advantage_std",
            "grad_norm",
        ]:
            assert both[name] == pytest.approx(one[name], rel=2e-3, abs=2e-4), name

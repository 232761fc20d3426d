"""Every kind of training under every profile: the losses of one process at equal global batches, and the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from pipelines.core.events import read_events
from tests.end_to_end import forked
from tests.end_to_end.test_two_processes import ranks_log

ENCODER = """\
name: encoder
launch: {mixed_precision: no}
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, max_position_embeddings: 64, hidden_dropout_prob: 0, attention_probs_dropout_prob: 0}
tokenizer: {train: wordpiece, vocab_size: 400}
stages:
  - stage: pretrain
    datasets: [{path: builtin/python-docs}]
    block_size: 16
    max_train_samples: 20
    arguments: {max_steps: 4, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1}
  - {stage: pretrain, id: elect, from: model, objective: replaced_token_detection, datasets: [{path: builtin/python-docs}], block_size: 16, max_train_samples: 20, arguments: &few {max_steps: 3, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1}}
  - {stage: supervised, id: full, from: pretrain, task: builtin/python-docs, max_length: 24, max_train_samples: 45, early_stopping_patience: 2, arguments: {num_train_epochs: 2, global_batch_size: 8, per_device_train_batch_size: 1, learning_rate: 1e-3, logging_steps: 1, eval_strategy: epoch, per_device_eval_batch_size: 3, load_best_model_at_end: true}}
  - {stage: supervised, id: lora, from: pretrain, task: builtin/python-docs, max_length: 24, max_train_samples: 45, tuner: {name: lora, r: 4, lora_dropout: 0}, arguments: *few}
  - {stage: supervised, id: adapter, from: pretrain, task: builtin/python-docs, max_length: 24, max_train_samples: 45, tuner: {name: adapter, bottleneck_size: 6}, arguments: *few}
  - {stage: supervised, id: prefix, from: pretrain, task: builtin/python-docs, max_length: 24, max_train_samples: 45, tuner: {name: prefix, num_virtual_tokens: 3}, arguments: *few}
  - {stage: supervised, id: head, from: pretrain, task: builtin/python-docs, max_length: 24, max_train_samples: 45, tuner: last_layer, arguments: *few}
  - stage: multi_task
    id: together
    from: pretrain
    tasks:
      - {task: builtin/python-docs, max_length: 24, max_train_samples: 40}
      - {id: short, task: builtin/python-docs, max_length: 12, max_train_samples: 20, weight: 0.5}
    loss_weighting: uncertainty
    arguments: {num_train_epochs: 1, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1}
  - {stage: evaluate, from: full, max_eval_samples: 37, per_device_eval_batch_size: 5}
  - {stage: publish, from: full, to: published/full}
"""
DECODER = """\
name: decoder
launch: {mixed_precision: no}
model:
  architecture: {preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 96, hidden_dropout_prob: 0, attention_probs_dropout_prob: 0}
tokenizer: {train: byte_bpe, vocab_size: 400}
stages:
  - stage: pretrain
    objective: causal_lm
    datasets: [{path: builtin/python-docs}]
    block_size: 32
    max_train_samples: 60
    arguments: {max_steps: 4, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1, activation_checkpointing: true}
  - {stage: evaluate, id: evaluate, from: pretrain, datasets: [{path: builtin/python-docs, split: validation}], max_eval_samples: 23, per_device_eval_batch_size: 3}
  - {stage: reward, from: pretrain, datasets: &pairs [{path: builtin/python-docs, name: preferences}], max_length: 48, max_train_samples: 40, arguments: &few {max_steps: 3, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1}}
  - {stage: dpo, from: pretrain, datasets: *pairs, max_length: 48, max_train_samples: 40, arguments: {max_steps: 3, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1, eval_strategy: steps, eval_steps: 3, per_device_eval_batch_size: 3}}
  - {stage: dpo, id: dpo-lora, from: pretrain, tuner: {name: lora, r: 4, lora_dropout: 0}, datasets: *pairs, max_length: 48, max_train_samples: 40, arguments: *few}
  - {stage: dpo, id: dpo-stored, from: pretrain, datasets: *pairs, max_length: 48, max_train_samples: 40, arguments: {max_steps: 3, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 1, precompute_ref_log_probs: true}}
  - {stage: kto, from: pretrain, datasets: *pairs, max_length: 48, max_train_samples: 40, arguments: {max_steps: 12, global_batch_size: 8, per_device_train_batch_size: 2, learning_rate: 3e-3, logging_steps: 1}}
  - stage: ppo
    from: pretrain
    prompts: {path: builtin/python-docs, text: text, max_length: 8, max_samples: 40}
    reward: {name: pattern, pattern: "[a-e]"}
    arguments: {max_steps: 3, global_batch_size: 8, response_length: 8, learning_rate: 1e-3, logging_steps: 1}
  - stage: ppo
    id: ppo-lora
    from: pretrain
    tuner: {name: lora, r: 4, lora_dropout: 0}
    prompts: {path: builtin/python-docs, text: text, max_length: 8, max_samples: 40}
    reward: {from: reward}
    arguments: {max_steps: 3, global_batch_size: 8, response_length: 8, learning_rate: 1e-3, logging_steps: 1}
  - {stage: evaluate, id: asked, from: ppo, against: pretrain, prompts: {path: builtin/python-docs, text: text, split: validation, max_length: 8, max_samples: 13}, reward: {from: reward}, response_length: 8, temperature: 0.7}
"""
BOTH = """\
name: both
launch: {mixed_precision: bf16}
model:
  architecture: {preset: transformer-tiny, hidden_size: 32, num_hidden_layers: 2, num_decoder_layers: 2, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 64, hidden_dropout_prob: 0, attention_probs_dropout_prob: 0, activation_dropout_prob: 0}
tokenizer: {train: unigram, vocab_size: 400}
stages:
  - {stage: supervised, id: copy, task: {kind: seq2seq, source: text, target: source, train: builtin/python-docs}, max_source_length: 32, max_target_length: 16, max_train_samples: 60, arguments: &few {max_steps: 4, global_batch_size: 8, per_device_train_batch_size: 1, learning_rate: 1e-3, logging_steps: 1}}
  - {stage: dpo, from: copy, datasets: [{path: builtin/python-docs, name: preferences}], max_length: 32, max_train_samples: 40, arguments: *few}
"""
RECIPES = {"encoder": ENCODER, "decoder": DECODER, "encoder-decoder": BOTH}
PROFILES = [("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("fsdp2", 4)]
RELATIVE = {"loss": 0.02, "grad_norm": 0.05}
"""Without dropout only the order of additions differs; bfloat16 rounds it."""
HELD_OUT = 1e-3
"""Of scores while training, in float32: a row of four that is counted twice changes those of `dpo` by more."""
SMALLEST = 1e-3
"""Of losses near zero, as those of policies are."""
WEIGHTS = 1e-4
"""A tenth of one step's learning rate."""


def numbers(run: Path) -> dict[tuple[str, int, str], float]:
    """The losses and the norms of the gradients, as they were logged, and the scores of the rows that are set aside."""
    told = [event for event in read_events(run / "events.jsonl") if event["event"] == "metric"]
    return {
        (event["stage"], event["step"], name): value
        for event in told
        for name, value in event["metrics"].items()
        if name in RELATIVE or (name.startswith("eval_") and not name.endswith(("_runtime", "_per_second")))
    }


def leaves(value: Any, place: str = "") -> dict[str, Any]:
    """What stands in nested objects and lists, by its place."""
    if not isinstance(value, dict | list):
        return {place: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {key: leaf for name, each in items for key, leaf in leaves(each, f"{place}/{name}").items()}


def assert_same_publication(found: Path, expected: Path) -> None:
    """The same files, and in them the same weights but for the order of additions."""
    names = [{str(path.relative_to(root)) for path in root.rglob("*")} for root in (found, expected)]
    assert names[0] == names[1]
    weights, others = (load_file(str(folder / "model.safetensors")) for folder in (found, expected))
    assert {name: weight.shape for name, weight in weights.items()} == {n: w.shape for n, w in others.items()}
    for name, weight in weights.items():
        assert weight == pytest.approx(others[name], abs=WEIGHTS), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run folder of each recipe on one process."""
    runs = {}
    for name, text in RECIPES.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "recipe.yaml").write_text(text)
        place = (str(folder / "recipe.yaml"), [], str(folder / "run"), str(folder / "home"))
        assert forked.fork(forked.run_recipe, *place, seconds=500) == 0
        runs[name] = folder / "run"
    return runs


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("profile", "processes"), PROFILES)
def test_every_kind_of_training_is_that_of_one_process(
    name: str, profile: str, processes: int, alone: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPES[name])
    words = [f"launch.profile={profile}", f"launch.num_processes={processes}"]
    place = (str(tmp_path / "recipe.yaml"), words, str(tmp_path / "run"), str(tmp_path / "home"))
    assert forked.fork(forked.run_on_forked_ranks, *place, seconds=900) == 0, ranks_log(tmp_path / "run")[-5000:]
    expected, found = numbers(alone[name]), numbers(tmp_path / "run")
    assert found.keys() == expected.keys()
    assert any(name == "eval_loss" for *_, name in expected) == (name != "encoder-decoder")
    for key, number in expected.items():
        assert found[key] == pytest.approx(number, rel=RELATIVE.get(key[2], HELD_OUT), abs=SMALLEST), key
    told = {e["stage"]: e for e in read_events(tmp_path / "run/events.jsonl") if e["event"] == "distributed"}
    assert told.keys() == {stage for stage, *_ in expected}
    for event in told.values():
        shares = [each["local"] / each["global"] for each in event["ranks"]]
        assert len(shares) == processes
        assert all(share == 1 if profile == "ddp" else share < 1.3 / processes for share in shares), shares
    for one in sorted(alone[name].glob("stages/*")):
        both = tmp_path / "run" / "stages" / one.name
        files = [
            {str(path.relative_to(root)) for path in root.rglob("*") if "checkpoints" not in path.parts}
            for root in (one.resolve(), both.resolve())
        ]
        assert files[0] == files[1]
    scores = [sorted(run.glob("stages/*evaluate/metrics.json")) for run in (alone[name], tmp_path / "run")]
    assert len(scores[0]) == (0 if name == "encoder-decoder" else 1)
    for expected_file, found_file in zip(*scores, strict=True):
        expected_scores, found_scores = (leaves(json.loads(file.read_text())) for file in (expected_file, found_file))
        assert found_scores == pytest.approx(expected_scores, rel=0 if name == "encoder" else RELATIVE["loss"])
    folders = sorted(alone[name].parent.glob("published/*"))
    assert [folder.name for folder in folders] == (["full"] if name == "encoder" else [])
    for folder in folders:
        assert_same_publication(tmp_path / "published" / folder.name, folder)

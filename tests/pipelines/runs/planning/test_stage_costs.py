"""The plan of a feedback stage: what is sampled is counted, what another model reads is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.load import loads
from pipelines.runs.hardware import Device
from pipelines.runs.planning.plan import plan
from tests.pipelines.runs.planning.test_plan import CPU

RECIPE = """\
name: x
model: {{architecture: {{preset: {preset}}}}}
tokenizer: {{train: byte_bpe, vocab_size: 600}}
stages:
  - {{stage: pretrain, objective: {objective}, datasets: [{{path: text.jsonl}}], arguments: {{max_steps: 2}}}}
  - {{stage: feedback, prompts: {{path: text.jsonl, max_length: 10{more}}}, judge: {{name: rule, prefer: {{name: keyword, words: [a]}}}}, completions: 3, response_length: 20}}
"""


def planned(
    folder: Path, preset: str = "gpt-tiny", objective: str = "causal_lm", more: str = "", device: Device = CPU
) -> dict:
    (folder / "text.jsonl").write_text('{"text": "some words of a text"}\n' * 50)
    return plan(
        loads(RECIPE.format(preset=preset, objective=objective, more=more), folder=folder), device=device
    ).to_json()["stages"][1]


def test_completions_are_counted_and_questions_told(tmp_path: Path) -> None:
    found = planned(tmp_path)
    assert found["tokens"] == 50 * 3 * 30
    assert found["flops"] > 0
    assert found["seconds"] > 0
    assert any("at most 150 pairs are compared" in note for note in found["notes"])
    assert planned(tmp_path, more=", max_samples: 10")["flops"] == found["flops"] // 5


def test_an_encoder_decoder_reads_its_prompt_once(tmp_path: Path) -> None:
    assert planned(tmp_path, "t5-tiny", "span_corruption")["tokens"] == 50 * 3 * 30


def test_rows_that_cannot_be_counted_leave_it_open(tmp_path: Path) -> None:
    (tmp_path / "prompts.json").write_text('[{"text": "x"}]')
    text = RECIPE.format(preset="gpt-tiny", objective="causal_lm", more="").replace(
        "prompts: {path: text.jsonl", "prompts: {path: prompts.json"
    )
    (tmp_path / "text.jsonl").write_text('{"text": "some words of a text"}\n')
    found = plan(loads(text, folder=tmp_path), device=CPU).to_json()["stages"][1]
    assert found["flops"] is None
    assert any("max_samples" in note for note in found["notes"])


CPU = Device("2 CPU cores", "cpu", 2, "no", {"no": 1e9, "bf16": 2e9})
DECODER = "{preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 96}"
ENCODER_DECODER = "{family: encoder-decoder, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 96}"
STEPS = "max_steps: 10, per_device_train_batch_size: 4"


@pytest.fixture
def folder(tmp_path):
    pairs = [{"prompt": "a", "chosen": f"b {row}", "rejected": f"c {row}"} for row in range(20)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": "a", "completion": "b"}) for _ in range(20)))
    return tmp_path


def planned_of_plan_preferences(folder, stage, architecture=DECODER):
    text = f"name: x\nmodel: {{architecture: {architecture}}}\ntokenizer: {{train: byte_bpe, vocab_size: 500}}\nlaunch: {{num_processes: 1}}\nstages:\n  - {stage}\n"
    return plan(loads(text, folder=folder), device=CPU).stages[0]


@pytest.mark.parametrize(("profile", "parts"), [("ddp", 1), ("fsdp2", 2)])
def test_a_reference_of_its_own_is_divided_where_the_policy_is(folder, profile, parts):
    memory = []
    for free in ("", ", reference_free: true"):
        stage = f"{{stage: dpo, task: {{kind: preference, train: pairs.jsonl}}, max_length: 32, arguments: {{{STEPS}{free}}}}}"
        text = f"name: x\nmodel: {{architecture: {DECODER}}}\ntokenizer: {{train: byte_bpe, vocab_size: 500}}\nlaunch: {{profile: {profile}, num_processes: 2}}\nstages:\n  - {stage}\n"
        found = plan(loads(text, folder=folder), device=CPU).stages[0]
        memory.append(found.memory.peak)
    assert memory[0] - memory[1] == found.all_parameters * 4 // parts


def dpo(folder, settings=STEPS, more="", architecture=DECODER):
    stage = f"{{stage: dpo, task: {{kind: preference, train: pairs.jsonl, validation: 0.2}}, max_length: 32, arguments: {{{settings}}}{more}}}"
    return planned_of_plan_preferences(folder, stage, architecture)


def test_a_pair_is_two_sequences_and_the_reference_one_more_pass_of_each(folder):
    plain = planned_of_plan_preferences(
        folder,
        f"{{stage: supervised, task: {{kind: causal, train: rows.jsonl}}, max_length: 32, arguments: {{{STEPS}}}}}",
    )
    found = dpo(folder)
    assert found.flops == pytest.approx(plain.flops * 2 * 4 / 3, rel=1e-6)
    assert found.tokens == 2 * plain.tokens
    assert found.examples_per_step == 4


def test_a_reference_gathers_divided_weights_once_more(folder):
    def sent(settings):
        stage = (
            f"{{stage: dpo, task: {{kind: preference, train: pairs.jsonl}}, max_length: 32, arguments: {{{settings}}}}}"
        )
        launch = "launch: {profile: fsdp2, num_processes: 2}\n"
        text = f"name: x\nmodel: {{architecture: {DECODER}}}\ntokenizer: {{train: byte_bpe, vocab_size: 500}}\n{launch}stages:\n  - {stage}\n"
        return plan(loads(text, folder=folder), device=CPU).stages[0]

    steps = "max_steps: 10, global_batch_size: 16, per_device_train_batch_size: 4"
    held, alone = sent(steps), sent(f"{steps}, reference_free: true")
    assert held.communication.bytes - alone.communication.bytes == 2 * held.all_parameters * 4 // 2  # of 2 batches


@pytest.mark.parametrize("setting", ["reference_free: true", "loss_type: simpo", "precompute_ref_log_probs: true"])
def test_without_a_reference_beside_it_a_step_costs_three_passes(folder, setting):
    assert dpo(folder, f"{STEPS}, {setting}").flops == pytest.approx(dpo(folder).flops * 3 / 4, rel=1e-6)


def test_the_copy_that_is_held_to_is_in_memory(folder):
    with_copy, without = dpo(folder), dpo(folder, f"{STEPS}, reference_free: true")
    assert with_copy.memory.weights - without.memory.weights == 4 * with_copy.all_parameters
    assert dpo(folder, more=", tuner: lora").memory.weights < with_copy.memory.weights


def test_rows_that_are_held_out_are_not_learnt_from(folder):
    assert dpo(folder, "num_train_epochs: 1, per_device_train_batch_size: 4").steps == 4  # 16 of 20 pairs
    assert dpo(folder, "num_train_epochs: 1, per_device_train_batch_size: 4", ", max_train_samples: 8").steps == 2


def test_an_encoder_decoder_reads_the_prompt_once_for_each_answer(folder):
    found = dpo(folder, architecture=ENCODER_DECODER, more=", max_prompt_length: 16")
    assert (found.sequence_length, found.target_length) == (16, 32)
    assert found.tokens == 10 * 4 * 2 * (16 + 32)


def test_a_reward_model_needs_no_reference(folder):
    found = planned_of_plan_preferences(
        folder,
        f"{{stage: reward, task: {{kind: preference, train: pairs.jsonl}}, max_length: 32, arguments: {{{STEPS}}}}}",
    )
    assert found.tokens == 10 * 4 * 2 * 32
    assert found.flops is not None


@pytest.mark.parametrize(
    ("arguments", "passes"),
    [
        ("", 6),  # three to learn, the reference's, and both for the KL
        (", precompute_ref_log_probs: true", 4),
        (", loss_type: apo_zero_unpaired", 4),
        (", loss_type: apo_zero_unpaired, precompute_ref_log_probs: true", 3),
    ],
)
def test_single_answers_cost_the_passes_of_the_kl_too(folder, arguments, passes):
    kto = planned_of_plan_preferences(
        folder,
        f"{{stage: kto, task: {{kind: preference, train: pairs.jsonl}}, max_length: 32, arguments: {{{STEPS}{arguments}}}}}",
    )
    assert kto.flops == pytest.approx(dpo(folder).flops / 2 * passes / 4, rel=1e-6)


@pytest.mark.parametrize(("beta", "passes"), [(0.0, 4), (0.1, 5)])
def test_a_completion_is_sampled_learnt_and_asked_of_the_reference(folder, beta, passes):
    sampling = "reward: {name: keyword, words: [b]}, prompts: {path: rows.jsonl, text: prompt, max_length: 8}"
    words = f"num_train_epochs: 1, num_generations: 2, global_batch_size: 4, max_completion_length: 24, beta: {beta}"
    found = planned_of_plan_preferences(folder, f"{{stage: grpo, {sampling}, arguments: {{{words}}}}}")
    assert (found.steps, found.sequence_length) == (10, 32)
    single = planned_of_plan_preferences(
        folder, f"{{stage: grpo, {sampling}, arguments: {{{words.replace(f'beta: {beta}', 'beta: 0.0')}}}}}"
    )
    assert found.flops == pytest.approx(single.flops * passes / 4, rel=1e-6)


RECIPE_PLAN_PPO = """\
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


def priced(epochs: int = 1, keys: str = "", arguments: str = "") -> Any:
    recipe = RECIPE_PLAN_PPO.replace("EPOCHS", f"{epochs}, {arguments}" if arguments else str(epochs))
    return plan(loads(recipe.replace("KEYS", keys)), flops_per_second=1e9).stages[0]


def test_an_epoch_costs_a_forward_and_a_backward_pass():
    one, two = priced(1), priced(2)
    assert one.sequence_length == 32
    assert one.steps == 10
    assert one.examples_per_step == 16
    assert two.flops / one.flops == pytest.approx(8 / 5)  # sampling, the reference, and what learns
    assert one.seconds
    assert one.memory is not None


@pytest.mark.parametrize("parts", ["num_mini_batches: 2", "per_device_train_batch_size: 4"])
def test_completions_that_are_learnt_from_in_parts_are_read_once_more(parts: str):
    assert priced(arguments=parts).flops / priced().flops == pytest.approx(6 / 5)
    separate = "value: separate"
    assert priced(keys=separate, arguments=parts).flops / priced(keys=separate).flops == pytest.approx(10 / 8)


def test_a_second_body_and_a_copy_of_the_reference_cost_more():
    assert priced(keys="value: separate").flops > priced().flops
    assert priced(keys="tuner: lora").memory.peak < priced().memory.peak


def test_the_plan_says_what_it_leaves_out(tmp_path: Path):
    assert any("keyword" in note for note in priced().notes)

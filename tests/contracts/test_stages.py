"""What every stage must be: a block that is checked without torch, explains its keys, and comes back as it was written."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.core.config import Block
from pipelines.core.errors import RecipeError
from pipelines.core.load import loads
from pipelines.core.recipe import Recipe, Stage, schema
from pipelines.core.registry import STAGES

RECIPE = """\
name: every-stage
model: {{checkpoint: some/model}}
stages:
  - {{stage: pretrain, id: text, objective: causal_lm, datasets: [{{path: builtin/python-docs}}]}}
  - {{stage: supervised, id: pairs, from: model, task: multi30k/en-de}}
  - {{stage: supervised, id: before, from: model, task: glue/mrpc, tuner: lora}}
  - {stage}
"""
EXAMPLES: dict[str, list[str]] = {
    "pretrain": [
        "{stage: pretrain, datasets: [{path: builtin/python-docs}]}",
        "{stage: pretrain, id: more, from: model, seed: 3, objective: {name: masked_lm, probability: 0.2}, "
        "datasets: [{path: builtin/python-docs}], block_size: 64, tuner: {name: lora, r: 2}, arguments: {max_steps: 5, learning_rate: 1e-3}}",
    ],
    "supervised": [
        "{stage: supervised, task: glue/rte}",
        "{stage: supervised, id: cola, task: glue/cola, tuner: lora, max_length: 64, max_train_samples: 9, early_stopping_patience: 2, "
        "arguments: {eval_strategy: epoch, load_best_model_at_end: true, global_batch_size: 32}}",
        "{stage: supervised, task: multi30k/en-fr}",
        "{stage: supervised, id: copy, task: {kind: seq2seq, source: text, target: source, train: builtin/python-docs}, "
        "objective: {name: mask_predict, label_smoothing: 0.2}, max_source_length: 64, max_target_length: 16}",
    ],
    "multi_task": [
        "{stage: multi_task, from: model, tasks: [{task: glue/rte}, {task: glue/mrpc}]}",
        "{stage: multi_task, id: several, from: model, tasks: [{task: glue/rte, weight: 2.0}, {task: glue/mrpc, id: again, max_length: 64}, "
        "{id: own, task: {kind: classification, columns: [text], label: source, train: builtin/python-docs}}], "
        "sampling: {name: explicit, shares: {rte: 2.0, again: 1.0, own: 1.0}}, loss_weighting: uncertainty, tasks_per_step: 2, "
        "gradient_conflicts: 10, arguments: {eval_strategy: epoch, global_batch_size: 16}, early_stopping_patience: 2}",
        "{stage: multi_task, from: model, form: text_to_text, tasks: [{task: glue/rte}, {task: glue/stsb}], gradient_surgery: pcgrad, tuner: lora}",
    ],
    "reward": [
        "{stage: reward, task: alpaca_eval_preferences}",
        "{stage: reward, id: scores, datasets: [{path: builtin/python-docs, name: preferences}, {path: builtin/python-docs, name: preferences, "
        "split: validation}], max_length: 64, max_prompt_length: 16, skip_bad_rows: true, use_margins: false, tuner: {name: lora, r: 2}, "
        "arguments: {center_rewards_coefficient: 0.01, label_smoothing: 0.1, disable_dropout: false, eval_strategy: epoch, learning_rate: 1e-3}}",
        "{stage: reward, task: {kind: preference, columns: {prompt: text}, train: builtin/python-docs, validation: 0.2, split_seed: 7}}",
    ],
    "dpo": [
        "{stage: dpo, from: text, task: alpaca_eval_preferences}",
        "{stage: dpo, id: held, from: text, task: {kind: preference, train: builtin/python-docs, validation: 0.2}, reference: {from: text}, max_length: 64, "
        "max_prompt_length: 16, chat_template: simple, tuner: {name: lora, r: 2}, early_stopping_patience: 2, arguments: {beta: 0.2, "
        "loss_type: [sigmoid, sft], loss_weights: [1.0, 0.2], precompute_ref_log_probs: true, precompute_ref_batch_size: 4, disable_dropout: false, "
        "eval_strategy: epoch, load_best_model_at_end: true}}",
        "{stage: dpo, from: text, datasets: [{path: builtin/python-docs, name: preferences}], arguments: {loss_type: simpo, beta: 2.0, simpo_gamma: 1.0}}",
        "{stage: dpo, from: text, task: alpaca_eval_preferences, arguments: {loss_type: robust, label_smoothing: 0.1, reference_free: true}}",
    ],
    "kto": [
        "{stage: kto, from: text, task: alpaca_eval_preferences}",
        "{stage: kto, id: single, from: text, datasets: [{path: builtin/python-docs, name: preferences}], max_length: 64, tuner: lora, "
        "arguments: {beta: 0.2, desirable_weight: 1.5, undesirable_weight: 0.5, loss_type: apo_zero_unpaired, disable_dropout: false}}",
    ],
    "ppo": [
        "{stage: ppo, from: text, reward: {name: keyword, words: [good, great]}, prompts: {path: builtin/python-docs, text: text, max_length: 16}}",
        "{stage: ppo, id: aligned, from: text, reward: {checkpoint: some/model}, prompts: {path: builtin/python-docs, text: text}, value: separate, "
        "datasets: [{path: builtin/python-docs}], block_size: 32, tuner: {name: lora, r: 4}, arguments: {response_length: 24, kl_coef: 0.1, "
        "num_ppo_epochs: 2, num_mini_batches: 2, global_batch_size: 16, ptx_coef: 1.5, kl_target: 6.0, kl_estimator: k3, learning_rate: 1e-5}}",
    ],
    "grpo": [
        "{stage: grpo, from: text, reward: {name: keyword, words: [good]}, prompts: {path: builtin/python-docs, max_length: 16}}",
        "{stage: grpo, id: groups, from: text, reward: {name: keyword, words: [good]}, prompts: {path: builtin/python-docs}, tuner: {name: lora, r: 2}, "
        "arguments: {num_generations: 4, beta: 0.02, max_completion_length: 32, temperature: 0.9, loss_type: dr_grpo, scale_rewards: none, epsilon_high: 0.3}}",
    ],
    "rloo": [
        "{stage: rloo, from: text, reward: {name: keyword, words: [good]}, prompts: {path: builtin/python-docs, max_length: 16}}",
        "{stage: rloo, id: left, from: text, reward: {name: keyword, words: [good]}, prompts: {path: builtin/python-docs}, tuner: lora, "
        "arguments: {num_generations: 4, beta: 0.1, normalize_advantages: true, max_completion_length: 32}}",
    ],
    "feedback": [
        "{stage: feedback, prompts: {path: builtin/python-docs}, judge: {name: rule, prefer: {name: keyword, words: [good]}}}",
        "{stage: feedback, id: labels, from: text, prompts: {path: builtin/python-docs, max_length: 16, max_samples: 9}, completions: 3, pairs: all, "
        "judge: {name: endpoint, base_url: 'https://api.example.com/v1', model: m, api_key_env: KEY, prices: {prompt: 0.1}}, top_p: 0.9, "
        "constitution: [{id: kind, comparison: Which is kinder?, critique: What is unkind?, revision: Say it kindly.}], revise: {rounds: 2}, "
        "human: {path: builtin/python-docs, name: preferences}, max_human_samples: 5}",
        "{stage: feedback, prompts: {path: builtin/python-docs}, judge: {name: local, from: text, thought: true}, constitution: default, revise: true}",
        "{stage: feedback, prompts: {path: builtin/python-docs}, judge: {name: reward, reward: {name: length}}, by: ratings, min_margin: 0.5}",
    ],
    "evaluate": [
        "{stage: evaluate}",
        "{stage: evaluate, id: score, benchmarks: [glue/mrpc], max_eval_samples: 10}",
        "{stage: evaluate, from: text, datasets: [{path: builtin/python-docs, split: validation}], stride: 8, max_eval_samples: 10}",
        "{stage: evaluate, from: pairs, benchmarks: [multi30k/en-de], baselines: [copy_source], generation: {num_beams: 4, length_penalty: 0.6}}",
        "{stage: evaluate, from: text, prompts: {path: builtin/python-docs, max_length: 8}, reward: {name: keyword, words: [list]}, "
        "against: model, response_length: 12, temperature: 0.7}",
    ],
    "publish": ["{stage: publish, to: registry/model}", "{stage: publish, to: registry/model, merge: false}"],
}
"""Each stage at its shortest, and with keys of its own."""

every_example = pytest.mark.parametrize("example", [each for name in STAGES for each in EXAMPLES[name]])


def test_every_stage_has_an_example() -> None:
    assert EXAMPLES.keys() == set(STAGES)


def recipe_with(example: str) -> Recipe:
    return loads(RECIPE.format(stage=example))


@every_example
def test_it_comes_back_as_it_was_written(example: str) -> None:
    recipe = recipe_with(example)
    stage = recipe.stages[-1]
    again = loads(recipe.to_yaml())
    assert again.stages[-1] == stage
    assert again == recipe
    assert again.to_yaml() == recipe.to_yaml()
    rebuilt = type(stage).model_validate(_as_yaml(stage.plain()) | {"stage": stage.stage})
    assert rebuilt == stage


def _as_yaml(value: Any) -> Any:
    """Lists as the YAML reader gives them."""
    if isinstance(value, dict):
        return {key: _as_yaml(entry) for key, entry in value.items()}
    return tuple(_as_yaml(entry) for entry in value) if isinstance(value, list) else value


@every_example
def test_what_does_not_change_the_result_is_not_part_of_its_identity(example: str) -> None:
    stage = recipe_with(example).stages[-1]
    identity = stage.identity()
    assert not {"id", "from", "seed"} & identity.keys()
    renamed = stage.model_copy(update={"id": "another"})
    assert renamed.identity() == identity


@pytest.mark.parametrize("name", STAGES)
def test_every_key_is_explained(name: str) -> None:
    stage = STAGES.load(name)
    assert issubclass(stage, Stage)
    assert issubclass(stage, Block)
    assert stage.__doc__
    assert [key for key, field in stage.model_fields.items() if key != "stage" and not field.description] == []
    assert stage.model_fields["stage"].default == name


@pytest.mark.parametrize("name", STAGES)
def test_it_stands_in_the_schema_with_its_keys(name: str) -> None:
    choices = schema()["properties"]["stages"]["items"]["anyOf"]
    (found,) = [choice for choice in choices if choice.get("properties", {}).get("stage") == {"const": name}]
    assert set(found["properties"]) == set(STAGES.load(name).keys())
    assert "stage" in found["required"]
    assert found["additionalProperties"] is False
    for key, described in found["properties"].items():
        assert key == "stage" or described["description"]


@pytest.mark.parametrize("name", STAGES)
def test_an_unknown_key_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="unknown key 'nonsense'"):
        recipe_with(EXAMPLES[name][0][:-1] + ", nonsense: 1}")

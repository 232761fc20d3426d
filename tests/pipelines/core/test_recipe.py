"""A recipe is either whole or answered with every mistake in it, each at its line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.core.architecture_fields import KINDS
from pipelines.core.errors import RecipeError
from pipelines.core.load import loads
from pipelines.core.recipe import schema

GOOD = """\
name: mini
model:
  architecture: {preset: bert-tiny}
tokenizer: {train: wordpiece, vocab_size: 1000}
stages:
  - {stage: pretrain, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 10}}
  - {stage: supervised, id: docs, task: builtin/python-docs, tuner: {name: lora, r: 4}}
  - {stage: evaluate}
  - {stage: publish, to: registry/mini}
"""


def mistakes(text: str, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        loads(text, overrides=overrides)
    return [str(mistake) for mistake in caught.value.mistakes]


def test_a_good_recipe_is_read_with_its_defaults() -> None:
    recipe = loads(GOOD)
    assert [stage.id for stage in recipe.stages] == ["pretrain", "docs", "evaluate", "publish"]
    assert recipe.seed == 42
    assert recipe.stages[1].tuner.r == 4
    assert recipe.launch.profile == "single"
    assert recipe.model_of(recipe.stages[1]) == "pretrain"
    assert recipe.model_of(recipe.stages[0]) == "model"
    assert recipe.model_of(recipe.stages[3]) == "docs"


def test_every_mistake_is_reported_at_once_in_the_order_of_the_file() -> None:
    text = """\
name: bad name!
sed: 3
model:
  architecture: {preset: bert-tin, hidden_sise: 3}
stages:
  - {stage: pretrian}
  - {stage: supervised, id: docs, task: glue/mrcp, tuner: {name: lora, r: 0, rank: 8}, arguments: {output_dir: x, learning_rat: 1e-3}}
  - {stage: publish, to: registry/x, from: doc}
"""
    found = mistakes(text)
    expected = [
        ("recipe.yaml:1", "name", "must match"),
        ("recipe.yaml:2", "sed", "Did you mean 'seed'?"),
        ("recipe.yaml:4", "model.architecture.preset", "Did you mean 'bert-tiny'?"),
        ("recipe.yaml:6", "stages[0].stage", "Did you mean 'pretrain'?"),
        ("recipe.yaml:7", "stages.docs.task", "Did you mean 'glue/mrpc'?"),
        ("recipe.yaml:7", "stages.docs.tuner.r", "is 0, must be at least 1"),
        ("recipe.yaml:7", "stages.docs.tuner.rank", "unknown key 'rank'"),
        ("recipe.yaml:7", "stages.docs.arguments.output_dir", ""),
        ("recipe.yaml:7", "stages.docs.arguments.learning_rat", "learning_rate"),
        ("recipe.yaml:8", "stages.publish.from", "Did you mean 'docs'?"),
    ]
    for line, key, words in expected:
        assert any(each.startswith(f"{line}  {key}: ") and words in each for each in found), (line, key, words, found)
    numbers = [int(each.split(":")[1].split()[0]) for each in found]
    assert numbers == sorted(numbers)


HELD = "names what a server holds; hand the recipe in with: finery submit"
UNFIT = """\
name: two
model: {architecture: {preset: bert-mini}}
stages:
  - {stage: pretrain, objective: causal_lm, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 20}}
  - {stage: supervised, task: glue/mrpc, tuner: {name: lora, r: 8}, arguments: {num_train_epochs: 1}}
  - {stage: evaluate, benchmarks: [glue/mrcp]}
  - {stage: publish, to: "hub:", require: {"glue/sst2.accuracy": ">= 0.8"}}
"""
"""Four stages that are right by themselves, and fit neither the model nor each other."""
MINE = "{kind: preference, train: builtin/python-docs, name: preferences}"
OBJECTIVE, BENCHMARK, TO, REQUIRE = (
    "stages.pretrain.objective",
    "stages.evaluate.benchmarks[0]",
    "stages.publish.to",
    "stages.publish.require.glue/sst2.accuracy",
)


def keys_of(found: list[str]) -> list[str]:
    return [each.split("  ")[1].split(": ")[0] for each in found]


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (("max_steps", "max_steps"), [OBJECTIVE, BENCHMARK, TO, REQUIRE]),
        (("max_steps", "max_step"), [OBJECTIVE, "stages.pretrain.arguments.max_step", BENCHMARK, TO, REQUIRE]),
        (("num_train_epochs: 1", "num_train_epochs: many"), ["stages.supervised.arguments.num_train_epochs"]),
        (("name: two", "name: two!"), ["name", OBJECTIVE, BENCHMARK, TO, REQUIRE]),
        # what stands behind a stage that nobody knows may build on it
        (("task: glue/mrpc", "task: glue/mrcp"), [OBJECTIVE, "stages.supervised.task"]),
        (("{stage: evaluate,", "{stage: evaluate, from: pretrian,"), [OBJECTIVE, "stages.evaluate.from"]),
        (("[glue/mrcp]}", f"[glue/mrcp], tasks: {{mine: {MINE}}}}}"), [BENCHMARK, "stages.evaluate.tasks.mine"]),
        (("objective: causal_lm", "objective: casual_lm"), ["stages.pretrain.objective.name"]),
        # and a model that nobody knows may fit
        (("bert-mini", "bert-mni"), ["model.architecture.preset"]),
    ],
)
def test_stages_that_do_not_fit_are_reported_beside_what_is_wrong_in_others(change, keys) -> None:
    found = mistakes(UNFIT.replace(*change))
    assert set(keys) <= set(keys_of(found))
    if change[0] not in ("num_train_epochs: 1", "[glue/mrcp]}"):
        assert sorted(keys_of(found)) == sorted(keys)


def test_stages_that_do_not_fit_are_reported_where_every_stage_has_a_mistake_of_its_own() -> None:
    text = UNFIT.replace("max_steps", "max_step").replace("glue/mrpc,", "glue/mrcp,").replace("[glue/mrcp]", "wrong")
    found = keys_of(mistakes(text.replace('"glue/sst2.accuracy"', "accuracy")))
    assert {OBJECTIVE, "stages.pretrain.arguments.max_step", "stages.supervised.task"} <= set(found)
    assert "stages" not in found


def test_nothing_is_told_of_a_stage_that_wrong_arguments_may_have_caused() -> None:
    streamed = "{path: builtin/python-docs, streaming: true}"
    text = UNFIT.replace("{path: builtin/python-docs}", streamed).replace("max_steps", "max_step")
    assert "stages.pretrain.arguments.max_steps" not in keys_of(mistakes(text))


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        (("name: mini", "title: mini"), "name", "is missing"),
        (
            ("{preset: bert-tiny}", "{preset: bert-tiny, hidden_size: 130, num_attention_heads: 4}"),
            "model.architecture",
            "130",
        ),
        (
            ("tokenizer: {train: wordpiece, vocab_size: 1000}", "tokenizer: {vocab_size: 1000}"),
            "tokenizer",
            "neither was given",
        ),
        (("architecture: {preset: bert-tiny}", "checkpoint: '!!'"), "model.checkpoint", "neither a folder"),
        (("architecture: {preset: bert-tiny}", "checkpoint: 'job:one'"), "model.checkpoint: 'job:one'", HELD),
        (("architecture: {preset: bert-tiny}", "checkpoint: 'model:ft:a@3'"), "model.checkpoint", HELD),
        (("architecture: {preset: bert-tiny}", "checkpoint: 'file:one'"), "model.checkpoint", "neither a folder"),
        (("{path: builtin/python-docs}", "{path: 'file:file-1'}"), "stages.pretrain.datasets[0].path", HELD),
        (("{stage: evaluate}", "{stage: evaluate, id: docs}"), "stages.docs.id", "an earlier stage too"),
        (
            ("{stage: evaluate}", "{stage: evaluate, id: tokenizer}"),
            "stages.tokenizer.id",
            "the recipe's own tokenizer",
        ),
        (("{stage: evaluate}", "{stage: evaluate, from: publish}"), "stages.evaluate.from", "it comes later"),
        (
            ("id: docs,", "id: docs, from: pretrained,"),
            "stages.docs.from",
            "'pretrained' is no earlier stage. Did you mean 'pretrain'?",
        ),
        (("id: docs,", "id: docs, from: docs,"), "stages.docs.from", "it is this stage"),
        (("id: docs,", "id: docs, from: docs/one,"), "stages.docs.from", "it is this stage"),
        (("id: docs,", "id: docs, from: model/one,"), "stages.docs.from", "'model/one' is no earlier stage"),
        (("stage: pretrain,", "stage: pretrain, from: docs,"), "stages.pretrain.from", "it comes later"),
        (("stage: pretrain,", "stage: pretrain, seed: -1,"), "stages.pretrain.seed", "at least 0"),
        (
            ("stage: pretrain,", "stage: pretrain, block_size: 4096,"),
            "stages.pretrain.block_size",
            "max_position_embeddings",
        ),
        (("max_steps: 10", "max_steps: 1e1"), "stages.pretrain.arguments.max_steps", "whole number"),
        (("{path: builtin/python-docs}", "{path: absent.jsonl}"), "stages.pretrain.datasets[0].path", "does not exist"),
        (("name: mini", "name: mini\nmatrix: {}"), "matrix", "is empty, must have at least one key"),
        (
            ("name: mini", "name: mini\nlaunch: {num_processes: 0}"),
            "launch.num_processes: is 0, must be auto or",
            "1024",
        ),
        (
            ("name: mini", "name: mini\nlaunch: {profile: ddp, num_processes: 1}"),
            "launch.num_processes: is 1",
            "needs at least 2",
        ),
        (
            ("name: mini", "name: mini\nlaunch: {mixed_precision: bf17}"),
            "launch.mixed_precision",
            "Did you mean 'bf16'?",
        ),
    ],
)
def test_each_mistake_names_its_key_and_what_is_allowed(change: tuple[str, str], key: str, words: str) -> None:
    assert change[0] in GOOD
    found = mistakes(GOOD.replace(*change))
    assert any(f"  {key}" in each and words in each for each in found), found


def test_a_list_of_wrong_entries_is_not_called_empty() -> None:
    found = mistakes(GOOD.replace("{path: builtin/python-docs}", "{path: absent.jsonl}"))
    assert len(found) == 1, found


def test_a_list_with_one_wrong_entry_is_not_called_too_short() -> None:
    tasks = "{stage: multi_task, tasks: [{task: glue/mrpc}, {task: glue/rte, id: a/b}]}"
    found = mistakes(GOOD.replace("{stage: evaluate}", tasks))
    assert ["must match" in each for each in found] == [True], found


@pytest.mark.parametrize("source", ["evaluate", "publish"])
def test_training_on_a_stage_that_leaves_no_model_is_refused(source: str) -> None:
    found = mistakes(GOOD + f"  - {{stage: supervised, task: builtin/python-docs, from: {source}}}\n")
    assert found == [
        f"recipe.yaml:10  stages.supervised.from: '{source}' is no stage that trains a model. Allowed: model, pretrain, docs"
    ]


def test_overrides_change_stages_by_id_or_number() -> None:
    recipe = loads(GOOD, overrides=["stages.docs.tuner.r=2", "stages[0].arguments.max_steps=3", "seed=7", "name=other"])
    assert (recipe.stages[1].tuner.r, recipe.stages[0].arguments.max_steps, recipe.seed, recipe.name) == (
        2,
        3,
        7,
        "other",
    )


def test_an_override_opens_a_short_form_and_missing_mappings() -> None:
    text = GOOD.replace("tuner: {name: lora, r: 4}", "tuner: lora")
    recipe = loads(text, overrides=["stages.docs.tuner.r=2", "stages.docs.arguments.learning_rate=1e-3"])
    assert recipe.stages[1].tuner.r == 2
    assert recipe.stages[1].arguments.given() == {"learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed", "write key.path=value"),
        ("stages.doc.seed=1", "Did you mean 'docs'?"),
        ("stages.docs.sed=1", "Did you mean 'seed'?"),
        ("name.x.y=1", ""),
        ("seed=[1", "not a YAML value"),
    ],
)
def test_a_wrong_override_names_the_command_line(override: str, words: str) -> None:
    found = mistakes(GOOD, override)
    assert any(each.startswith("command line") and words in each for each in found), found


def test_default_ids_number_the_repeats_and_step_around_given_ones() -> None:
    text = GOOD.replace(
        "  - {stage: evaluate}\n",
        "  - {stage: evaluate}\n  - {stage: evaluate, id: evaluate-2}\n  - {stage: evaluate}\n",
    )
    assert [stage.id for stage in loads(text).stages][2:5] == ["evaluate", "evaluate-2", "evaluate-3"]


def test_the_resolved_recipe_reads_back_equal(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a\n\nb\n")
    recipe = loads(GOOD.replace("builtin/python-docs}]", "texts.txt}]"), folder=tmp_path)
    assert recipe.stages[0].datasets[0].path == str(tmp_path / "texts.txt")
    again = loads(recipe.to_yaml(), folder=Path("/"))
    assert again == recipe
    assert again.to_yaml() == recipe.to_yaml()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "just words",
        "name: x\nstages: 3\n",
        "name: x\nstages: [1, null]\n",
        "name: [x]\nmodel: 3\nstages: []\n",
    ],
)
def test_what_is_no_recipe_at_all_is_refused_in_sentences(text: str) -> None:
    assert mistakes(text)


def test_the_schema_describes_every_registered_block() -> None:
    text = json.dumps(schema())
    for word in ("masked_lm", "lora", "lora_alpha", "wordpiece", "evaluate", "num_processes", "max_train_samples"):
        assert f'"{word}"' in text


def test_the_schema_describes_the_words_of_an_architecture() -> None:
    ours, *baselines, others, nothing = schema()["$defs"]["Model"]["properties"]["architecture"]["anyOf"]
    assert [each["properties"]["family"] for each in baselines] == [{"const": "rnn"}, {"const": "cnn"}]
    assert baselines[0]["properties"]["cell"] == {"enum": ["lstm", "gru", "rnn"], "default": "lstm"}
    assert [each["additionalProperties"] for each in baselines] == [False, False]
    assert ours["properties"]["family"] == {"enum": ["encoder", "decoder", "encoder-decoder"], "default": "encoder"}
    assert ours["properties"]["sliding_window"]["type"] == ["integer", "null"]
    assert set(KINDS) | {"preset", "model_type"} == set(ours["properties"])
    assert "bert-mini" in ours["properties"]["preset"]["enum"]
    assert ours["additionalProperties"] is False
    assert others["required"] == ["model_type"]
    assert nothing == {"type": "null"}


@pytest.mark.parametrize("given", ["3", "[masked_lm, causal_lm]", "null"])
def test_a_block_that_is_neither_name_nor_mapping_is_refused(given: str) -> None:
    text = f"name: x\nmodel: {{architecture: {{preset: bert-tiny}}}}\nstages: [{{stage: pretrain, objective: {given}, datasets: [{{path: builtin/python-docs}}]}}]\n"
    (mistake,) = mistakes(text)
    assert "must be the name of an objective or a mapping with 'name'" in str(mistake)


def test_reading_a_recipe_imports_no_heavy_library(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(GOOD)
    code = (
        "import sys\nfrom pipelines.core import recipe\nfrom pipelines.core.load import load\n"
        f"load({str(tmp_path / 'r.yaml')!r})\nrecipe.schema()\n"
        "heavy = {'torch', 'transformers', 'datasets', 'peft', 'pandas', 'evaluate', 'accelerate'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_trains_or_samples_passes_over_models_that_score(tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": " b", "rejected": " c"}')
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": " b"}')
    scores = "{stage: reward, id: scores, task: {kind: preference, train: pairs.jsonl}}"
    recipe = loads(
        "name: t\nmodel: {checkpoint: some/model}\nstages:\n"
        f"  - {{stage: supervised, id: sft, task: {{kind: causal, train: rows.jsonl}}}}\n  - {scores}\n"
        "  - {stage: supervised, id: more, task: {kind: causal, train: rows.jsonl}}\n"
        f"  - {scores.replace('id: scores', 'id: again, from: scores')}\n  - {{stage: evaluate, id: look}}\n",
        folder=tmp_path,
    )
    assert [recipe.model_of(stage) for stage in recipe.stages] == ["model", "sft", "sft", "scores", "again"]


LONG = "a" * 300
"""Longer than a file system lets a name be."""


@pytest.mark.parametrize(
    "stage",
    [
        f"{{stage: pretrain, objective: masked_lm, datasets: [{{path: {LONG}.csv}}]}}",
        f"{{stage: pretrain, objective: masked_lm, datasets: [{{path: {LONG}*.csv}}]}}",
        f"{{stage: supervised, task: ./{LONG}.yaml}}",
        f"{{stage: supervised, task: glue/cola, chat_template: ./{LONG}.jinja}}",
        f"{{stage: evaluate, benchmarks: [./{LONG}.yaml]}}",
        f"{{stage: feedback, prompts: {{path: {LONG}.csv}}, judge: {{name: local, checkpoint: ./{LONG}}}, constitution: ./{LONG}.yaml}}",
        f"{{stage: publish, to: ./{LONG}}}",
    ],
)
def test_a_name_that_is_too_long_for_the_file_system_is_a_mistake_as_one_that_is_not_there(stage):
    """Asking for such a file is an error, not a no (found by the fuzzer)."""
    with pytest.raises(RecipeError) as caught:
        loads(f"name: a\nmodel: {{checkpoint: ./{LONG}}}\nstages:\n  - {stage}\n")
    assert f"'./{LONG}" in str(caught.value)


@pytest.mark.parametrize(("source", "doubts"), [("from: model, ", 1), ("", 0), ("from: pretrain, ", 0)])
def test_a_pretraining_that_no_stage_goes_on_from_is_a_doubt(source: str, doubts: int) -> None:
    found = loads(GOOD.replace("id: docs, ", f"id: docs, {source}")).doubts()
    sentence = "stages.pretrain: is trained, but no stage reads its model; write 'from: pretrain'"
    assert [each.startswith(sentence) for each in found] == [True] * doubts


def test_a_pretraining_that_is_the_last_training_is_none() -> None:
    lines = GOOD.splitlines(keepends=True)
    assert loads("".join(lines[:6])).doubts() == []

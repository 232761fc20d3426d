from __future__ import annotations

import pytest

from pipelines.commands import show_data
from pipelines.core.errors import CommandError

RECIPE = """\
name: look
model: {{architecture: {{preset: {preset}, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 64}}}}
tokenizer: {{train: {train}, vocab_size: 400}}
stages:
  - {{stage: {stage}, task: {{kind: preference, train: builtin/python-docs, validation: 0.1, name: preferences}}, max_length: 48, max_train_samples: 20}}
"""


def answered(tmp_path, stage, preset="gpt-tiny", train="byte_bpe"):
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(stage=stage, preset=preset, train=train))
    (task,) = show_data.answer({"recipe": str(tmp_path / "recipe.yaml"), "rows": 2})["tasks"]
    return task


def test_both_sides_of_a_pair_are_shown_with_what_is_learnt(tmp_path):
    task = answered(tmp_path, "dpo")
    assert (task["kind"], task["examples"], len(task["rows"])) == ("preference", 20, 4)
    assert [row["answer"] for row in task["rows"]] == [
        f"the {side} answer of pair {at}" for at in (1, 2) for side in ("chosen", "rejected")
    ]
    one, other = (row["pieces"] for row in task["rows"][:2])
    assert [learnt for _, learnt in one] == [False, True]
    assert one[0] == other[0]  # the same prompt
    assert sorted(one[1][0].replace("[SEP]", "").split()) == sorted(other[1][0].replace("[SEP]", "").split())
    assert 0 < task["learnt_share"] < 1


def test_a_reward_model_reads_all_of_both(tmp_path):
    task = answered(tmp_path, "reward", "bert-tiny", "wordpiece")
    assert [learnt for row in task["rows"] for _, learnt in row["pieces"]] == [False] * 4
    assert task["rows"][0]["pieces"][0][0].startswith("[CLS]")
    assert task["learnt_share"] == 0


def test_a_recipe_that_learns_nothing_of_the_kind_is_refused(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "name: x\nmodel: {architecture: {preset: gpt-tiny}}\nstages: [{stage: pretrain, objective: causal_lm, datasets: [{path: builtin/python-docs}]}]\n"
    )
    with pytest.raises(CommandError, match="stages that learn labelled rows or preferences"):
        show_data.answer({"recipe": str(tmp_path / "recipe.yaml")})

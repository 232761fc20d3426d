from __future__ import annotations

import json

import pytest

from pipelines.commands import show_data
from pipelines.core.errors import CommandError
from pipelines.core.load import load

ROWS = [
    {"prompt": f"row {at}, say it", "completion": "yes it is" if at % 2 else "no it is not", "class": at % 2}
    for at in range(24)
]
HEAD = """
name: seen
model: {architecture: {preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 64}}
tokenizer: {train: byte_bpe, vocab_size: 300}
launch: {num_processes: 1}
stages:
"""
CAUSAL = (
    "  - {stage: supervised, id: talk, task: {kind: causal, train: rows.jsonl}, max_length: 60, "
    "chat_template: zephyr}\n"
)
CLASSES = (
    "  - {stage: supervised, id: classes, from: model, task: {kind: classification, columns: [prompt], "
    "label: class, train: rows.jsonl}, max_length: 60}\n"
)


@pytest.fixture
def written(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (tmp_path / "r.yaml").write_text(HEAD + CAUSAL + CLASSES)
    return tmp_path / "r.yaml"


def test_a_dialogue_is_shown_with_its_loss_mask_and_a_class_with_its_text(written):
    found = show_data.answer({"recipe": str(written), "rows": 2})
    (task,) = found["tasks"]
    assert (found["stage"], task["kind"], task["format"], task["template"]) == (
        "talk",
        "causal",
        "prompt_completion",
        "zephyr",
    )
    assert len(task["rows"]) == 2
    assert [learnt for _, learnt in task["rows"][0]["pieces"]] == [False, True]
    assert task["rows"][0]["pieces"][0][0].endswith("<|assistant|>\n")
    assert task["rows"][0]["pieces"][1][0] in ("yes it is[SEP]", "no it is not[SEP]")
    (other,) = show_data.answer({"recipe": str(written), "stage": "classes", "rows": 1})["tasks"]
    assert other["rows"][0]["answer"] in ("0", "1")
    assert other["rows"][0]["pieces"][0][0].startswith("[CLS]row")


def test_an_answer_that_is_written_is_shown_as_a_text(written):
    """The class of a row is named, as T5's is: not given to a head of classes."""
    (written.parent / "moods.jsonl").write_text(
        "\n".join(json.dumps({"text": row["prompt"], "mood": ("bad", "good")[row["class"]]}) for row in ROWS)
    )
    task = "{kind: classification, columns: [text], label: mood, train: moods.jsonl}"
    tasks = f"[{{id: one, task: {task}, max_length: 60}}, {{id: two, task: {task}, max_length: 60}}]"
    recipe_text = (
        HEAD.replace("gpt-tiny", "t5-tiny")
        + f"  - {{stage: multi_task, id: both, form: text_to_text, tasks: {tasks}}}\n"
    )
    written.write_text(recipe_text)
    first, _ = show_data.answer({"recipe": str(written), "rows": 2})["tasks"]
    assert (first["id"], first["kind"]) == ("both/one", "seq2seq")
    for row in first["rows"]:
        (question, asked), (answer, learnt) = row["pieces"]
        assert (asked, learnt) == (False, True)
        assert question.startswith("[CLS]one text: row ")
        assert answer in ("bad[SEP]", "good[SEP]")


def test_a_stage_that_learns_no_task_is_refused(written):
    with pytest.raises(CommandError, match=r"'nope' is no stage that learns a task\. Stages that do: talk, classes"):
        show_data.chosen(load(written), "nope")
    assert show_data.chosen(load(written), None).id == "talk"


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
        "name: x\nmodel: {architecture: {preset: gpt-tiny}}\nstages: [{stage: pretrain, objective: causal_lm, "
        "datasets: [{path: builtin/python-docs}]}]\n"
    )
    with pytest.raises(CommandError, match="stages that learn labelled rows or preferences"):
        show_data.answer({"recipe": str(tmp_path / "recipe.yaml")})

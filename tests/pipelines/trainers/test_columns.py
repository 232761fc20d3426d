"""Which column is read is part of what a stage, a tokenizer and packed text are found again by."""

from pipelines.core.load import loads

RECIPE = """
name: columns
model: {architecture: {preset: bert-tiny}}
tokenizer: {train: wordpiece, vocab_size: 200}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: rows.csv, text: question}]}
  - {stage: supervised, id: ask, task: {kind: classification, columns: [question], label: label, train: rows.csv}}
"""


def contents(folder, stage, *overrides):
    (folder / "rows.csv").write_text("question,answer,label\nwhy,so,a\nhow,thus,b\n" * 10)
    recipe = loads(RECIPE, folder=folder, overrides=overrides)
    return recipe.stage(stage).content(recipe)


def test_another_column_of_the_same_file_is_other_text(tmp_path):
    before = contents(tmp_path, "pretrain")
    assert before == contents(tmp_path, "pretrain")
    assert before != contents(tmp_path, "pretrain", "stages.pretrain.datasets.0.text=answer")


def test_another_column_of_the_same_task_is_other_text(tmp_path):
    before = contents(tmp_path, "ask")
    assert before == contents(tmp_path, "ask")
    assert before != contents(tmp_path, "ask", "stages.ask.task.columns=[answer]")
    assert before != contents(tmp_path, "ask", "stages.ask.task.columns=[question, answer]")

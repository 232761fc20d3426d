import json

import pytest

from pipelines.commands import harness
from pipelines.core.errors import CommandError, DataError
from tests import writers

pytest.importorskip("lm_eval")
CHOICE = """
task: own_choice
dataset_path: json
dataset_kwargs: {{data_files: {{train: {folder}/rows.jsonl, validation: {folder}/rows.jsonl}}}}
output_type: multiple_choice
training_split: train
validation_split: validation
doc_to_text: "{{{{text}}}} was"
doc_to_choice: ["good", "not bad"]
doc_to_target: label
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
metadata: {{version: 3}}
"""


@pytest.fixture
def tasks(tmp_path):
    """A folder with one task and its data."""
    rows = [
        {"text": f"the {word} book", "label": at % 2} for at, word in enumerate(("cat", "dog", "film", "fine", "dull"))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.yaml").write_text(CHOICE.format(folder=tmp_path))
    return tmp_path


def ask(tasks, model="gpt2", **words):
    return harness.answer(
        {"model": str(writers.folder(model)), "tasks": ["own_choice"], "include_path": str(tasks), **words}
    )


def test_a_task_of_ones_own_is_asked_without_a_network(tasks):
    told = ask(tasks, num_fewshot=1, limit=4)
    own = told["tasks"]["own_choice"]
    assert (told["family"], told["reads"], told["cut"]) == ("decoder", 40, 0)
    assert (own["num_fewshot"], own["questions"], own["version"]) == (1, 4, 3)
    assert set(own["scores"]) == {"acc", "acc_norm"}
    share, error = own["scores"]["acc"].values()
    assert error == pytest.approx((share * (1 - share) / 3) ** 0.5)  # of a mean of four zeros and ones
    json.dumps(told)


@pytest.mark.parametrize("model", ["bert", "t5"])
def test_other_families_are_asked_too(tasks, model):
    assert 0 <= ask(tasks, model)["tasks"]["own_choice"]["scores"]["acc"]["value"] <= 1


def test_what_is_too_long_is_counted(tasks):
    (tasks / "rows.jsonl").write_text(json.dumps({"text": "the cat " * 40, "label": 0}) + "\n")
    assert ask(tasks)["cut"] == 2  # one question, two answers


def test_a_folder_that_is_not_there_is_refused(tasks):
    with pytest.raises(CommandError, match="there is no folder 'nowhere'"):
        harness.answer({"model": str(writers.folder("gpt2")), "tasks": ["own_choice"], "include_path": "nowhere"})


def test_data_that_is_not_there_is_a_sentence(tasks):
    (tasks / "rows.jsonl").unlink()
    with pytest.raises(DataError, match="the harness could not ask own_choice"):
        ask(tasks)


@pytest.mark.long  # the harness reads thousands of files to say so
def test_an_unknown_task_is_refused(tasks):
    with pytest.raises(CommandError, match="knows no task 'own_choise'\\. Did you mean 'own_choice'"):
        harness.answer({"model": str(writers.folder("gpt2")), "tasks": ["own_choise"], "include_path": str(tasks)})


def test_without_the_harness_one_sentence_says_what_to_install(monkeypatch, tasks):
    monkeypatch.setattr(harness, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match="pip install lm_eval"):
        ask(tasks)

"""What OpenAI's API returns becomes recipes that are valid, and what cannot is told in one sentence."""

import json

import pytest

from pipelines.core.load import load
from service.cli.__main__ import main

WORDS = ("red", "green", "blue")
CHATS = [
    {"messages": [{"role": "user", "content": f"Say {word}."}, {"role": "assistant", "content": f"It is {word}."}]}
    for word in WORDS
] * 4
PROMPTS = [{"messages": [{"role": "user", "content": f"Say {word}."}], "answer": word} for word in WORDS] * 4
PAIRS = [
    {
        "input": {"messages": [{"role": "user", "content": "a"}]},
        "preferred_output": [{"role": "assistant", "content": "b"}],
        "non_preferred_output": [{"role": "assistant", "content": "c"}],
    }
] * 10
CHECK = {
    "type": "string_check", "name": "right", "input": "{{sample.output_text}}", "reference": "{{item.answer}}",
    "operation": "like",
}  # fmt: skip
JUDGED = {
    "type": "score_model", "name": "judged", "model": "gpt-4o",
    "input": [{"role": "user", "content": "{{sample.output_text}}"}],
}  # fmt: skip


def job(number, **fields):
    made = {
        "object": "fine_tuning.job", "id": f"ftjob-{number}", "created_at": number, "model": "gpt-4o-mini",
        "status": "succeeded", "training_file": "file-chats", "seed": 7,
    }  # fmt: skip
    return made | fields


def reinforced(grader, **fields):
    method = {"type": "reinforcement", "reinforcement": {"grader": grader, "hyperparameters": {"n_epochs": 1}}}
    return job(2, model="ft:first", training_file="file-asked", method=method, **fields)


FIRST = job(
    1,
    fine_tuned_model="ft:first",
    suffix="Colours 2!",
    validation_file="file-chats",
    hyperparameters={"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 1.8},
    integrations=[{"type": "wandb"}],
)


@pytest.fixture
def export(tmp_path, monkeypatch):
    """Writes the jobs of a folder whose files are named in both ways."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "export"
    folder.mkdir()
    for name, rows in (("file-chats.jsonl", CHATS), ("asked.jsonl", PROMPTS), ("file-pairs", PAIRS)):
        (folder / name).write_text("".join(json.dumps(each) + "\n" for each in rows))
    (folder / "files.json").write_text(json.dumps([{"object": "file", "id": "file-asked", "filename": "asked.jsonl"}]))

    def written(*jobs):
        (folder / "jobs.json").write_text(json.dumps({"object": "list", "data": jobs, "has_more": False}))
        return folder

    return written


def imported(capsys, *more):
    code = main(["import", "openai", "export", "--json", *more])
    told = capsys.readouterr()
    return code, json.loads(told.out.splitlines()[0]) if told.out.startswith("{") else {}, told.err


def test_a_job_is_a_recipe_with_its_numbers_its_data_and_notes_of_what_has_no_equal(export, capsys):
    export(FIRST)
    code, told, _ = imported(capsys, "--model", "scratch/gpt-tiny")
    assert code == 0
    recipe = load("imported/Colours-2.yaml")
    assert [stage.stage for stage in recipe.stages] == ["supervised", "evaluate", "publish"]
    stage = recipe.stages[0]
    assert (stage.arguments.num_train_epochs, stage.arguments.global_batch_size, recipe.seed) == (2, 4, 7)
    assert stage.arguments.learning_rate == pytest.approx(1.8e-3)
    assert stage.task.train.endswith("imported/data/file-chats.jsonl")
    (row,) = told["recipes"]
    assert row["notes"][0] == "gpt-4o-mini stays with OpenAI; scratch/gpt-tiny learns in its place"
    assert any("learning_rate_multiplier 1.8" in each for each in row["notes"])
    assert any("integrations are left out" in each for each in row["notes"])


def test_a_job_that_went_on_becomes_one_recipe_with_the_stages_of_both_and_its_grader(export, capsys):
    export(FIRST, reinforced(CHECK))
    assert imported(capsys, "--model", "owner/base")[0] == 0
    recipe = load("imported/ftjob-2.yaml")
    assert [stage.stage for stage in recipe.stages] == ["supervised", "ppo", "evaluate", "publish"]
    assert recipe.stages[1].reward.grader.reference == "{{item.answer}}"
    assert recipe.model.checkpoint == "owner/base"


def test_a_judge_is_named_in_place_of_openais_and_a_folder_is_found_from_the_recipe(export, capsys, tmp_path):
    folder = tmp_path / "models" / "own"
    folder.mkdir(parents=True)
    export(FIRST, reinforced(JUDGED))
    code, told, _ = imported(capsys, "--model", "models/own", "--judge", "models/own")
    assert code == 0, told
    recipe = load("imported/ftjob-2.yaml")
    assert recipe.model.checkpoint == recipe.stages[1].reward.models[0].checkpoint == str(folder)


def test_a_dry_run_writes_nothing_and_a_recipe_that_is_there_is_not_overwritten(export, capsys, tmp_path):
    export(FIRST)
    code, told, _ = imported(capsys, "--model", "scratch/gpt-tiny", "--dry-run")
    assert (code, told["written"], (tmp_path / "imported").exists()) == (0, False, False)
    assert imported(capsys, "--model", "scratch/gpt-tiny")[0] == 0
    code, _, said = imported(capsys, "--model", "scratch/gpt-tiny")
    assert (code, "--force" in said) == (2, True)
    assert imported(capsys, "--model", "scratch/gpt-tiny", "--force")[0] == 0


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (job(3, training_file="file-none"), "its file file-none is not here; save files.content('file-none')"),
        (job(3, training_file="file-pairs"), "cannot be learnt from: line 1: is a preference row"),
        (job(3, status="failed"), "it failed there"),
        (job(3, model="ft:elsewhere"), "the job that made that is not here"),
        (job(3, fine_tuned_model="ft:x", model="ft:x"), "or from itself"),
        (job(3, method={"type": "magic"}), "its method is 'magic'"),
        (job(3, hyperparameters={"n_epochs": -1}), "its n_epochs is -1"),
        (job(3, training_file="file-pairs", method={"type": "dpo"}), "name one with --model"),
        (reinforced({"type": "python", "source": "x"}), "its grader.type is 'python'"),
        (reinforced(JUDGED), "name a model in its place with --judge"),
    ],
)
def test_what_cannot_be_a_recipe_is_left_out_with_the_reason(export, capsys, wrong, reason):
    export(FIRST, wrong)
    code, told, _ = imported(capsys, "--model", "scratch/gpt-tiny")
    assert code == 0
    assert [each["job"] for each in told["recipes"]] == ["ftjob-1"]
    (row,) = told["left_out"]
    assert (row["job"], reason in row["reason"]) == (wrong["id"], True), row
    assert "\n" not in row["reason"]


@pytest.mark.parametrize(
    "hyperparameters",
    [{"n_epochs": float("inf")}, {"n_epochs": float("nan")}, {"n_epochs": 0.5}, {"batch_size": 10**400}, ["auto"]],
)
def test_numbers_that_no_recipe_can_have_leave_their_job_out_and_no_other(export, capsys, hyperparameters):
    export(job(1), job(2, hyperparameters=hyperparameters))
    _, said, _ = imported(capsys, "--model", "scratch/gpt-tiny")
    (left,) = said["left_out"]
    assert left["job"] == "ftjob-2"
    assert left["reason"].startswith(("its n_epochs is", "its batch_size is", "its hyperparameters are"))


def test_fields_of_another_form_are_no_traceback_and_add_nothing_to_a_recipe(export, capsys):
    export(
        job(1, created_at="yesterday", fine_tuned_model={"name": "x"}, seed=True),
        job(2, id="ftjob-2\nlaunch: {num_processes: 2}\n#", suffix="second"),
    )
    code, said, _ = imported(capsys, "--model", "scratch/gpt-tiny")
    assert (code, said["left_out"]) == (0, [])
    assert [load(each["recipe"]).launch.num_processes for each in said["recipes"]] == ["auto", "auto"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["export", "--model", "scratch/gpt-tiny"], "holds no fine-tuning job"),
        (["nowhere", "--model", "scratch/gpt-tiny"], "there is no folder nowhere"),
    ],
)
def test_a_folder_without_jobs_is_one_sentence(export, capsys, arguments, sentence):
    export()
    assert main(["import", "openai", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_model_that_cannot_be_trained_is_one_sentence_and_broken_json_a_warning(export, capsys):
    (export(FIRST) / "broken.json").write_text("{")
    assert main(["import", "openai", "export", "--model", "gpt-4o"]) == 2
    assert "no Hub name owner/name" in capsys.readouterr().err
    assert main(["import", "openai", "export", "--model", "scratch/gpt-tiny"]) == 0
    assert "warning: broken.json is no JSON that can be read" in capsys.readouterr().out

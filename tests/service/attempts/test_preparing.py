import pytest

from pipelines.core.errors import RecipeError
from service.attempts.folders import folders_of
from service.attempts.preparing import Missing, model_of_job, names_of_uploads, prepare, words_of
from service.jobs.job import HostShare, JobRequest
from service.jobs.states import State
from service.uploads import file_path
from tests.service.attempts.conftest import RECIPE

DATA = "name: tiny\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n  - {stage: pretrain, objective: masked_lm, datasets: [{path: 'file:FILE', text: text}]}\n"


@pytest.fixture
def upload(server):
    def upload(filename, content):
        file = server.store.create_file("default", filename, "dataset")
        path = file_path(server.settings, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return server.store.complete_file(file.id, "0" * 64, len(content), "default")

    return upload


def prepared(server, recipe, **fields):
    job = server.submit(recipe=recipe, **fields)
    attempt = server.place(job)
    return prepare(server.store, server.settings, server.store.job(job), attempt)


def test_the_attempt_gets_its_folder_recipe_and_command(server):
    spec = prepared(server, RECIPE.format(steps=4, evaluate="scores"), overrides=("seed=7",))
    text = (spec.folder / "recipe.yaml").read_text()
    assert "seed: 7" in text
    assert "published/my-model" in text
    assert spec.command[-2:] == ("run", "recipe.yaml")
    assert spec.placements[0].host == "here"
    assert spec.folder.stat().st_mode & 0o077 == 0


def test_preparing_twice_changes_nothing(server):
    spec = prepared(server, RECIPE.format(steps=4, evaluate="scores"))
    before = (spec.folder / "recipe.yaml").stat().st_mtime_ns
    [(attempt, job)] = server.store.live_attempts("me")
    assert prepare(server.store, server.settings, job, attempt) == spec
    assert (spec.folder / "recipe.yaml").stat().st_mtime_ns == before


def test_an_uploaded_file_lies_in_the_job_s_folder_under_its_own_name_and_stays(server, upload):
    file = upload("../novels.jsonl", b'{"text": "x"}\n')
    spec = prepared(server, DATA.replace("FILE", file.id))
    place = spec.folder / "inputs" / file.id / "novels.jsonl"
    assert str(place) in (spec.folder / "recipe.yaml").read_text()
    file_path(server.settings, file).unlink()
    assert place.read_bytes() == b'{"text": "x"}\n'


def test_what_is_published_calls_uploads_by_their_names(tmp_path):
    paths = [
        tmp_path / place for place in ("file-1/train.csv", "file-2/dev.csv", "file-3/train.csv", "file-4/train.csv")
    ]
    assert list(names_of_uploads(paths).values()) == [
        "data/train.csv",
        "data/dev.csv",
        "data/1/train.csv",
        "data/2/train.csv",
    ]


def test_a_file_of_another_project_is_gone_for_this_one(server, upload):
    file = upload("novels.jsonl", b"{}\n")
    server.store.ensure_project("other")
    request = JobRequest(recipe=DATA.replace("FILE", file.id), project="other", name="tiny")
    job = server.store.submit(request)[0]
    attempt = server.store.start(job.id, (HostShare("here"),), executor="local", holder="me", lease_seconds=60)
    with pytest.raises(Missing, match=f"'{file.id}' is gone; upload it again"):
        prepare(server.store, server.settings, job, attempt)


def test_a_second_attempt_resumes_the_run_folder(server):
    job = server.submit()
    folders = folders_of(server.settings.jobs, server.store.job(job))
    assert words_of(folders, "name: tiny\n") == ("run", "recipe.yaml")
    assert words_of(folders, "name: tiny\nmatrix: {seed: [1, 2]}\n") == ("study", "recipe.yaml")
    folders.run.mkdir(parents=True)
    (folders.run / "recipe.yaml").write_text("name: tiny\n")
    assert words_of(folders, "name: tiny\n") == ("resume", "runs/tiny")


def test_the_model_of_a_job_is_that_of_its_last_training_stage(server):
    ended, _ = server.run(server.submit(steps=1))
    assert ended.state is State.SUCCEEDED
    run = server.folders(ended.id).run
    for stage, trains in (("01-pretrain", True), ("02-mrpc", True), ("03-evaluate", False)):
        (run / "stages" / stage).mkdir(parents=True)
        if trains:
            (run / "stages" / stage / "model").mkdir()
            (run / "stages" / stage / "model" / "config.json").write_text("{}")
    for name in ("tiny", ended.id):
        assert (
            model_of_job(server.store, server.settings, "default", name)
            == (run / "stages" / "02-mrpc" / "model").resolve()
        )


@pytest.mark.parametrize("name", ["nothing", "job-01k00000000000000000000000"])
def test_a_job_that_left_no_model_is_named(server, name):
    with pytest.raises(Missing, match=f"'job:{name}' names no job"):
        model_of_job(server.store, server.settings, "default", name)


def test_a_recipe_that_can_no_longer_be_resolved_is_a_mistake_of_the_recipe(server):
    with pytest.raises((RecipeError, Missing), match="no-such-job"):
        prepared(
            server,
            "name: tiny\nmodel: {checkpoint: 'job:no-such-job'}\nstages:\n  - {stage: evaluate, benchmarks: [glue/mrpc]}\n",
        )


def test_code_that_an_admin_no_longer_allows_is_not_run_by_a_job_that_waited(server):
    pair = f"someone/odd@{'a' * 40}"
    recipe = f"name: tiny\nmodel: {{checkpoint: someone/odd, revision: {'a' * 40}, trust_remote_code: true}}\nstages:\n  - {{stage: evaluate, benchmarks: [glue/mrpc]}}\n"
    server.store.set_project("default", settings={"remote_code": [pair]})
    assert "trust_remote_code: true" in (prepared(server, recipe).folder / "recipe.yaml").read_text()
    server.store.set_project("default", settings={})
    with pytest.raises(Missing, match=f"model.trust_remote_code would run code of .*--allow-remote-code {pair}"):
        prepared(server, recipe)

"""What `job:NAME` and `model:NAME` stand for."""

from pathlib import Path

import pytest

from service.jobs.job import Host, HostShare, JobRequest, Resources
from service.safety.network_recipes import Needs
from service.scheduler.retries import ending_of
from service.settings import read_settings
from service.submission import job_named, look_up, model_folder, resources_of
from tests.service.served import RECIPE


@pytest.fixture
def settings(tmp_path):
    return read_settings({}, home=tmp_path)


def submitted(store, name="demo", project="acme"):
    return store.submit(JobRequest(recipe=RECIPE.replace("name: demo", f"name: {name}"), project=project, name=name))[0]


def ended(store, job, code=0):
    store.report_host(Host("h", cpus=99))
    attempt = store.start(job.id, (HostShare("h"),), executor="local", holder="t", lease_seconds=60)
    store.ingest(attempt.id, attempt.fencing, [{"id": 1, "event": "started"}], 1)
    return store.end_attempt(attempt.id, attempt.fencing, ending_of(store.job(job.id), exit_code=code, now=0.0))


def left(settings, job, *stages):
    for place in stages:
        model = settings.jobs / job.id / "runs" / job.name / "stages" / place / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")


def test_the_newest_succeeded_job_of_a_name_is_meant_even_when_a_newer_one_waits(store, settings):
    old, new = (ended(store, submitted(store)) for _ in range(2))
    submitted(store)
    assert job_named(store, "acme", "demo").id == new.id
    assert job_named(store, "acme", old.id).id == old.id
    assert job_named(store, "others", "demo") is None
    assert job_named(store, "others", old.id) is None


def test_the_model_of_a_job_is_that_of_its_last_training_stage(store, settings):
    job = ended(store, submitted(store))
    left(settings, job, "01-supervised")
    found = look_up(store, settings, "acme", Needs(jobs=("demo",)))
    assert found.checkpoints == {"job:demo": Path(settings.jobs / job.id / "runs/demo/stages/01-supervised/model")}
    assert found.depends_on == (job.id,)


def test_a_stage_is_not_taken_for_one_whose_id_ends_like_its_own(store, settings):
    recipe = (
        "name: demo\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
        "  - {stage: supervised, id: pre-tune, task: builtin/python-docs}\n"
        "  - {stage: supervised, id: mrpc, task: builtin/python-docs}\n"
        "  - {stage: evaluate, id: tune}\n"
    )
    job = ended(store, store.submit(JobRequest(recipe=recipe, project="acme", name="demo"))[0])
    left(settings, job, "01-pre-tune", "02-mrpc")
    assert model_folder(settings, job) == settings.jobs / job.id / "runs/demo/stages/02-mrpc/model"


def test_a_job_that_may_still_succeed_is_waited_for_and_one_that_cannot_is_not_found(store, settings):
    waiting, failed = submitted(store), ended(store, submitted(store, "broken"), code=2)
    found = look_up(store, settings, "acme", Needs(jobs=("demo", "broken", failed.id, "nothing")))
    assert found.checkpoints == {"job:demo": None}
    assert found.depends_on == (waiting.id,)


def test_a_job_without_a_model_stands_for_nothing(store, settings):
    job = ended(store, submitted(store))
    assert model_folder(settings, job) is None
    assert look_up(store, settings, "acme", Needs(jobs=("demo",))).checkpoints == {}


def test_packages_that_jobs_lack_are_known_where_they_run_with_the_server_s_own(store, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "service.submission.missing_package", lambda name: name if name in ("wandb", "neptune") else None
    )
    assert look_up(store, settings, "acme", Needs()).missing_trackers == {"wandb"}
    elsewhere = read_settings({"FINERY_EXECUTOR": "docker"}, home=tmp_path)
    assert look_up(store, elsewhere, "acme", Needs()).missing_trackers == frozenset()


def test_a_job_takes_the_hosts_and_processes_of_its_recipe_unless_it_asks_for_others():
    assert resources_of({}, 16, 2) == Resources(cpus=8, hosts=2)
    assert resources_of({"hosts": 4}, 16, 2) == Resources(cpus=4, hosts=4)
    assert resources_of({"gpus": 8}, 16, 2) == Resources(gpus=8, hosts=2)
    assert resources_of({}, None) == Resources()

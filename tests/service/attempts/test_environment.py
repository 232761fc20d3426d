from dataclasses import replace

import pytest

from service.attempts.environment import environment_of, secrets_of, stage_cache
from service.jobs.job import Attempt, Job, JobRequest
from service.jobs.resources import Resources
from service.jobs.states import AttemptState, State
from service.settings import Settings

JOB = Job("job-1", JobRequest("", "default", secrets=("HF_TOKEN", "WANDB", "../../etc/passwd")), State.STARTING, 0.0, 0.0)
ATTEMPT = Attempt("attempt-1", "job-1", 1, 1, "local", (), AttemptState.ASSIGNED, 0.0, Resources(cpus=3))
OUTER = {
    "PATH": "/bin", "HOME": "/root", "LANG": "C.UTF-8", "LC_ALL": "C", "FINERY_DATA": "/data", "HF_HOME": "/hf", "NCCL_DEBUG": "INFO",
    "https_proxy": "http://proxy", "HF_TOKEN": "hf-of-the-service", "FINERY_DATABASE_URL": "postgresql://user:password@host/x",
    "AWS_SECRET_ACCESS_KEY": "aws", "CUDA_VISIBLE_DEVICES": "0,1", "TORCH_API_KEY": "k", "FINERY_TOKEN": "admin",
}  # fmt: skip


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path)


def test_places_and_devices_are_passed_on_and_nothing_that_could_be_a_secret(settings):
    found = environment_of(settings, JOB, ATTEMPT, OUTER)
    passed = {"PATH", "HOME", "LANG", "LC_ALL", "FINERY_DATA", "HF_HOME", "NCCL_DEBUG", "https_proxy"}
    assert {name for name in OUTER if name in found} == passed
    assert "password" not in str(found)
    assert found["FINERY_PUBLIC_ENDPOINTS_ONLY"] == "1", "a recipe's judge must not reach into the server's network"


def test_threads_are_as_many_as_the_placement_has_cores_unless_the_server_was_told_otherwise(settings):
    assert environment_of(settings, JOB, ATTEMPT, OUTER)["OMP_NUM_THREADS"] == "3"
    assert environment_of(settings, JOB, ATTEMPT, {**OUTER, "OMP_NUM_THREADS": "1"})["OMP_NUM_THREADS"] == "1"


def test_finished_stages_are_shared_by_all_jobs(settings, tmp_path):
    other = replace(JOB, id="job-2")
    homes = {environment_of(settings, job, ATTEMPT, OUTER)["FINERY_HOME"] for job in (JOB, other)}
    assert homes == {str(tmp_path / "cache")}
    assert str(stage_cache(settings, {"FINERY_HOME": "/cache"})) == "/cache"


def test_a_job_sees_only_the_secrets_that_it_names(settings, tmp_path):
    assert secrets_of(settings, JOB, OUTER) == {"HF_TOKEN": "hf-of-the-service"}
    assert secrets_of(settings, replace(JOB, request=replace(JOB.request, secrets=())), OUTER) == {}


def test_the_project_s_secret_comes_before_the_server_s(settings, tmp_path):
    place = tmp_path / "secrets" / "default"
    place.mkdir(parents=True)
    (place / "HF_TOKEN").write_text("hf-of-the-project\n")
    found = secrets_of(settings, JOB, {**OUTER, "FINERY_SECRET_WANDB": "w"})
    assert found == {"HF_TOKEN": "hf-of-the-project", "WANDB": "w"}

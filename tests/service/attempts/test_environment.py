from dataclasses import replace

import pytest

from service.attempts.environment import environment_of, secret_files, secrets_of, stage_cache
from service.jobs.job import Attempt, Job, JobRequest, Resources
from service.jobs.states import AttemptState, State
from service.safety import secrets
from service.safety.secrets import SecretValue
from service.settings import Settings
from tests.words import words_of

JOB = Job(
    "job-1",
    JobRequest("", "default", secrets=("HF_TOKEN", "SECRET_JUDGE", "LD_PRELOAD", "../../etc/passwd")),
    State.STARTING,
    0.0,
    0.0,
)
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
    passed = {"PATH", "HOME", "LANG", "LC_ALL", "FINERY_DATA", "NCCL_DEBUG", "https_proxy"}
    assert {name for name in OUTER if found.get(name) == OUTER[name]} == passed
    assert "password" not in str(found)
    assert found["FINERY_PUBLIC_ENDPOINTS_ONLY"] == "1", "a recipe's judge must not reach into the server's network"


def test_threads_are_as_many_as_the_placement_has_cores_unless_the_server_was_told_otherwise(settings):
    assert environment_of(settings, JOB, ATTEMPT, OUTER)["OMP_NUM_THREADS"] == "3"
    assert environment_of(settings, JOB, ATTEMPT, {**OUTER, "OMP_NUM_THREADS": "1"})["OMP_NUM_THREADS"] == "1"


def test_stages_are_made_in_the_job_s_own_home_and_read_from_its_project_s_store(settings, tmp_path):
    other = replace(JOB, id="job-2")
    found = [environment_of(settings, job, ATTEMPT, OUTER) for job in (JOB, other)]
    assert [each["FINERY_HOME"] for each in found] == [
        str(tmp_path / "jobs" / job / "cache") for job in (JOB.id, "job-2")
    ]
    assert {each["FINERY_SHARED_STAGES"] for each in found} == {str(tmp_path / "cache" / "default" / "stages")}
    strange = replace(JOB, request=replace(JOB.request, project="other"))
    assert environment_of(settings, strange, ATTEMPT, OUTER)["FINERY_SHARED_STAGES"] == str(
        tmp_path / "cache" / "other" / "stages"
    )
    assert str(stage_cache(settings, {"FINERY_HOME": "/cache"})) == "/cache"


def test_what_is_taken_from_the_hub_is_one_folder_a_project(settings, tmp_path):
    found = environment_of(settings, JOB, ATTEMPT, OUTER)
    assert found["HF_HOME"] == str(tmp_path / "hub" / "default")
    assert not {"HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_TOKEN_PATH"} & found.keys()
    other = replace(JOB, request=replace(JOB.request, project="other"))
    assert environment_of(settings, other, ATTEMPT, OUTER)["HF_HOME"] == str(tmp_path / "hub" / "other")


def test_without_a_network_the_operator_s_caches_are_read_by_all(settings, tmp_path):
    found = environment_of(settings, JOB, ATTEMPT, {**OUTER, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": "/sets"})
    assert (found["HF_HUB_CACHE"], found["HF_DATASETS_CACHE"]) == ("/hf/hub", "/sets")
    assert found["HF_HOME"] == str(tmp_path / "hub" / "default")


@pytest.mark.parametrize(
    "name",
    words_of(
        "HF_MODULES_CACHE HF_ASSETS_CACHE HF_HUB_USER_AGENT_ORIGIN TRANSFORMERS_CACHE TRANSFORMERS_ANYTHING "
        "HF_DATASETS_X"
    ),
)
def test_variables_of_libraries_are_a_closed_list(settings, name):
    assert name not in environment_of(settings, JOB, ATTEMPT, {name: "/somewhere"})


def test_the_server_s_secrets_go_to_nobody_by_themselves(settings):
    outer = {**OUTER, "FINERY_SECRET_SECRET_JUDGE": "of-the-server", "FINERY_SECRET_LD_PRELOAD": "/evil.so"}
    assert secrets_of(settings, JOB, outer) == {}


def test_a_bound_one_goes_to_its_project_with_its_hosts(settings):
    outer = {**OUTER, "FINERY_SECRET_SECRET_JUDGE": "of-the-server"}
    secrets.bind(settings, "SECRET_JUDGE", ("default",), ("api.example.com",))
    found = secrets_of(settings, JOB, outer)
    assert found == {"SECRET_JUDGE": SecretValue("of-the-server", ("api.example.com",))}
    assert secret_files(found) == {"SECRET_JUDGE": "of-the-server", "SECRET_JUDGE.hosts": "api.example.com"}
    assert "of-the-server" not in repr(found)
    assert secrets_of(settings, replace(JOB, request=replace(JOB.request, project="other")), outer) == {}
    assert secrets_of(settings, replace(JOB, request=replace(JOB.request, secrets=())), outer) == {}


def test_the_hub_s_token_is_for_the_hub_whoever_gave_it(settings):
    secrets.bind(settings, "HF_TOKEN", ("default",), ())
    assert secrets_of(settings, JOB, OUTER) == {"HF_TOKEN": SecretValue("hf-of-the-service", ("huggingface.co",))}
    secrets.put(settings, "default", "HF_TOKEN", "hf-of-the-project")
    found = secrets_of(settings, JOB, {**OUTER, "HF_ENDPOINT": "http://hub.internal:5000"})
    assert found == {"HF_TOKEN": SecretValue("hf-of-the-project", ("hub.internal:5000",))}, (
        "the project's own comes before the server's"
    )


def test_the_settings_bind_too_and_what_an_admin_put_stands_before_them(tmp_path):
    settings = Settings(home=tmp_path, server_secrets="SECRET_JUDGE:default+b@api.example.com+other:8000")
    outer = {"FINERY_SECRET_SECRET_JUDGE": "v"}
    assert secrets_of(settings, JOB, outer) == {"SECRET_JUDGE": SecretValue("v", ("api.example.com", "other:8000"))}
    secrets.bind(settings, "SECRET_JUDGE", (), ())
    assert secrets_of(settings, JOB, outer) == {}
    secrets.unbind(settings, "SECRET_JUDGE")
    assert secrets_of(settings, JOB, outer) != {}


@pytest.mark.parametrize(
    "text",
    [
        "SECRET_JUDGE",
        "SECRET_JUDGE:",
        "SECRET_JUDGE:default",
        "LD_PRELOAD:default@h",
        "SECRET_J:De Fault@h",
        "SECRET_J:a@https://h/x",
    ],
)
def test_a_binding_that_binds_nothing_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match="server_secrets"):
        Settings(home=tmp_path, server_secrets=text)

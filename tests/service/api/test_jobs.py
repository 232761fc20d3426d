"""Submitting, listing and moving jobs over HTTP."""

import pytest

from service.jobs.states import State
from tests.service.served import RECIPE, YAML


def test_a_yaml_recipe_becomes_a_queued_job_and_the_scheduler_is_woken(served):
    answer = served.submitter.post(
        "/api/v1/jobs",
        content=RECIPE,
        headers=YAML,
        params={"priority": 7, "gpus": 2, "overrides": ["seed=3", "name=other"]},
    )
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert (job["state"], job["name"], job["priority"], job["resources"]["gpus"]) == ("queued", "other", 7, 2)
    assert job["overrides"] == ["seed=3", "name=other"]
    assert job["actions"] == ["pause", "cancel"]
    assert served.woken == 1
    kept = served.store.job(job["id"]).request
    assert (kept.recipe, kept.project) == (RECIPE, "acme")


def test_the_same_as_json_with_the_recipe_as_data(served):
    from pipelines.core.yaml_positions import read_yaml_text

    answer = served.submitter.post(
        "/api/v1/jobs", json={"recipe": read_yaml_text(RECIPE)[0], "resources": {"cpus": 4}, "max_retries": 1}
    )
    assert answer.status_code == 201
    assert served.store.job(answer.json()["id"]).request.max_retries == 1
    shown = served.submitter.get(f"/api/v1/jobs/{answer.json()['id']}/recipe")
    assert read_yaml_text(shown.text)[0] == read_yaml_text(RECIPE)[0]


def test_every_mistake_of_a_recipe_comes_back_with_line_and_key(served):
    wrong = (
        RECIPE.replace("bert-tiny", "bert-tinny")
        .replace("max_length: 32", "max_length: -1")
        .replace("demo-model", "/srv/x")
    )
    answer = served.submitter.post("/api/v1/jobs", content=wrong, headers=YAML)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "bad_recipe"
    assert [(each["line"], each["key"]) for each in problem["errors"]] == [
        (3, "model.architecture.preset"),
        (6, "stages.supervised.max_length"),
        (8, "stages.publish.to"),
    ]
    assert "Did you mean 'bert-tiny'?" in problem["errors"][0]["message"]
    assert served.store.jobs() == []


def test_a_tracker_that_jobs_cannot_have_is_refused_when_it_is_submitted(served, monkeypatch):
    monkeypatch.setattr("service.submission.missing_package", lambda name: name if name == "mlflow" else None)
    for tracker, sentence in (("mlflow", "is not installed where jobs run"), ("comet_ml", "the server's own account")):
        recipe = RECIPE.replace("max_steps: 4", f"max_steps: 4, report_to: [{tracker}]")
        answer = served.submitter.post("/api/v1/jobs", content=recipe, headers=YAML)
        [error] = answer.json()["errors"]
        assert (answer.status_code, sentence in error["message"]) == (422, True)


def test_the_same_key_and_request_is_one_job_and_another_request_a_conflict(served):
    headers = {**YAML, "Idempotency-Key": "k1"}
    first, again = (served.submitter.post("/api/v1/jobs", content=RECIPE, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotent-replayed"] == "true"
    other = served.submitter.post("/api/v1/jobs", content=RECIPE + "seed: 1\n", headers=headers)
    assert other.status_code == 409
    assert served.stranger.post("/api/v1/jobs", content=RECIPE, headers=headers).status_code == 201, (
        "keys belong to a project"
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"recipe": 1}', 422),
        (b'{"recipe": "x", "more": 1}', 422),
        (b'{"recipe": {"a": "\\ud800"}}', 422),
        (b'{"recipe": ' + b'{"a":' * 300 + b"1" + b"}" * 301, 422),
        (b'{"recipe": ' + b"[" * 100_000, 422),
        (b'{"recipe": "x", "deadline": "2026-01-01T00:00:00"}', 422),
        (b'{"recipe": "x", "depends_on": ["job-\\u0000"]}', 422),
        (b'{"recipe": "x", "priority": 1e99}', 422),
    ],
)
def test_json_that_is_no_submission_is_refused_in_words(served, body, status):
    answer = served.submitter.post("/api/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"]


def test_other_media_types_are_told_which_ones_are_taken(served):
    answer = served.submitter.post("/api/v1/jobs", content=RECIPE, headers={"Content-Type": "image/png"})
    assert answer.status_code == 415
    assert "application/yaml" in answer.json()["detail"]
    assert served.submitter.post("/api/v1/jobs", content=b"\xff\xfe", headers=YAML).status_code == 422


def test_pages_follow_each_other_without_gap_or_repeat(served):
    ids = [served.job(overrides=f"name=demo-{number}") for number in range(5)]
    found, after = [], None
    while True:
        page = served.viewer.get("/api/v1/jobs", params={"limit": 2, **({"after": after} if after else {})}).json()
        found += [job["id"] for job in page["data"]]
        after = page["next"]
        if after is None:
            break
    assert found == ids[::-1]


def test_filters_by_state_name_and_part_of_the_name(served):
    one, two = served.job(overrides="name=first"), served.job(overrides="name=second")
    served.submitter.post(f"/api/v1/jobs/{one}/cancel")

    def ids(**query):
        return [job["id"] for job in served.viewer.get("/api/v1/jobs", params=query).json()["data"]]

    assert ids(state="cancelled") == [one]
    assert ids(state=["cancelled", "queued"]) == [two, one]
    assert ids(name="second") == [two]
    assert ids(search="FIR") == [one]
    assert ids(kind="openai") == []
    assert served.viewer.get("/api/v1/jobs/counts").json()["queued"] == 1


def test_the_table_of_transitions_answers_over_http(served):
    job = served.job()
    for action, state in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled"), ("retry", "queued")):
        answer = served.submitter.post(f"/api/v1/jobs/{job}/{action}")
        assert (answer.status_code, answer.json()["state"]) == (200, state)
    refused = served.submitter.post(f"/api/v1/jobs/{job}/retry")
    assert refused.status_code == 409
    assert "'retry' is possible when it is" in refused.json()["detail"]


def test_a_running_job_is_asked_to_stop(served):
    job = served.job()
    attempt = served.started(job)
    served.written(attempt, [{"event": "started"}])
    assert served.submitter.post(f"/api/v1/jobs/{job}/cancel").json()["state"] == "cancelling"
    assert served.viewer.get(f"/api/v1/jobs/{job}/attempts").json()[0]["hosts"] == [{"host": "here", "gpus": []}]


def test_priority_changes_until_the_job_has_ended(served):
    job = served.job()
    assert served.submitter.post(f"/api/v1/jobs/{job}/priority", json={"priority": 5}).json()["priority"] == 5
    assert served.submitter.post(f"/api/v1/jobs/{job}/priority", json={"priority": 5000}).status_code == 422
    served.submitter.post(f"/api/v1/jobs/{job}/cancel")
    assert served.submitter.post(f"/api/v1/jobs/{job}/priority", json={"priority": 6}).status_code == 409


def test_a_job_that_starts_from_anothers_model_waits_for_it(served):
    first = served.job()
    second = served.job(
        RECIPE.replace("architecture: {preset: bert-tiny}", "checkpoint: 'job:demo'")
        .replace("tokenizer: {train: wordpiece, vocab_size: 600}\n", "")
        .replace("name: demo", "name: next")
    )
    assert served.store.job(second).request.depends_on == (first,)


def test_depending_on_a_foreign_job_is_404(served):
    foreign = served.stranger.post("/api/v1/jobs", content=RECIPE, headers=YAML).json()["id"]
    assert served.submitter.post("/api/v1/jobs", json={"recipe": RECIPE, "depends_on": [foreign]}).status_code == 404


def test_a_project_with_its_limit_of_waiting_jobs_is_told_so(served):
    served.admin.put("/api/v1/projects/acme", json={"max_queued": 1})
    served.job()
    answer = served.submitter.post("/api/v1/jobs", content=RECIPE, headers=YAML)
    assert answer.status_code == 429
    assert answer.headers["retry-after"]


def test_validate_checks_and_submits_nothing(served):
    study = (
        RECIPE.replace("  - {stage: publish, to: demo-model}\n", "")
        + "matrix: {stages.supervised.seed: [1, 2, 3]}\nlaunch: {num_processes: 2}\n"
    )
    answer = served.viewer.post("/api/v1/validate", content=study, headers=YAML)
    assert answer.json()["cells"] == 3
    assert answer.json()["resources"]["cpus"] == 2, "a core for each process when nothing is asked for"
    assert served.viewer.post("/api/v1/validate", content="x", headers=YAML).status_code == 422
    assert served.store.jobs() == []


@pytest.mark.parametrize(("resources", "most"), [({"gpus": 2, "hosts": 2}, 4), ({"cpus": 3}, 3)])
def test_a_job_has_a_process_for_each_gpu_or_core_of_all_its_hosts(served, resources, most):
    for processes, status in ((most, 200), (most + 1, 422)):
        asked = {"recipe": RECIPE + f"launch: {{num_processes: {processes}}}\n", "resources": resources}
        assert served.viewer.post("/api/v1/validate", json=asked).status_code == status


def test_the_schema_is_that_of_a_recipe(served):
    assert "stages" in served.viewer.get("/api/v1/schema").json()["properties"]


def test_all_states_can_be_asked_for(served):
    assert served.viewer.get("/api/v1/jobs", params={"state": [str(state) for state in State]}).status_code == 200
    assert served.viewer.get("/api/v1/jobs", params={"state": "x"}).status_code == 422
    assert served.viewer.get("/api/v1/jobs", params={"name": "a\x00"}).status_code == 422


def test_the_same_key_finds_its_job_also_when_what_it_waits_for_has_ended_meanwhile(served):
    attempt = served.started(served.job())
    second = (
        RECIPE.replace("architecture: {preset: bert-tiny}", "checkpoint: 'job:demo'")
        .replace("tokenizer: {train: wordpiece, vocab_size: 600}\n", "")
        .replace("name: demo", "name: next")
    )
    headers = {**YAML, "Idempotency-Key": "k"}
    first = served.submitter.post("/api/v1/jobs", content=second, headers=headers)
    served.written(attempt, [{"event": "started"}])
    model = served.settings.jobs / attempt.job / "runs/demo/stages/01-supervised/model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    served.succeeded(attempt)
    again = served.submitter.post("/api/v1/jobs", content=second, headers=headers)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])

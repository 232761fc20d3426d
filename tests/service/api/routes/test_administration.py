"""Tokens, projects, hosts and secrets."""

import pytest

from service.jobs.job import Host, Slot
from tests.service.served import YAML


def test_a_token_is_shown_once_and_kept_as_a_hash(served):
    made = served.admin.post("/api/v1/tokens", json={"project": "acme", "role": "viewer", "name": "Ada"}).json()
    assert made["token"].startswith(f"fin_{made['prefix']}_")
    listed = served.admin.get("/api/v1/tokens", params={"project": "acme"})
    assert made["token"] not in listed.text
    assert made["token"].removeprefix(f"fin_{made['prefix']}_") not in (
        served.settings.home / "finery.db"
    ).read_bytes().decode("latin-1")
    assert [each["name"] for each in listed.json()][-1] == "Ada"


@pytest.mark.parametrize(
    "body",
    [
        {"project": "A B"},
        {"project": "../x"},
        {"project": ""},
        {"project": "a", "role": "root"},
        {"project": "a", "expires": "2030-01-01T00:00:00"},
        {"more": 1},
    ],
)
def test_no_token_is_made_of_a_wrong_request(served, body):
    assert served.admin.post("/api/v1/tokens", json=body).status_code == 422


def test_limits_that_are_left_out_stay_and_null_lifts_one(served):
    assert served.admin.put("/api/v1/projects/new", json={"weight": 2, "max_gpus": 4}).json()["max_gpus"] == 4
    project = served.admin.put("/api/v1/projects/new", json={"max_gpus": None, "max_running": 1}).json()
    assert (project["weight"], project["max_gpus"], project["max_running"]) == (2, None, 1)
    assert "new" in [each["name"] for each in served.admin.get("/api/v1/projects").json()]
    assert served.admin.put("/api/v1/projects/new", json={"weight": 0}).status_code == 422


ODD = f"model: {{checkpoint: someone/odd, revision: {'a' * 40}, trust_remote_code: true}}"


def test_code_of_a_repository_is_allowed_for_one_project_and_taken_back(served):
    """The submission is refused before and after, and in every other project."""
    text = f"name: odd\n{ODD}\nstages:\n  - {{stage: evaluate, benchmarks: [glue/mrpc]}}\n"

    def submitted(client):
        return client.post("/api/v1/validate", content=text, headers=YAML).json()

    assert [each["key"] for each in submitted(served.submitter)["errors"]] == ["model.trust_remote_code"]
    pair = f"someone/odd@{'a' * 40}"
    assert served.submitter.put("/api/v1/projects/acme", json={"remote_code": [pair]}).status_code == 403
    assert served.admin.put("/api/v1/projects/acme", json={"remote_code": [pair]}).json()["remote_code"] == [pair]
    assert served.admin.put("/api/v1/projects/acme", json={"weight": 2}).json()["remote_code"] == [pair]
    assert "errors" not in submitted(served.submitter) or not submitted(served.submitter)["errors"]
    assert "someone/odd" in submitted(served.stranger)["errors"][0]["message"]
    for wrong in (["someone/odd"], ["someone/odd@main"], [f"{pair} "], pair):
        assert served.admin.put("/api/v1/projects/acme", json={"remote_code": wrong}).status_code == 422
    assert served.admin.put("/api/v1/projects/acme", json={"remote_code": None}).json()["remote_code"] == []
    assert submitted(served.submitter)["errors"]


def test_hosts_are_listed_with_their_gpus_and_drained(served):
    served.store.report_host(Host("h1", cpus=8, memory=1 << 30, slots=(Slot(0, "H200", 1 << 37),)))
    assert served.admin.get("/api/v1/hosts").json()[0]["gpus"] == [
        {"index": 0, "kind": "H200", "memory": 1 << 37, "attempt": None}
    ]
    assert served.admin.post("/api/v1/hosts/h1/state", json={"state": "draining"}).json()[0]["state"] == "draining"
    assert served.woken == 1
    assert served.admin.post("/api/v1/hosts/h2/state", json={"state": "up"}).status_code == 404
    assert served.admin.post("/api/v1/hosts/h1/state", json={"state": "gone"}).status_code == 422


def test_a_secret_is_written_and_never_read_back(served):
    assert served.submitter.put("/api/v1/secrets/HF_TOKEN", json={"value": " s3cret-value\n"}).status_code == 204
    path = served.settings.home / "secrets" / "acme" / "HF_TOKEN"
    assert path.read_text() == "s3cret-value"
    assert path.stat().st_mode & 0o777 == 0o600
    assert served.viewer.get("/api/v1/secrets").json() == ["HF_TOKEN"]
    assert served.stranger.get("/api/v1/secrets").json() == []
    assert served.submitter.delete("/api/v1/secrets/HF_TOKEN").status_code == 204
    assert served.submitter.delete("/api/v1/secrets/HF_TOKEN").status_code == 404


@pytest.mark.parametrize("name", ["PATH", "LD_PRELOAD", "PYTHONPATH", "FINERY_HOME", "a-b", "..", "9x", "x" * 65])
def test_no_secret_takes_the_name_of_a_variable_that_rules_processes(served, name):
    assert served.submitter.put(f"/api/v1/secrets/{name}", json={"value": "x"}).status_code in (404, 405, 422)
    assert served.viewer.get("/api/v1/secrets").json() == []

"""Who may do what: tokens, roles, projects, and what is told to those who may not."""

import time

import pytest

from service.api.health import PROBES
from tests.service.served import RECIPE, YAML

DENIED = [
    ("post", "/api/v1/jobs"),
    ("post", "/api/v1/jobs/x/cancel"),
    ("post", "/api/v1/files"),
    ("post", "/api/v1/files/upload"),
    ("delete", "/api/v1/files/x"),
    ("delete", "/api/v1/models/x"),
    ("put", "/api/v1/secrets/X"),
    ("post", "/v1/files"),
    ("post", "/v1/fine_tuning/jobs"),
]
FOR_ADMINS = [
    ("get", "/api/v1/tokens"),
    ("post", "/api/v1/tokens"),
    ("get", "/api/v1/hosts"),
    ("get", "/api/v1/projects"),
    ("delete", "/api/v1/tokens/x"),
]


def sent(client, method, path):
    body = (
        {
            "json": {
                "project": "acme",
                "filename": "x.csv",
                "value": "x",
                "model": "scratch/gpt-tiny",
                "training_file": "x",
            }
        }
        if method in ("post", "put")
        else {}
    )
    return client.request(method, path, **body)


def test_every_route_but_the_two_of_operators_needs_a_token(served):
    paths = served.app.openapi()["paths"]
    asked = 0
    for path, methods in paths.items():
        for method in methods:
            answer = served.nobody.request(method, path.replace("{", "").replace("}", ""))
            if path in (*PROBES, "/metrics"):
                assert answer.status_code == 200
            elif answer.status_code != 429:  # an address that sends no token twenty times is slowed down
                asked += 1
                assert answer.status_code == 401, (method, path, answer.text)
    assert asked >= 20


@pytest.mark.parametrize(("method", "path"), DENIED)
def test_a_viewer_changes_nothing(served, method, path):
    answer = sent(served.viewer, method, path)
    assert answer.status_code == 403
    assert "submitter" in answer.text


@pytest.mark.parametrize(("method", "path"), FOR_ADMINS)
def test_tokens_projects_and_hosts_are_for_admins(served, method, path):
    assert sent(served.submitter, method, path).status_code == 403


@pytest.mark.parametrize("text", ["", "x", "fin_aaaaaaaaaaaa_" + "a" * 43, "fin__", "Bearer x", "é"])
def test_a_wrong_token_is_401_as_a_problem(served, text):
    answer = served.nobody.get("/api/v1/me", headers={"Authorization": f"Bearer {text}".encode()})
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_right_prefix_with_another_secret_is_wrong(served):
    text = served.token("admin")
    other = text[:-4] + ("AAAA" if not text.endswith("AAAA") else "BBBB")
    assert served.nobody.get("/api/v1/me", headers={"Authorization": f"Bearer {other}"}).status_code == 401


def test_a_revoked_or_expired_token_opens_nothing(served):
    made = served.admin.post("/api/v1/tokens", json={"project": "acme", "role": "viewer"}).json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert served.nobody.get("/api/v1/me", headers=headers).json() == {
        "token": made["id"],
        "project": "acme",
        "role": "viewer",
    }
    served.admin.delete(f"/api/v1/tokens/{made['id']}")
    assert served.nobody.get("/api/v1/me", headers=headers).status_code == 401
    late = served.admin.post("/api/v1/tokens", json={"project": "acme", "expires": "2020-01-01T00:00:00Z"}).json()
    assert served.nobody.get("/api/v1/me", headers={"Authorization": f"Bearer {late['token']}"}).status_code == 401


def test_another_projects_things_are_not_there_for_anybody_but_an_admin(served):
    job = served.job()
    file = served.submitter.post("/api/v1/files/upload", params={"filename": "a.csv"}, content=b"a").json()["id"]
    paths = [
        f"/api/v1/jobs/{job}{rest}"
        for rest in ("", "/events", "/logs", "/metrics", "/recipe", "/stages", "/attempts", "/cells", f"/diff/{job}")
    ]
    for path in [*paths, f"/api/v1/files/{file}", f"/api/v1/files/{file}/content"]:
        assert served.stranger.get(path).status_code == 404, path
        assert served.admin.get(path).status_code == 200, path
    for action in ("pause", "cancel", "retry", "resume"):
        assert served.stranger.post(f"/api/v1/jobs/{job}/{action}").status_code == 404
    assert served.stranger.get("/api/v1/jobs").json()["data"] == []
    assert served.stranger.get("/api/v1/files").json()["data"] == []
    assert served.stranger.delete(f"/api/v1/files/{file}").status_code == 404
    assert served.viewer.get(f"/api/v1/jobs/{job}").status_code == 200


def test_a_foreign_id_and_an_unknown_one_are_answered_alike(served):
    job = served.job()
    foreign, unknown = (
        served.stranger.get(f"/api/v1/jobs/{each}") for each in (job, job[:-1] + ("0" if job[-1] != "0" else "1"))
    )
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json()["title"] == unknown.json()["title"]


def test_an_admin_acts_for_a_project_and_nobody_else_does(served):
    answer = served.admin.post("/api/v1/jobs", content=RECIPE, headers={**YAML, "X-Finery-Project": "acme"})
    assert answer.json()["project"] == "acme"
    assert served.submitter.get("/api/v1/jobs", headers={"X-Finery-Project": "others"}).status_code == 403
    assert served.admin.get("/api/v1/jobs", headers={"X-Finery-Project": "../x"}).status_code == 422


def test_a_token_that_asks_too_often_is_told_when_to_come_back(served):
    served.app.state.service.limiter.burst = 3
    served.app.state.service.limiter.rate = 0.5
    client = served.client("viewer")
    answers = [client.get("/api/v1/me") for _ in range(5)]
    assert [each.status_code for each in answers] == [200, 200, 200, 429, 429]
    assert int(answers[3].headers["retry-after"]) == 2
    assert served.client("viewer").get("/api/v1/me").status_code == 200, "another token is not slowed down"


def test_guessing_tokens_is_slowed_down(served):
    begun = time.monotonic()
    answers = [served.nobody.get("/api/v1/me", headers={"Authorization": "Bearer x"}).status_code for _ in range(30)]
    assert time.monotonic() - begun < 5
    assert answers[0] == 401
    assert answers[-1] == 429

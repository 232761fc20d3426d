"""Tokens, projects, hosts and secrets; the audit trail of every change; no folder of the server is named to readers."""

import json
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from service.api.administration import server_folders
from service.jobs.job import GpuSlot, Host
from service.jobs.states import Ending, Move
from service.safety.redaction import Redactor
from service.settings import read_settings
from service.store.audit import ACTIONS
from service.web.sessions import Sessions
from tests.service.served import RECIPE, YAML, published


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
    served.store.report_host(Host("h1", cpus=8, memory=1 << 30, slots=(GpuSlot(0, "H200", 1 << 37),)))
    assert served.admin.get("/api/v1/hosts").json()[0]["gpus"] == [
        {"index": 0, "kind": "H200", "memory": 1 << 37, "attempt": None}
    ]
    assert served.admin.post("/api/v1/hosts/h1/state", json={"state": "draining"}).json()[0]["state"] == "draining"
    assert served.woken == 1
    assert served.admin.post("/api/v1/hosts/h2/state", json={"state": "up"}).status_code == 404
    assert served.admin.post("/api/v1/hosts/h1/state", json={"state": "draining", "stop": True}).status_code == 200
    for wrong in ({"state": "gone"}, {"state": "up", "stop": True}, {"state": "down", "stop": True}):
        assert served.admin.post("/api/v1/hosts/h1/state", json=wrong).status_code == 422


def test_a_secret_is_written_and_never_read_back(served):
    assert served.submitter.put("/api/v1/secrets/HF_TOKEN", json={"value": " s3cret-value\n"}).status_code == 204
    path = served.settings.home / "secrets" / "acme" / "HF_TOKEN"
    assert path.read_text() == "s3cret-value"
    assert path.stat().st_mode & 0o777 == 0o600
    assert served.viewer.get("/api/v1/secrets").json() == ["HF_TOKEN"]
    assert served.stranger.get("/api/v1/secrets").json() == []
    assert served.submitter.delete("/api/v1/secrets/HF_TOKEN").status_code == 204
    assert served.submitter.delete("/api/v1/secrets/HF_TOKEN").status_code == 404


CHANGES = {"POST", "PUT", "PATCH", "DELETE"}
CHANGES_NOTHING = {
    "POST /api/v1/validate",  # answers a question
    "PATCH /api/v1/files/{file_id}",  # a piece of an upload, whose beginning and end are written
    "POST /theme",  # a cookie of the browser
    "POST /submit/form",  # the form again, with another row
    "POST /submit/check",  # answers a question
    *(f"POST /v1/{each}" for each in ("completions", "embeddings", "chat/completions")),  # a model's answers
    *(f"POST /v1/fine_tuning/alpha/graders/{each}" for each in ("run", "validate")),  # answers of graders
    "POST /api/v1/models/{name}/predict",  # the same
    *(f"POST /models/{{model_id}}/try/{each}" for each in ("start", "{name}", "{name}/stream")),  # the same, on a page
}
CHAT = (
    json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}).encode() + b"\n"
)


def announced(served):
    return served.submitter.post("/api/v1/files", json={"filename": "a.csv"}).json()["id"]


def sent(served):
    file = announced(served)
    served.submitter.patch(f"/api/v1/files/{file}", content=b"x", headers={"Upload-Offset": "0"})
    return file


def training_file(served):
    return served.submitter.post(
        "/v1/files", files={"file": ("t.jsonl", CHAT * 20)}, data={"purpose": "fine-tune"}
    ).json()["id"]


def fine_tuning(served):
    body = {"model": "scratch/gpt-tiny", "training_file": training_file(served)}
    return served.submitter.post("/v1/fine_tuning/jobs", json=body).json()["id"]


def paused(served, job):
    served.store.move(job.removeprefix("ft"), Move.PAUSE)
    return job


def failed(served):
    attempt = served.started(served.job())
    served.store.end_attempt(attempt.id, attempt.fencing, Ending(Move.FAIL))
    return attempt.job


def model(served):
    published(served, served.started(served.job()))


def version(served):
    model(served)
    return served.store.model("acme", "demo-model").id


def staging(served):
    served.submitter.put(f"/api/v1/models/{version(served)}/aliases/staging", json={"version": 1})
    return served.store.model("acme", "demo-model").id


def deleted(served):
    return served.store.mark_deleted(version(served)).id


CRITERION = {
    "type": "string_check",
    "name": "same",
    "input": "{{sample.output_text}}",
    "reference": "x",
    "operation": "eq",
}
ANSWERS = {
    "type": "jsonl",
    "source": {"type": "file_content", "content": [{"item": {}, "sample": {"output_text": "x"}}]},
}


def evaluation(served):
    body = {"data_source_config": {"type": "custom", "item_schema": {}}, "testing_criteria": [CRITERION]}
    return served.submitter.post("/v1/evals", json=body).json()["id"]


def measured(served):
    return served.submitter.post(f"/v1/evals/{evaluation(served)}/runs", json={"data_source": ANSWERS}).json()["id"]


def of_run(method, ending=""):
    """A request to a run, which names its eval too."""
    return lambda client, run: client.request(
        method, f"/v1/evals/{client.get('/v1/evals?order=desc&limit=1').json()['data'][0]['id']}/runs/{run}{ending}"
    )


def grant(client):
    return client.post(
        "/v1/fine_tuning/checkpoints/demo-model/permissions",
        json={"project_ids": ["others"]},
        headers={"X-Finery-Project": "acme"},
    )


def granted(served):
    model(served)
    return grant(served.admin).json()["data"][0]["id"]


def token(served):
    return served.admin.post("/api/v1/tokens", json={"role": "viewer"}).json()["id"]


def secret(served):
    served.submitter.put("/api/v1/secrets/HF_TOKEN", json={"value": "hf_old"})
    return "HF_TOKEN"


def bound(served):
    served.admin.put("/api/v1/server-secrets/HF_TOKEN", json={"projects": ["acme"], "hosts": ["huggingface.co"]})
    return "HF_TOKEN"


def host(served):
    served.store.report_host(Host("here"))
    return "here"


def first_tokens(served):
    return next(token for token in served.store.tokens() if token.role == "submitter" and token.project == "acme").id


ROUTES = {
    "POST /api/v1/jobs": ("job.submit", None, lambda client, _: client.post("/api/v1/jobs", content=RECIPE, headers=YAML)),
    "POST /api/v1/jobs/{job_id}/pause": ("job.pause", lambda served: served.job(), None),
    "POST /api/v1/jobs/{job_id}/resume": ("job.resume", lambda served: paused(served, served.job()), None),
    "POST /api/v1/jobs/{job_id}/cancel": ("job.cancel", lambda served: served.job(), None),
    "POST /api/v1/jobs/{job_id}/retry": ("job.retry", failed, None),
    "POST /api/v1/jobs/{job_id}/priority": ("job.priority", lambda served: served.job(), {"priority": 3}),
    "DELETE /api/v1/jobs/{job_id}": ("job.delete", failed, None),
    "POST /api/v1/files": ("file.create", None, {"filename": "a.csv"}),
    "POST /api/v1/files/upload": ("file.complete", None, lambda client, _: client.post("/api/v1/files/upload?filename=a.csv", content=b"x")),
    "POST /api/v1/files/{file_id}/complete": ("file.complete", sent, {}),
    "DELETE /api/v1/files/{file_id}": ("file.delete", announced, None),
    "DELETE /api/v1/models/{name}": ("model.delete", model, lambda client, _: client.delete("/api/v1/models/demo-model")),
    "PUT /api/v1/models/{name}/aliases/{alias}": (
        "model.alias", version, lambda client, model: client.put(f"/api/v1/models/{model}/aliases/staging", json={"version": 1})
    ),
    "DELETE /api/v1/models/{name}/aliases/{alias}": (
        "model.unalias", staging, lambda client, model: client.delete(f"/api/v1/models/{model}/aliases/staging")
    ),
    "PUT /api/v1/models/{name}/benchmark": (
        "model.benchmark", lambda served: model(served) or "demo-model",
        lambda client, name: client.put(f"/api/v1/models/{name}/benchmark", json={"on": "glue/mrpc.f1"}),
    ),
    "POST /api/v1/models/{name}/promote": ("model.promote", version, {}),
    "POST /api/v1/models/{name}/restore": ("model.restore", deleted, None),
    "POST /api/v1/tokens": ("token.create", None, {"role": "viewer"}),
    "DELETE /api/v1/tokens/{token_id}": ("token.revoke", token, None),
    "PUT /api/v1/projects/{name}": ("project.set", lambda _: "acme", {"max_gpus": 2}),
    "POST /api/v1/hosts/{name}/state": ("host.state", host, {"state": "draining"}),
    "PUT /api/v1/secrets/{name}": ("secret.put", lambda _: "HF_TOKEN", {"value": "hf_new"}),
    "DELETE /api/v1/secrets/{name}": ("secret.delete", secret, None),
    "PUT /api/v1/server-secrets/{name}": ("secret.bind", lambda _: "HF_TOKEN", {"projects": ["acme"], "hosts": ["huggingface.co"]}),
    "DELETE /api/v1/server-secrets/{name}": ("secret.unbind", bound, None),
    "POST /v1/files": ("file.complete", None, lambda client, _: client.post("/v1/files", files={"file": ("t.jsonl", CHAT)}, data={"purpose": "fine-tune"})),
    "DELETE /v1/files/{file_id}": ("file.delete", training_file, None),
    "POST /v1/fine_tuning/jobs": (
        "job.submit", training_file, lambda client, file: client.post("/v1/fine_tuning/jobs", json={"model": "scratch/gpt-tiny", "training_file": file})
    ),
    "POST /v1/fine_tuning/jobs/{job_id}/cancel": ("job.cancel", fine_tuning, None),
    "POST /v1/fine_tuning/jobs/{job_id}/pause": ("job.pause", fine_tuning, None),
    "POST /v1/fine_tuning/jobs/{job_id}/resume": ("job.resume", lambda served: paused(served, fine_tuning(served)), None),
    "DELETE /v1/models/{model}": ("model.delete", model, lambda client, _: client.delete("/v1/models/demo-model")),
    "POST /v1/fine_tuning/checkpoints/{model}/permissions": ("permission.create", model, lambda client, _: grant(client)),
    "DELETE /v1/fine_tuning/checkpoints/{model}/permissions/{permission_id}": (
        "permission.delete", granted, lambda client, made: client.delete(
            f"/v1/fine_tuning/checkpoints/demo-model/permissions/{made}", headers={"X-Finery-Project": "acme"})
    ),
    "POST /v1/evals": ("eval.create", None, {"data_source_config": {"type": "custom", "item_schema": {}}, "testing_criteria": [CRITERION]}),
    "POST /v1/evals/{eval_id}": ("eval.update", evaluation, {"name": "other"}),
    "DELETE /v1/evals/{eval_id}": ("eval.delete", evaluation, None),
    "POST /v1/evals/{eval_id}/runs": ("eval.run", evaluation, lambda client, made: client.post(f"/v1/evals/{made}/runs", json={"data_source": ANSWERS})),
    "POST /v1/evals/{eval_id}/runs/{run_id}": ("eval.cancel", measured, of_run("POST")),
    "POST /v1/evals/{eval_id}/runs/{run_id}/cancel": ("eval.cancel", measured, of_run("POST", "/cancel")),
    "DELETE /v1/evals/{eval_id}/runs/{run_id}": ("eval.delete", measured, of_run("DELETE")),
    "POST /submit": ("job.submit", None, lambda client, _: client.post("/submit", data={"text": RECIPE})),
    "POST /jobs/{job_id}/priority": ("job.priority", lambda served: served.job(), lambda client, job: client.post(f"/jobs/{job}/priority", data={"priority": "3"})),
    "POST /jobs/{job_id}/{move}": ("job.cancel", lambda served: served.job(), lambda client, job: client.post(f"/jobs/{job}/cancel")),
    "POST /models/{model_id}/promote": ("model.promote", version, None),
    "POST /models/{model_id}/alias": ("model.alias", version, lambda client, model: client.post(f"/models/{model}/alias", data={"alias": "staging"})),
    "POST /models/{model_id}/benchmark": (
        "model.benchmark", version, lambda client, model: client.post(f"/models/{model}/benchmark", data={"on": "glue/mrpc.f1"})
    ),
    "POST /models/{model_id}/delete": ("model.delete", version, None),
    "POST /models/{model_id}/restore": ("model.restore", deleted, None),
    "POST /projects/{name}": ("project.set", lambda _: "acme", lambda client, name: client.post(f"/projects/{name}", data={"gigabytes": "2.5"})),
    "POST /sign-in": ("login", None, None),
    "POST /sign-out": ("logout", None, lambda client, _: client.post("/sign-out")),
}  # fmt: skip
"""Route -> (the action of its row, what is made before and named in the path, the request or its body)."""
FOR_ADMINS = re.compile(
    r"(POST|PUT|DELETE) /((api/v1/)?(tokens|projects|hosts|server-secrets)|v1/fine_tuning/checkpoints)"
)


def signed_in(served, route):
    """A client of the pages with the token that the route needs, and the token's id."""
    served.app.state.web_sessions = Sessions(served.store, served.settings.home)
    client = TestClient(served.app, base_url="http://testserver", follow_redirects=False)

    def form_of(path):
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', client.get(path).text)
        assert found, path
        return found.group(1)

    client.headers["X-CSRF-Token"] = form_of("/sign-in")
    text = served.token("admin" if FOR_ADMINS.match(route) else "submitter")
    assert client.post("/sign-in", data={"token": text}).status_code == 303
    client.headers["X-CSRF-Token"] = form_of("/jobs")
    return client, served.store.tokens()[-1].id


def mutating(app):
    """`METHOD /path` of every route that can change something, documented ones and pages."""
    documented = {
        f"{method.upper()} {path.replace(':path', '')}"
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if method.upper() in CHANGES
    }
    pages = {
        f"{method} {route.path}"
        for route in routes(app)
        if not route.include_in_schema
        for method in route.methods & CHANGES
    }
    return documented, pages


def routes(app):
    """Every route of the application, however deep its routers are included."""
    waiting, found = list(app.routes), []
    while waiting:
        route = waiting.pop()
        if isinstance(route, APIRoute):
            found.append(route)
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        waiting += list(getattr(inner, "routes", ()))
    return found


def test_every_route_that_can_change_something_is_in_the_list(served):
    documented, pages = mutating(served.app)
    assert min(len(documented) - 12, len(pages)) >= 8, "the lister is blind"
    assert documented | pages == set(ROUTES) | CHANGES_NOTHING, (
        "say here which row the new route leaves, or that it changes nothing"
    )


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_that_changes_something_leaves_a_row_of_who_did_it(served, route):
    action, before, how = ROUTES[route]
    method, path = route.split(" ")
    named = (before(served) if before else "") or ""
    page = None if path.startswith(("/api/", "/v1/")) else signed_in(served, route)
    newest = served.store.audit(limit=1)[0].id
    if route == "POST /sign-in":
        actor = page[1]
        rows = [row for row in served.store.audit(action="login") if row.actor == actor]
        assert [(row.thing, row.project, row.address) for row in rows] == [(actor, "acme", "testclient")]
        return
    if page is None:
        client = served.admin if FOR_ADMINS.match(route) else served.submitter
        actor = client.get("/api/v1/me").json()["token"]
    else:
        client, actor = page
    address = re.sub(r"\{\w+\}", named, path)
    answer = (
        how(client, named)
        if callable(how)
        else client.request(method, address, json=how)
        if how is not None
        else client.request(method, address)
    )
    assert answer.status_code in (200, 201, 204, 303), answer.text
    rows = [row for row in served.store.audit(limit=20) if row.id > newest]
    mine = [row for row in rows if row.action == action]
    assert len(mine) == 1, [row.action for row in rows]
    row = mine[0]
    assert (row.actor, row.address) == (actor, "testclient")
    assert row.role == ("admin" if FOR_ADMINS.match(route) else "submitter")
    assert row.actor_project == ("default" if client is served.admin else "acme")
    if named and action not in ("job.submit", "model.delete", "model.benchmark", "eval.run"):
        assert row.thing == named.removeprefix("ft")


def test_what_is_refused_leaves_no_row(served):
    job = served.job()
    count = len(served.store.audit(limit=500))
    assert served.stranger.post(f"/api/v1/jobs/{job}/cancel").status_code == 404
    assert served.viewer.post(f"/api/v1/jobs/{job}/cancel").status_code == 403
    assert served.submitter.post(f"/api/v1/jobs/{job}/resume").status_code == 409
    assert served.submitter.post("/api/v1/jobs", content="name: [", headers=YAML).status_code == 422
    assert served.submitter.put("/api/v1/secrets/LD_PRELOAD", json={"value": "x"}).status_code == 422
    assert served.submitter.delete("/api/v1/secrets/NEVER_THERE").status_code == 404
    assert len(served.store.audit(limit=500)) == count


def test_the_same_submission_again_is_one_row(served):
    for _ in range(2):
        served.submitter.post("/api/v1/jobs", content=RECIPE, headers={**YAML, "Idempotency-Key": "k"})
    assert len(served.store.audit(action="job.submit")) == 1


def test_an_admin_reads_it_by_filters_and_stable_pages(served):
    jobs = [served.job() for _ in range(5)]
    served.submitter.post(f"/api/v1/jobs/{jobs[0]}/cancel")
    actor = served.submitter.get("/api/v1/me").json()["token"]

    def read(**query):
        answer = served.admin.get("/api/v1/audit", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert [row["thing"] for row in read(action="job.submit")["data"]] == jobs[::-1]
    assert [row["action"] for row in read(thing=jobs[0])["data"]] == ["job.cancel", "job.submit"]
    assert {row["actor"] for row in read(actor=actor)["data"]} == {actor}
    assert read(project="others", action="job.submit")["data"] == []
    first = read(action="job.submit", limit=2)
    served.job()  # newer ones do not move the next page
    second = read(action="job.submit", limit=2, after=first["next"])
    third = read(action="job.submit", limit=2, after=second["next"])
    assert [row["thing"] for row in first["data"] + second["data"] + third["data"]] == jobs[::-1]
    assert third["next"] is None
    later = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    assert read(since=later)["data"] == []
    assert len(read(until=later, action="job.cancel")["data"]) == 1
    for bad in ({"action": "job.invented"}, {"since": "2026-01-01T00:00:00"}, {"limit": 0}, {"actor": "x" * 65}):
        assert served.admin.get("/api/v1/audit", params=bad).status_code == 422


def test_an_admin_who_acts_for_a_project_reads_that_project(served):
    served.job()
    answer = served.admin.get("/api/v1/audit", headers={"X-Finery-Project": "others"}, params={"action": "job.submit"})
    assert answer.json()["data"] == []


def test_the_words_of_the_documents_are_those_of_the_store(served):
    parameters = served.app.openapi()["paths"]["/api/v1/audit"]["get"]["parameters"]
    listed = next(each for each in parameters if each["name"] == "action")["schema"]["anyOf"][0]["enum"]
    assert sorted(listed) == sorted(ACTIONS)
    assert {action for action, _, _ in ROUTES.values()} <= set(ACTIONS)


def test_a_home_behind_a_link_is_hidden_under_both_its_names(tmp_path):
    (tmp_path / "disk" / "home").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk" / "home")
    folders = server_folders(
        read_settings({}, home=tmp_path / "home"),
        {"FINERY_DATA": f"/srv/mirror{os.pathsep}/srv/other", "HF_HOME": "/srv/hub"},
    )
    redactor = Redactor((), folders)
    for place in (tmp_path / "home", tmp_path / "disk" / "home"):
        assert redactor.text(f"{place}/cache/stages/x") == "stages/x"
        assert redactor.text(f"no space left in {place}") == "no space left in ."
    assert (
        redactor.text("/srv/other/glue/mrpc, /srv/mirror/x, /srv/hub/hub/models--a--b")
        == "glue/mrpc, x, hub/models--a--b"
    )


def test_a_traceback_names_no_place_of_the_installation(tmp_path):
    redactor = Redactor((), server_folders(read_settings({}, home=tmp_path), {}))
    code = Path(__file__).parents[3] / "pipelines" / "runs" / "run.py"
    shown = redactor.text(f'File "{code}", line 3\nFile "{sys.prefix}/lib/python3/site-packages/torch/x.py"')
    assert shown == 'File "pipelines/runs/run.py", line 3\nFile "lib/python3/site-packages/torch/x.py"'
    assert redactor.text(f"{Path.home()}/.cache/huggingface/hub/x") == "hub/x"

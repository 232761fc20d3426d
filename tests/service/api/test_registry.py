"""Aliases, promotion, comparison, deletion and lineage over HTTP."""

import json

import pytest

from pipelines.studies.compare import compare
from service.attempts.preparing import Missing, prepare
from service.disk import sweep_models
from service.serving import comparing
from tests.pipelines.studies.written_runs import right
from tests.service.served import published
from tests.service.serving import compared

ON_THE_MODEL = """\
name: again
model: {checkpoint: "model:demo-model@production"}
stages:
  - {stage: supervised, task: builtin/python-docs, max_length: 32, arguments: {max_steps: 4}}
  - {stage: publish, to: again}
"""
V1 = "/api/v1/models/demo-model"


@pytest.fixture
def versions(served):
    """Publishes the next version of demo-model, with that share of MRPC answered rightly."""
    attempt = served.started(served.job())
    served.written(attempt, [{"event": "started"}])

    def publish(share=None, seed=1, first=0):
        publish.count += 1
        folder = published(served, attempt, fingerprint=f"{publish.count:08d}", f1=share or 0.5)
        if share is not None:
            compared.write(folder, right(share, seed), first)
        return folder

    publish.count, publish.attempt = 0, attempt
    return publish


def named(answer):
    assert answer.status_code == 200, answer.text
    return {each["alias"]: each["version"] for each in answer.json()["aliases"]}


def test_aliases_are_set_by_submitters_and_move_every_name_that_uses_them(served, versions):
    for _ in range(3):
        versions()
    assert named(served.submitter.put(f"{V1}/aliases/staging", json={"version": 2})) == {
        "latest": 3,
        "best": 1,
        "staging": 2,
    }
    [staged] = [each for each in served.viewer.get(f"{V1}@staging").json()["aliases"] if each != "best"]
    assert (staged, served.viewer.get(f"{V1}@staging").json()["version"]) == ("staging", 2)
    assert served.viewer.get("/v1/models/demo-model@staging").json()["id"] == "demo-model"
    rows = served.viewer.get("/api/v1/models", params={"name": "demo-model"}).json()["data"]
    assert [(each["version"], each["aliases"]) for each in rows] == [(3, ["latest"]), (2, ["staging"]), (1, ["best"])]
    assert named(served.submitter.delete(f"{V1}/aliases/staging")) == {"latest": 3, "best": 1}
    for request, status, sentence in (
        (served.viewer.put(f"{V1}/aliases/staging", json={"version": 2}), 403, "needs the role submitter"),
        (served.stranger.put(f"{V1}/aliases/staging", json={"version": 2}), 404, "there is no model"),
        (served.stranger.get(f"{V1}/aliases"), 404, "there is no model"),
        (served.submitter.put(f"{V1}/aliases/staging", json={"version": 9}), 404, "'demo-model@9'"),
        (served.submitter.put(f"{V1}/aliases/latest", json={"version": 2}), 422, "'@latest' sets itself"),
        (served.submitter.put(f"{V1}/aliases/A b", json={"version": 2}), 422, "is no alias: small letters"),
        (served.submitter.put(f"{V1}/aliases/production", json={"version": 2}), 409, "moved by a promotion"),
        (served.submitter.delete(f"{V1}/aliases/staging"), 404, "there is no alias 'demo-model@staging'"),
        (served.submitter.put(f"{V1}/benchmark", json={"on": "glue/mrpc.kappa"}), 409, "their scores: glue/mrpc.f1"),
        (served.viewer.get(f"{V1}@staging"), 404, "its aliases: latest, best"),
    ):
        assert (request.status_code, sentence in request.json()["detail"]) == (status, True), request.text


def test_a_version_is_promoted_only_where_it_is_better_beyond_noise_or_with_a_reason(served, versions, monkeypatch):
    for share, seed in ((0.70, 1), (0.71, 2), (0.85, 3)):
        versions(share, seed)
    first = served.submitter.post(f"{V1}@1/promote", json={})
    assert first.json()["sentence"] == "demo-model@production names version 1, its first."
    refused = served.submitter.post(f"{V1}@2/promote", json={"on": "glue/mrpc.f1"})
    assert refused.status_code == 412
    assert "'demo-model@2' is not better beyond noise than 'demo-model@1'" in refused.json()["detail"]
    assert "inside the noise" in refused.json()["detail"]
    assert refused.json()["figures"]["examples"] == 400
    assert served.viewer.get(f"{V1}@production").json()["version"] == 1
    promoted = served.submitter.post(f"{V1}/promote", json={"to": "production"}).json()
    figures = promoted["figures"]
    assert (promoted["before"], promoted["model"]["version"], figures["verdict"]) == (1, 3, "better")
    assert figures["low"] > 0
    assert figures["p"] < 0.05
    assert promoted["sentence"].startswith("demo-model@production moves from version 1 to 3: glue/mrpc.f1 0.")

    monkeypatch.setattr(comparing, "_asked", None)  # what follows is known already, or cannot be compared at all
    answer = served.viewer.get(f"{V1}@3/compare", params={"against": "1"}).json()
    [section] = answer["benchmarks"]
    tested = section["metrics"]["f1"]["difference"]
    assert (answer["model"]["version"], answer["against"]["version"]) == (3, 1)
    assert tested["value"] == pytest.approx(figures["difference"])
    assert tested["p"].keys() == {"bootstrap", "randomisation"}
    assert section["metrics"]["accuracy"]["difference"]["p"].keys() == {"bootstrap", "randomisation", "mcnemar"}
    versions()
    untested = served.submitter.post(f"{V1}/promote", json={})
    assert untested.status_code == 409
    assert "'demo-model@4' was published without its outcomes on each example" in untested.json()["detail"]
    back = served.submitter.post(f"{V1}@4/promote", json={"reason": "the incident of Friday"}).json()
    assert back["sentence"].endswith("from version 3 to 4, untested, because: the incident of Friday")
    assert served.viewer.post(f"{V1}@3/promote", json={}).status_code == 403
    assert served.submitter.delete(f"{V1}/aliases/production").status_code == 403, "the next would be free of the test"
    assert served.submitter.post(f"{V1}@3/promote", json={"on": "glue/cola.f1"}).status_code == 409

    trail = [
        row["details"] for row in served.admin.get("/api/v1/audit", params={"action": "model.promote"}).json()["data"]
    ]
    assert [(row["version"], row.get("was"), row["forced"]) for row in trail] == [
        (4, 3, True),
        (3, 1, False),
        (1, None, False),
    ]
    assert trail[0]["reason"] == "the incident of Friday"
    assert (trail[1]["on"], trail[1]["score"], trail[1]["p"]) == ("glue/mrpc.f1", figures["score"], figures["p"])


def test_versions_of_other_examples_and_outcomes_that_are_none_are_told_apart(served, versions):
    one, other, torn = versions(0.7), versions(0.9, first=1), versions(0.9)
    told = compare([one, other])  # what the process says, asked here: it takes seconds to start
    ids = [served.store.model("acme", f"demo-model@{version}").id for version in (2, 1)]
    served.store.keep_comparison(*ids, comparing._plain(told))
    (torn / "outcomes.parquet").write_bytes(b"PAR1 and no more")
    served.submitter.post(f"{V1}@1/promote", json={})
    untested = served.submitter.post(f"{V1}@2/promote", json={})
    assert untested.status_code == 409
    assert "cannot be tested on glue/mrpc f1: they were scored on other examples" in untested.json()["detail"]
    broken = served.submitter.get(f"{V1}@3/compare", params={"against": "demo-model@1"})
    assert broken.status_code == 409
    assert "outcomes.parquet' is no readable outcomes.parquet" in broken.json()["detail"]
    assert str(served.settings.home) not in broken.text
    assert served.stranger.get(f"{V1}@2/compare", params={"against": "1"}).status_code == 404


def test_a_viewer_sees_what_was_compared_and_starts_nothing(served, versions, monkeypatch):
    one, other = versions(0.7), versions(0.9)
    asked, told = [], compare([one, other])
    monkeypatch.setattr(comparing, "_asked", lambda *given: asked.append(given) or told)
    path, against = f"{V1}@2/compare", {"against": "1"}
    refused = served.viewer.get(path, params=against)
    assert (refused.status_code, refused.json()["code"], asked) == (403, "forbidden", [])
    assert "have not been compared yet" in refused.json()["detail"]
    assert "a submitter must ask for the comparison first" in refused.json()["detail"]
    assert served.submitter.get(path, params=against).status_code == 200
    assert served.viewer.get(path, params=against).json()["benchmarks"][0]["examples"] == 400
    assert served.viewer.get(f"{V1}@1/compare", params={"against": "2"}).status_code == 403, "the other way round"
    assert served.admin.get(f"{V1}@1/compare", params={"against": "2"}).status_code == 404, "of another project"
    assert len(asked) == 1


def test_nothing_that_a_viewer_may_get_starts_a_process(served, versions, monkeypatch):
    for share in (0.7, 0.8):
        versions(share)
    begun = []
    monkeypatch.setattr(type(served.service.served), "_begin", lambda *given: begun.append(given))
    monkeypatch.setattr(type(served.service.served), "_started", lambda *given: begun.append(given))
    paths = served.app.openapi()["paths"]
    of_models = [path for path, methods in paths.items() if "/models" in path and "get" in methods]
    assert len(of_models) > 8
    for path in of_models:
        asked = path.replace("{name}", "demo-model@2").replace("{model}", "demo-model@2").replace("{path}", "README.md")
        answer = served.viewer.get(asked, params={"against": "1"} if path.endswith("compare") else {})
        assert answer.status_code in (200, 403, 404), (asked, answer.text)
    assert begun == []


def test_a_job_keeps_the_version_that_its_alias_stood_for(served, versions):
    for folder in (versions(), versions()):
        (folder / "config.json").write_text('{"model_type": "bert"}')
    served.submitter.post(f"{V1}@1/promote", json={})
    job = served.job(ON_THE_MODEL)
    assert served.viewer.get(f"/api/v1/jobs/{job}").json()["models"] == {"demo-model@production": "demo-model@1"}
    served.submitter.post(f"{V1}@2/promote", json={"reason": "to see that the job stays"})
    spec = prepare(served.store, served.settings, served.store.job(job), served.started(job))
    assert "/demo-model/00000001" in (spec.folder / "recipe.yaml").read_text()
    named = json.loads((spec.folder / "inputs" / "references.json").read_text())
    assert "model:demo-model@1" in named.values()
    refused = served.submitter.delete(f"{V1}@1")
    assert (refused.status_code, f"is used by job '{job}'" in refused.json()["detail"]) == (409, True)
    waiting = served.job(ON_THE_MODEL.replace("again", "other"))
    assert served.store.job(waiting).request.models["demo-model@production"]["reference"] == "demo-model@2"
    wrong = served.submitter.post("/api/v1/jobs", json={"recipe": ON_THE_MODEL.replace("production", "staging")})
    assert "is no model of this project" in wrong.json()["errors"][0]["message"]
    broken = served.store.job(waiting)
    object.__setattr__(
        broken.request, "models", {"demo-model@production": {"id": "model-gone", "reference": "demo-model@9"}}
    )
    with pytest.raises(Missing, match=r"the version that 'model:demo-model@production' stood for .* is deleted"):
        prepare(served.store, served.settings, broken, served.started(waiting))


def test_a_deleted_version_comes_back_within_its_grace_period(served, versions):
    folder = versions()
    versions()
    served.submitter.post(f"{V1}@2/promote", json={})
    held = served.submitter.delete(V1)
    assert (held.status_code, "is what 'demo-model@production' names" in held.json()["detail"]) == (409, True)
    assert served.submitter.delete(f"{V1}@1").status_code == 204
    assert [each["version"] for each in served.viewer.get("/api/v1/models").json()["data"]] == [2]
    [gone] = served.viewer.get("/api/v1/models", params={"deleted": True}).json()["data"]
    assert (gone["version"], gone["deleted"] is not None) == (1, True)
    assert (
        served.viewer.get(f"{V1}@1").status_code == served.viewer.get(f"/api/v1/models/{gone['id']}").status_code == 404
    )
    assert served.stranger.post(f"{V1}@1/restore").status_code == 404
    assert served.viewer.post(f"{V1}@1/restore").status_code == 403
    assert served.submitter.post(f"{V1}@1/restore").json()["version"] == 1
    assert folder.is_dir()
    served.submitter.delete("/v1/models/demo-model@1")
    assert sweep_models(served.store, served.settings, clock=lambda: 4e9) == 1
    assert served.submitter.post(f"{V1}/restore").json()["detail"] == "there is no deleted model 'demo-model'"
    assert not folder.exists()


def test_the_lineage_links_parents_of_the_project_by_their_version(served, versions):
    parent, child = versions(), versions()
    (child / "recipe.yaml").write_text(ON_THE_MODEL.replace("@production", "@1"))
    stage = {"id": "supervised", "stage": "supervised", "fingerprint": "f1", "inputs": [], "data": {"train": "ab" * 32}}
    (child / "manifest.json").write_text(json.dumps({"model": {"stage": "supervised"}, "stages": [stage]}))
    answer = served.viewer.get(f"{V1}@2/lineage").json()
    first = served.viewer.get(f"{V1}@1").json()["id"]
    assert [(node["kind"], node["title"], node["reads"], node["model"]) for node in answer["nodes"][:3]] == [
        ("data", "builtin/python-docs", [], ""),
        ("start", "demo-model@1", [], first),
        ("stage", "supervised", ["data:builtin/python-docs", "start"], ""),
    ]
    assert answer["nodes"][0]["detail"] == "content abababababab"
    assert answer["nodes"][3]["reads"] == ["stage:supervised"]
    assert [node["kind"] for node in served.viewer.get(f"{V1}@1/lineage").json()["nodes"]] == ["start", "model"]
    assert served.stranger.get(f"{V1}@2/lineage").status_code == 404
    assert parent.is_dir()

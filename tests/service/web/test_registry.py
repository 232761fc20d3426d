"""The part of a model's page that keeps its versions: what it shows, its buttons, who may press them."""

from itertools import count
from pathlib import Path

import pytest

from pipelines.studies.compare import compare
from service.serving import comparing
from tests.pipelines.studies.written_runs import right
from tests.service.serving import compared
from tests.service.web.seeding import TEAM

DIFFERENCE = {
    "value": 0.15,
    "low": 0.1,
    "high": 0.2,
    "p": {"bootstrap": 1e-6},
    "verdict": "better",
    "verdict_alone": "better",
}
COMPARED = {
    "benchmark": "glue/mrpc",
    "same_examples": True,
    "examples": 400,
    "mcnemar": {"only_here": 60.0, "only_reference": 0.0},
    "metrics": {"f1": {"model": 0.85, "against": 0.7, "difference": DIFFERENCE}},
}
"""What the process that compares two versions said of the second and the first."""


NAMES = count(1)


@pytest.fixture
def versions(site):
    """Four versions of a model of the test's own; the first two were compared."""
    attempt = site.seeder.start(site.seeder.job("keeper"))
    name, made = f"kept-{next(NAMES)}", []
    for number, share in enumerate((0.7, 0.85, 0.5, 0.5), start=1):
        folder = site.settings.models / TEAM / name / f"{number:08d}"
        folder.mkdir(parents=True)
        scores = {"glue/mrpc": {"accuracy": share, "f1": share}}
        made.append(
            site.store.publish_model(
                attempt.id, attempt.fencing, name=name, fingerprint=f"{number:08d}", path=str(folder), scores=scores
            )
        )
    site.store.keep_comparison(made[1].id, made[0].id, {"benchmarks": [COMPARED]})
    return made


def test_the_page_has_versions_aliases_lineage_and_a_button_for_who_may_press_it(clients, versions):
    one, two = versions[:2]
    name = one.name
    page = clients("submitter").get(f"/models/{name}@2").text
    assert f'{name} <span class="faint">version 2</span>' in page
    assert 'data-alias="best">@best' in page
    assert f'href="/models/{two.id}/compare?against={one.id}"' in page
    assert "Lineage as a table" in page
    assert 'id="do-promote"' in page
    assert 'id="do-promote"' not in clients("viewer").get(f"/models/{name}@2").text
    assert "@latest" in clients("viewer").get("/models").text
    assert clients("foreign").get(f"/models/{name}@2").status_code == 404


def test_buttons_need_the_role_the_form_and_the_project(clients, versions):
    one = versions[0].id
    for move in ("promote", "alias", "benchmark", "delete", "restore"):
        data = {"alias": "x", "on": "glue/mrpc.f1"}
        assert clients("viewer").post(f"/models/{one}/{move}", data=data).status_code == 403
        assert clients("foreign").post(f"/models/{one}/{move}", data=data).status_code == 404
        forged = clients("submitter").post(f"/models/{one}/{move}", data=data, headers={"X-CSRF-Token": "0" * 64})
        assert forged.status_code == 403


def test_a_viewer_is_told_who_may_compare_and_starts_nothing(clients, site, versions, monkeypatch):
    one, two, three, four = versions
    for share, version in ((0.5, three), (0.6, four)):
        compared.write(Path(version.path), right(share, 1))
    asked, told = [], compare([Path(three.path), Path(four.path)])
    monkeypatch.setattr(comparing, "_asked", lambda *given: asked.append(given) or told)
    viewer = clients("viewer")
    assert 'data-outcome="better">better' in viewer.get(f"/models/{two.id}/compare?against={one.id}").text
    path = f"/models/{four.id}/compare?against={three.id}"
    assert "a submitter must ask for the comparison first" in viewer.get(path).text
    assert asked == []
    assert "400 examples" in clients("submitter").get(path).text
    assert "400 examples" in viewer.get(path).text
    assert len(asked) == 1


def test_a_version_is_promoted_named_compared_deleted_and_restored(clients, versions):
    one, two, three, four = versions
    name = one.name
    client = clients("submitter")
    swapped = {"HX-Request": "true"}
    first = client.post(f"/models/{one.id}/promote", data={"on": "glue/mrpc.f1"}, headers=swapped)
    assert f"{name}@production names version 1, its first." in first.text
    better = client.post(f"/models/{two.id}/promote", data={"on": "glue/mrpc.f1"}, headers=swapped)
    assert f"{name}@production moves from version 1 to 2: glue/mrpc.f1" in better.text
    untested = client.post(f"/models/{three.id}/promote", headers=swapped)
    assert untested.status_code == 409
    assert "was published without its outcomes on each example" in untested.text
    page = client.get(f"/models/{two.id}/compare", params={"against": one.id}).text
    assert 'data-outcome="better">better' in page
    assert "400 examples" in page
    assert "was published without its outcomes" in client.get(f"/models/{two.id}/compare?against=3").text
    assert (
        client.post(f"/models/{three.id}/alias", data={"alias": "@staging"}).headers["location"]
        == f"/models/{three.id}"
    )
    assert "Remove @staging" in client.get(f"/models/{three.id}").text
    assert client.post(f"/models/{three.id}/alias", data={"alias": "production"}).status_code == 409
    assert client.post(f"/models/{two.id}/alias", data={"alias": "production", "remove": "1"}).status_code == 403
    assert client.post(f"/models/{three.id}/delete").status_code == 409
    assert client.post(f"/models/{four.id}/delete").headers["location"] == "/models?deleted=1"
    assert client.get(f"/models/{four.id}").status_code == 404
    gone = client.get("/models?deleted=1").text
    assert f'action="/models/{four.id}/restore"' in gone
    assert client.post(f"/models/{four.id}/restore").status_code == 303
    assert client.get(f"/models/{four.id}").status_code == 200

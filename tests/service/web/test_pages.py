"""Every page as a client without JavaScript gets it."""

import re
import time

import httpx
import pytest

from service.jobs.states import Move, State
from service.web.sessions import COOKIE
from tests.service.web.conftest import csrf
from tests.service.web.seeding import HOSTILE, RECIPE
from tests.words import words_of

PAGES = [
    "/jobs",
    "/studies",
    "/compare",
    "/leaderboard",
    "/models",
    "/hosts",
    "/project",
    "/submit",
    "/submit?mode=yaml",
]
GOOD = "name: from-the-page\nmodel:\n  architecture: {preset: bert-tiny}\nstages:\n  - {stage: supervised, task: builtin/python-docs}\n"


def addresses(site):
    jobs = site.jobs
    both = f"job={jobs['done'].id}&job={jobs['better'].id}"
    return [
        *PAGES,
        *(f"/jobs/{jobs[name].id}" for name in jobs if name != "foreign"),
        f"/jobs/{jobs['done'].id}?against={jobs['better'].id}",
        f"/compare?{both}",
        "/leaderboard?benchmark=glue/mrpc&metric=accuracy",
        "/models/mini-encoder-mrpc",
        "/jobs?show=failed",
        "/jobs?search=mini",
        f"/submit?like={jobs['done'].id}",
        "/submit?example=demo",
    ]


def test_every_page_is_whole_and_runs_no_script_of_its_own(site, clients):
    """The policy forbids scripts and styles in the page; none must be there to be forbidden."""
    for address in addresses(site):
        answer = clients("admin").get(address)
        assert answer.status_code == 200, (address, answer.text[:500])
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        text = answer.text
        assert text.rstrip().endswith("</html>"), address
        assert not re.findall(
            r"<script(?![^>]*\bsrc=)[^>]*>|<style|\sstyle=|\son[a-z]+=[\"']|href=.javascript:", text
        ), address
        assert not re.findall(r"(?:src=|<link[^>]*href=)\"(?:https?:)?//", text), address
        assert len(re.findall(r"<h1", text)) == 1, address


def test_hostile_names_logs_and_samples_are_only_text(site, clients):
    for address in [
        f"/jobs/{site.jobs['hostile'].id}",
        "/jobs",
        "/hosts",
        f"/jobs/{site.jobs['hostile'].id}/log",
        f"/compare?job={site.jobs['hostile'].id}&job={site.jobs['done'].id}",
    ]:
        answer = clients("admin").get(address)
        assert answer.status_code == 200
        assert "pwned" in answer.text or address.endswith("log")
        if answer.headers["content-type"].startswith("text/html"):
            assert "<script>" not in answer.text
            assert "<img" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_model_card_is_rendered_without_its_tags(clients):
    text = clients("viewer").get("/models/mini-encoder-mrpc").text
    assert "<strong>two sentences</strong>" in text
    assert "&lt;script&gt;" in text
    assert "<script>document" not in text
    assert 'class="number">0.806' in text


def test_what_belongs_to_another_project_is_not_there(site, clients):
    foreign = site.jobs["foreign"].id
    viewer = clients("viewer")
    for address in (
        f"/jobs/{foreign}",
        f"/jobs/{foreign}/log",
        f"/jobs/{foreign}/curves",
        f"/jobs/{foreign}/stream",
        f"/jobs/{foreign}/diff",
        "/models/secret-plan",
        "/jobs/job-nobody",
    ):
        assert viewer.get(address).status_code == 404, address
    assert clients("submitter").post(f"/jobs/{foreign}/cancel").status_code in (404, 409)
    for address in (
        "/jobs",
        "/models",
        "/leaderboard",
        f"/compare?job={foreign}&job={site.jobs['done'].id}",
        f"/jobs/{site.jobs['done'].id}?against={foreign}",
    ):
        assert "secret-plan" not in viewer.get(address).text, address
    assert clients("foreign").get("/submit", params={"like": site.jobs["done"].id}).status_code == 404


def test_a_viewer_sees_no_button_that_it_may_not_press_and_may_not_press_it(site, clients):
    running = site.jobs["running"].id
    text = clients("viewer").get(f"/jobs/{running}").text
    assert "mini-encoder-live" in text
    assert not re.search(r'action="/jobs/', text.replace(f'action="/jobs/{running}" class="inline" hx-get', ""))
    assert "/submit" not in clients("viewer").get("/jobs").text
    for address in (f"/jobs/{running}/cancel", f"/jobs/{running}/priority", "/submit", "/submit/form", "/submit/check"):
        assert clients("viewer").post(address, data={"priority": "1", "text": GOOD}).status_code == 403, address
    assert clients("viewer").get("/submit").status_code == 403
    assert clients("submitter").get("/hosts").status_code == 403
    assert site.store.job(running).state is State.RUNNING


def test_without_a_session_every_page_asks_to_sign_in_and_comes_back(site):
    with site.anonymous() as client:
        for address in addresses(site):
            answer = client.get(address)
            assert answer.status_code == 303, address
            assert answer.headers["location"].startswith("/sign-in?next=%2F")
        assert client.get("/jobs", headers={"HX-Request": "true"}).headers["hx-redirect"].startswith("/sign-in")
        assert (
            client.get(f"/jobs/{site.jobs['done'].id}/stream", headers={"Accept": "text/event-stream"}).status_code
            == 401
        )


def test_a_form_without_its_token_or_from_another_site_does_nothing(site, clients):
    job = site.seeder.job("untouched")
    client = clients("submitter")
    for headers in (
        {"X-CSRF-Token": ""},
        {"X-CSRF-Token": "0" * 64},
        {"X-CSRF-Token": clients("admin").headers["X-CSRF-Token"]},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert client.post(f"/jobs/{job.id}/cancel", headers=headers).status_code == 403
        assert client.post("/submit", data={"text": GOOD}, headers=headers).status_code == 403
        assert client.post("/sign-out", headers=headers).status_code == 403
    assert site.store.job(job.id).state is State.QUEUED


def test_the_session_cookie_is_kept_from_scripts_and_other_sites(site):
    with site.anonymous() as client:
        page = client.get("/sign-in").text
        answer = client.post(
            "/sign-in", data={"token": site.seeded.tokens["viewer"], "csrf": csrf(page), "next": "/models"}
        )
        assert answer.headers["location"] == "/models"
        cookie = next(each for each in answer.headers.get_list("set-cookie") if each.startswith(COOKIE))
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert "Secure" not in cookie  # over plain http; see the next line
        assert client.get("/sign-in").status_code == 303  # opening the form does not end the session
        client.headers["X-CSRF-Token"] = csrf(client.get("/jobs").text)
        client.post("/sign-out")
        assert client.get("/jobs").status_code == 303


@pytest.mark.parametrize("token", ["", "nonsense", "fin_abcdefghijkl_" + "A" * 43, "ä", "\x00"])
def test_a_wrong_token_is_told_at_the_field(site, token):
    with site.anonymous() as client:
        answer = client.post("/sign-in", data={"token": token, "csrf": csrf(client.get("/sign-in").text)})
        assert answer.status_code in (401, 429)
        assert 'aria-invalid="true"' in answer.text


@pytest.mark.parametrize(
    "goal",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "/sign-out",
        "\r\nSet-Cookie: x=1",
    ],
)
def test_signing_in_leads_to_no_other_site(site, goal):
    with site.anonymous() as client:
        page = client.get("/sign-in", params={"next": goal}).text
        answer = client.post("/sign-in", data={"token": site.seeded.tokens["viewer"], "csrf": csrf(page), "next": goal})
        assert answer.headers["location"] == "/"


def test_a_link_from_elsewhere_is_asked_again_so_that_the_strict_cookie_comes_along(site):
    with site.anonymous() as client:
        answer = client.get("/jobs", headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 200
        assert 'http-equiv="refresh"' in answer.text
        assert client.get("/jobs", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 303


def test_buttons_follow_the_table_of_moves(site, clients):
    job = site.seeder.job("pressed")
    client = clients("submitter")
    woken = site.woken

    def buttons():
        return set(re.findall(r'id="do-(pause|resume|cancel|retry)"', client.get(f"/jobs/{job.id}").text))

    assert buttons() == {"pause", "cancel"}
    answer = client.post(f"/jobs/{job.id}/pause")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job.id}")
    assert buttons() == {"resume", "cancel"}
    part = client.post(f"/jobs/{job.id}/resume", headers={"HX-Request": "true"})
    assert part.status_code == 200
    assert "<html" not in part.text
    assert "queued" in part.text
    assert client.post(f"/jobs/{job.id}/priority", data={"priority": "7"}).status_code == 303
    assert client.post(f"/jobs/{job.id}/priority", data={"priority": "very"}).status_code == 422
    assert client.post(f"/jobs/{job.id}/cancel").status_code == 303
    assert buttons() == {"retry"}
    assert client.post(f"/jobs/{job.id}/pause").status_code == 409
    assert client.post(f"/jobs/{job.id}/explode").status_code == 404
    assert site.store.job(job.id).priority == 7
    assert site.woken == woken + 4


def test_the_list_is_read_by_pages_without_losing_a_job(site, clients):
    made = {site.seeder.job(f"page-{number:03d}").id for number in range(60)}
    seen, address = [], "/jobs?search=page-"
    while address:
        text = clients("submitter").get(address).text
        seen += re.findall(r'<tr id="row-(job-\w+)"', text)
        older = re.search(r'href="(\?[^"]+)" rel="next"', text)
        address = f"/jobs{older.group(1).replace('&amp;', '&')}" if older else ""
    assert sorted(seen) == sorted(made)
    assert seen == sorted(seen, reverse=True)
    for job in made:  # other tests look for their jobs among the newest
        site.store.move(job, Move.CANCEL)
        site.store.delete_job(job)


def test_a_job_tells_its_scores_costs_and_differences(site, clients):
    text = clients("viewer").get(f"/jobs/{site.jobs['done'].id}?against={site.jobs['better'].id}").text
    for words in (
        "0.8060",
        "360,450",
        "2 GiB",
        "28 min 0 s",
        "only in this job",
        'data-kind="gone"',
        "gpu-01",
        'href="/models/',
    ):
        assert words in text, words
    happened = " ".join(re.sub(r"<[^>]+>", " ", text.split('id="part-happened"')[1].split("</section>")[0]).split())
    assert re.search(
        r"succeeded .* the run is complete, after 40 min 0 s .* lora done in 2 min 0 s .* lora began .* running .* starting .* queued",
        happened,
    ), happened
    assert 'id="L7"' in clients("viewer").get(f"/jobs/{site.jobs['done'].id}").text


def test_the_leaderboard_is_best_first_and_for_one_project(clients):
    text = clients("viewer").get("/leaderboard?benchmark=glue/mrpc&metric=f1").text
    assert re.findall(r"<strong>([\d.]+)</strong>", text) == words_of("0.8371 0.8060 0.8000 0.7971 0.7900 0.7660")
    text = clients("admin").get("/leaderboard?benchmark=glue/mrpc&metric=f1").text
    assert re.findall(r"<strong>([\d.]+)</strong>", text)[0] == "0.9900"
    assert clients("viewer").get("/leaderboard?benchmark=nothing").status_code == 200


def test_a_study_lists_its_cells(site, clients):
    text = clients("viewer").get(f"/jobs/{site.jobs['study'].id}").text
    for words in ("cells/01", "cells/06", "adapter", "the loss is NaN"):
        assert words in text
    assert re.search(r"cells/02.*?<strong>0.8000", text, re.S)
    assert "cells/02/evaluate" not in text
    row = re.search(r"tuners-on-mrpc.*?</tr>", clients("viewer").get("/studies").text, re.S).group(0)
    assert re.findall(r'<td class="number">(\d+)</td>', row) == ["2", "1", "0"]


def test_a_recipe_with_mistakes_comes_back_with_each_at_its_line(site, clients):
    bad = GOOD.replace("bert-tiny", "bert-tinny").replace("task:", "tsk:") + "  - {stage: publish, to: ../../etc}\n"
    answer = clients("submitter").post("/submit", data={"text": bad})
    assert answer.status_code == 422
    assert set(re.findall(r'data-line="(\d+)"', answer.text)) >= {"3", "5", "6"}
    assert "bert-tinny" in answer.text
    assert "bert-tiny" in answer.text.split('id="wrong"')[1].split("</div>")[0]
    found = clients("submitter").post("/submit/check", data={"text": bad}).json()["mistakes"]
    api = httpx.post(
        f"{site.address}/api/v1/validate",
        content=bad,
        headers={"Content-Type": "application/yaml", "Authorization": f"Bearer {site.seeded.tokens['submitter']}"},
    ).json()
    assert [(each["line"], each["key"], each["message"]) for each in found] == [
        (each["line"], each["key"], each["message"]) for each in api["errors"]
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "- 1",
        "name: [",
        "\x00",
        "a: &a [*a]",
        "🦜" * 500,
        "x: " + "[" * 5_000,
        "name: x\nstages: 3\nmodel: 4",
        HOSTILE,
        "? {a: 1}\n: 2",
        "stages: [null, 3, [], {stage: null}]",
    ],
)
def test_no_text_breaks_the_editor_or_the_form(clients, text):
    client = clients("submitter")
    assert client.post("/submit/check", data={"text": text}).json()["mistakes"]
    for order in ("form", "yaml", "add stages publish"):
        answer = client.post("/submit/form", data={"text": text, "do": order})
        assert answer.status_code == 200, answer.text[-500:]
        assert "<script>" not in answer.text
    assert client.post("/submit", data={"text": text}).status_code == 422


@pytest.mark.parametrize(
    "address",
    words_of(
        "/jobs/%00 /jobs/job-%00/log /jobs?search=%00 /jobs?after=%00 /leaderboard?benchmark=%00 /models/a%00 "
        "/compare?job=%00 /submit?like=%00"
    ),
)
def test_the_character_that_no_database_takes_is_nothing(clients, address):
    assert clients("submitter").get(address).status_code == 404


def test_a_kind_of_gpu_that_is_none_is_refused(clients):
    found = clients("submitter").post("/submit/check", data={"text": GOOD, "how.gpu_kind": "\x00"}).json()["mistakes"]
    assert [each["message"] for each in found] == ["the kind of GPU must be part of its name, at most 100 letters"]


def test_a_form_is_a_recipe_and_is_submitted_once_however_often_it_is_sent(site, clients):
    client = clients("submitter")
    fields = {
        "name": "from-the-form",
        "model.architecture?": "preset",
        "model.architecture.preset": "bert-tiny",
        "stages.0": "",
        "stages.0?": "supervised",
        "stages.0.task?": "builtin/python-docs",
        "stages.0.tuner?": "lora",
        "stages.0.tuner.r": "4",
        "stages.0.arguments.learning_rate": "1e-3",
        "how.priority": "3",
        "how.cpus": "2",
        "key": f"k{time.time()}",
    }
    first, second = client.post("/submit", data=fields), client.post("/submit", data=fields)
    assert first.status_code == second.status_code == 303, first.text
    assert first.headers["location"] == second.headers["location"]
    job = site.store.job(first.headers["location"].removeprefix("/jobs/"))
    assert (job.name, job.project, job.priority, job.request.resources.cpus) == ("from-the-form", "team", 3, 2)
    assert "r: 4" in job.request.recipe
    assert client.post("/submit", data={**fields, "name": "another"}).status_code == 409
    site.store.move(job.id, Move.CANCEL)


def test_a_mistake_in_the_form_stands_at_its_field(clients):
    fields = {
        "name": "x",
        "model.architecture?": "preset",
        "model.architecture.preset": "bert-tiny",
        "stages.0": "",
        "stages.0?": "supervised",
        "stages.0.task?": "builtin/python-docs",
        "stages.0.tuner?": "lora",
        "stages.0.tuner.r": "0",
        "how.cpus": "two",
    }
    found = clients("submitter").post("/submit/check", data=fields).json()["mistakes"]
    assert [each["message"] for each in found] == ["cpus is 'two', must be a whole number"]
    found = clients("submitter").post("/submit/check", data={**fields, "how.cpus": ""}).json()["mistakes"]
    assert [each["field"] for each in found] == ["stages.0.tuner.r"]


def test_switching_to_yaml_and_back_keeps_the_recipe(clients):
    client = clients("submitter")
    text = RECIPE.format(name="switched", rank=8)
    form = client.post("/submit/form", data={"text": text, "do": "form"}).text
    assert 'name="stages.2.tuner.r" value="8"' in form
    again = client.post("/submit/form", data={"text": text, "mode": "yaml", "do": "yaml"}).text
    assert "# Vocabulary and masked LM" in again


def test_static_files_are_kept_by_the_browser_only_under_their_digest(site):
    with site.anonymous() as client:
        address = re.search(r'href="(/static/finery.css\?v=\w+)"', client.get("/sign-in").text).group(1)
        assert "immutable" in client.get(address).headers["cache-control"]
        assert "immutable" not in client.get("/static/finery.css").headers.get("cache-control", "")
        assert client.get("/static/../routes.py").status_code == 404


def test_a_page_of_curves_is_numbers_only(site, clients):
    found = clients("viewer").get(f"/jobs/{site.jobs['done'].id}/curves").json()["stages"]
    assert [each["stage"] for each in found] == ["pretrain", "full", "lora"]
    assert list(found[0]["curves"])[:2] == ["loss", "eval_loss"]
    steps, values = found[0]["curves"]["loss"]
    assert len(steps) == len(values) == 60
    assert steps == sorted(steps)


def test_an_admin_sets_what_a_project_may_keep_and_the_page_tells_its_members(site, clients):
    store = site.store
    name = site.seeder.job("kept").project
    store.set_disk_usage({(name, "stages", ""): 3_000_000})
    of = store.add_eval(name, "capitals", {}, [], {})
    try:
        assert clients("submitter").post(f"/projects/{name}", data={"gigabytes": "1"}).status_code == 403
        assert clients("admin").post(f"/projects/{name}", data={"gigabytes": "much"}).status_code == 422
        assert clients("admin").post(f"/projects/{name}", data={"gigabytes": "0.0015"}).status_code == 303
        assert store.project(name).max_bytes == 1_500_000
        for role in ("viewer", "admin"):
            text = " ".join(clients(role).get("/project").text.split())
            assert "of 1.5 MB" in text
            assert '<td>eval</td><th scope="row">capitals</th>' in text
            assert ("All projects" in text) == (role == "admin")
        assert "Nothing more is taken: no files, no jobs, no evals." in clients("viewer").get("/project").text
        assert 'value="0.0015"' in clients("admin").get("/project").text
        assert "project &#39;" in clients("submitter").post("/submit", data={"text": GOOD}).text
    finally:
        clients("admin").post(f"/projects/{name}", data={"gigabytes": ""})
        store.delete_eval(of.id, name)
    assert store.project(name).max_bytes is None

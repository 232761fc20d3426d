"""The pages in real Chromium: live data, buttons, forms, narrow and wide windows, themes, keyboard, accessibility, no
JavaScript, and a model on its page."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.jobs.states import Ending, Move, State

AXE = (Path(__file__).parent / "vendor" / "axe-core-4.14.1.min.js").read_text(encoding="utf-8")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
FEW = ("jobs", "a running job", "submit")
SOON = 20_000
SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => { for (const each of list.getEntries()) if (!each.hadRecentInput) window.shifts.push(each.value); }).observe({ type: "layout-shift", buffered: true });
"""
OUTSIDE = """() => {
  const wide = document.documentElement.clientWidth;
  return document.documentElement.scrollWidth > wide
    ? [...document.querySelectorAll("body *")].filter((each) => each.getBoundingClientRect().right > wide + 1 && !each.closest(".scroll, nav, pre, .editor")).map((each) => each.outerHTML.slice(0, 120)).slice(0, 5) : [];
}"""


def places(site: Any) -> dict[str, str]:
    jobs = site.jobs
    return {
        "jobs": "/jobs",
        "a running job": f"/jobs/{jobs['running'].id}",
        "a hostile job": f"/jobs/{jobs['hostile'].id}",
        "a study": f"/jobs/{jobs['study'].id}",
        "a difference": f"/jobs/{jobs['done'].id}?against={jobs['better'].id}",
        "compare": f"/compare?job={jobs['done'].id}&job={jobs['better'].id}&job={jobs['running'].id}",
        "leaderboard": "/leaderboard",
        "submit": "/submit",
        "editor": "/submit?mode=yaml",
        "models": "/models",
        "a model": "/models/mini-encoder-mrpc",
        "deleted models": "/models?deleted=1",
        "studies": "/studies",
        "hosts": "/hosts",
        "project": "/project",
        "nothing": "/compare",
        "no job": "/jobs?search=zzz",
    }


@contextlib.contextmanager
def opened(
    chromium: Any, site: Any, role: str | None = "submitter", expect: tuple[str, ...] = (), **options: Any
) -> Iterator[Any]:
    """A page, signed in, that must not complain: a violation of the content security policy or an exception is a failure."""
    if role is not None and role not in site.signed_in:
        with contextlib.closing(chromium.new_context(base_url=site.address)) as context:
            page = context.new_page()
            page.goto("/sign-in")
            page.fill("#token", site.seeded.tokens[role])
            page.click("button.main")
            page.wait_for_url("**/jobs")
            site.signed_in[role] = context.storage_state()
    context = chromium.new_context(base_url=site.address, storage_state=site.signed_in.get(role), **options)
    page = context.new_page()
    page.set_default_timeout(SOON)
    complaints: list[str] = []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        yield page
    finally:
        context.close()
    assert [each for each in complaints if not any(word in each for word in expect)] == []


@pytest.mark.parametrize(
    ("theme", "part"),
    [
        ("light", FEW),
        pytest.param("light", None, marks=pytest.mark.long),
        pytest.param("dark", None, marks=pytest.mark.long),
    ],
    ids=["few", "light", "dark"],
)
def test_every_page_is_accessible_and_fits_narrow_and_wide_windows(chromium, site, theme, part):
    found = []
    with opened(chromium, site, "admin", color_scheme=theme) as page:
        for name, address in places(site).items():
            if part is not None and name not in part:
                continue
            page.set_viewport_size({"width": 1280, "height": 900})
            page.goto(address)
            assert page.title() != "pwned"
            page.evaluate(AXE)
            answer = page.evaluate("(rules) => axe.run({runOnly: rules})", RULES)
            found += [
                (name, each["id"], node["html"][:160], node["failureSummary"][:300])
                for each in answer["violations"]
                for node in each["nodes"][:2]
            ]
            for width in (400, 1280, 3840):
                page.set_viewport_size({"width": width, "height": 900})
                found += [(name, width, each) for each in page.evaluate(OUTSIDE)]
    assert found == []


def test_a_job_comes_alive_without_a_jump(chromium, site):
    job = site.seeder.job("watched")
    with opened(chromium, site, viewport={"width": 1280, "height": 1600}) as page:
        page.add_init_script(SHIFTS)
        page.goto(f"/jobs/{job.id}")
        page.wait_for_selector("#part-head [data-state=queued]")
        page.evaluate("document.title = 'the same document'")
        attempt = site.seeder.start(job, host="cpu-01", log="one\n")
        page.wait_for_selector("#part-head [data-state=starting]")
        site.seeder.stage(attempt, "pretrain", 3, of=1500)
        page.wait_for_selector("#part-head [data-state=running]")
        page.wait_for_selector("#part-head :text('75 of 1,500')")
        page.wait_for_selector(".chart canvas")
        site.seeder.events(
            attempt,
            {"event": "metric", "stage": "pretrain", "step": 100, "metrics": {"loss": 0.125, "eval_loss": 0.25}},
        )
        page.wait_for_selector(".chart :text('0.125')")
        with open(site.seeder.console(attempt) / "00000000000000000000.log", "a") as log:
            log.write("two <b>bold</b>\n")
        page.wait_for_selector("#log:has-text('two <b>bold</b>')")
        site.store.end_attempt(attempt.id, attempt.fencing, Ending(Move.SUCCEED, exit_code=0))
        page.wait_for_selector("#part-head [data-state=succeeded]")
        assert page.text_content("#said") == "watched is succeeded"
        assert page.title() == "the same document"
        assert sum(page.evaluate("shifts")) < 0.1  # web.dev/articles/cls: good is below 0.1


def test_buttons_work_by_keyboard_and_without_a_reload(chromium, site):
    job = site.seeder.job("by-keyboard")
    with opened(chromium, site) as page:
        page.goto(f"/jobs/{job.id}")
        page.evaluate("document.title = 'the same document'")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.focus("#do-pause")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        page.wait_for_selector("#part-head [data-state=paused]")
        page.fill("#priority", "9")
        page.keyboard.press("Enter")
        page.wait_for_selector("#priority[value='9']")
        page.once("dialog", lambda dialog: dialog.accept())
        page.click("#do-cancel")
        page.wait_for_selector("#part-head [data-state=cancelled]")
        assert page.title() == "the same document"
    assert (site.store.job(job.id).state, site.store.job(job.id).priority) == (State.CANCELLED, 9)


def test_a_refused_button_says_why(chromium, site):
    job = site.seeder.job("too-late")
    with opened(chromium, site, expect=("409", "ERR_FAILED")) as page:
        page.route("**/stream", lambda route: route.abort())  # a page that was not told yet
        page.goto(f"/jobs/{job.id}")
        site.store.move(job.id, Move.CANCEL)
        page.click("#do-pause")
        page.wait_for_selector("#notice :text('the job is cancelled')")


def test_the_list_follows_its_jobs_and_keeps_what_was_ticked(chromium, site):
    one, other = site.seeder.job("listed-one"), site.seeder.job("listed-two")
    with opened(chromium, site) as page:
        page.goto("/jobs?search=listed")
        page.check(f"#row-{one.id} input")
        page.check(f"#row-{other.id} input")
        site.store.move(one.id, Move.PAUSE)
        page.wait_for_selector(f"#row-{one.id} [data-state=paused]")
        assert page.is_checked(f"#row-{one.id} input")
        site.seeder.job("listed-three")
        page.click("#news >> text=Show 1 new job")
        page.wait_for_selector("tbody tr >> nth=2")
        page.fill("#search", "listed-t")
        page.wait_for_selector("tbody:has(tr:nth-child(2)):not(:has(tr:nth-child(3)))")
        assert "search=listed-t" in page.url
        page.goto("/jobs?search=listed")
        for job in (one, other):
            page.check(f"#row-{job.id} input")
        page.click("text=Compare the ticked jobs")
        page.wait_for_url("**/compare?*")
        assert {one.id, other.id} <= set(re.findall(r"job-\w+", page.url))


def test_a_recipe_is_filled_in_checked_and_submitted(chromium, site):
    with opened(chromium, site) as page:
        page.goto("/submit")
        page.wait_for_selector("#verdict[data-good=yes]")
        page.fill("#name", "from the browser")
        page.wait_for_selector("[data-mistake=name]:has-text('from the browser')")
        assert page.get_attribute("#name", "aria-invalid") == "true"
        page.fill("#name", "from-the-browser")
        page.wait_for_selector("#verdict[data-good=yes]")
        page.select_option("[id='stages.0.tuner']", "lora")
        page.fill("[id='stages.0.tuner.r']", "0")
        page.wait_for_selector("[data-mistake='stages.0.tuner.r']:has-text('0')")
        page.fill("[id='stages.0.tuner.r']", "4")
        page.click("text=Add publish")
        page.fill("[id='stages.2.to']", "browser-model")
        page.wait_for_selector("#verdict[data-good=yes]")
        assert "to: browser-model" in page.text_content("#preview")
        page.click("#as-yaml")
        page.wait_for_selector("#text")
        text = page.input_value("#text")
        assert "r: 4" in text
        page.fill("#text", text.replace("builtin/python-docs", "glue/mrcp"))
        line = 1 + text[: text.index("builtin/python-docs")].count("\n")
        page.click(f"#wrong a[data-line='{line}']")
        assert (
            page.evaluate(
                "getSelection().toString() || text.value.slice(text.selectionStart, text.selectionEnd)"
            ).strip()
            == "task: glue/mrcp"
        )
        assert page.text_content(".gutter .wrong") == str(line)
        page.fill("#text", text)
        page.wait_for_selector("#verdict[data-good=yes]")
        page.click("#send")
        page.wait_for_url("**/jobs/job-*")
        job = site.store.job(page.url.rpartition("/")[2])
    assert (job.name, job.state) == ("from-the-browser", State.QUEUED)
    assert job.request.recipe == text
    site.store.move(job.id, Move.CANCEL)


def test_the_chosen_theme_stays(chromium, site):
    background = "getComputedStyle(document.body).backgroundColor"
    with opened(chromium, site, color_scheme="light") as page:
        page.goto("/jobs")
        light = page.evaluate(background)
        page.click("#theme button")
        page.click("#theme button")
        dark = page.evaluate(background)
        assert dark != light
        page.goto("/models")
        assert page.evaluate(background) == dark
        assert page.get_attribute("html", "data-theme") == "dark"


def test_without_javascript_everything_can_be_read_and_done(chromium, site):
    job = site.seeder.job("by-hand")
    with opened(chromium, site, expect=("422",), java_script_enabled=False) as page:
        page.goto(f"/jobs/{site.jobs['done'].id}")
        page.click("text=Curves as a table")
        assert page.is_visible("td:text-is('eval_loss')")
        page.select_option("#against", site.jobs["better"].id)
        page.click("#recipe button")
        assert page.is_visible("tr[data-kind=new]")
        page.goto(f"/jobs/{job.id}")
        page.click("#do-cancel")
        assert page.is_visible("#part-head [data-state=cancelled]")
        page.goto("/submit")
        page.click("text=Add publish")
        page.fill("[id='stages.2.to']", "../etc")
        page.click("#send")
        assert "name of a model" in page.text_content("[data-mistake='stages.2.to']")
        page.click("#theme button")
        assert page.get_attribute("html", "data-theme") == "light"


def test_curves_of_several_jobs_share_a_chart(chromium, site):
    with opened(chromium, site) as page:
        page.goto(f"/compare?job={site.jobs['done'].id}&job={site.jobs['better'].id}")
        page.wait_for_selector("#compared .chart canvas")
        assert page.locator("#compared .chart").count() == 3
        page.select_option("#curve", "learning_rate")
        page.wait_for_selector("#compared :text('pretrain: learning rate')")
        label = page.get_attribute("#compared .plot >> nth=0", "aria-label")
        assert "mini-encoder-mrpc" in label
        assert "mini-encoder-wide" in label


def test_a_chat_is_written_in_three_ways_goes_on_and_shows_its_attention(chromium: Any, site: Any, talked: Any) -> None:
    with opened(chromium, site) as page:
        page.goto(f"/models/{talked.id}")
        page.click("text=Try it")
        page.wait_for_selector(".waiting [role=status]:has-text('being opened')")
        page.wait_for_selector("#form-chat", timeout=120_000)
        assert page.text_content("#said") == "The model is open"
        page.fill("#f-chat-message", "the cat <b>saw</b>")
        page.click("summary:has-text('How it is written')")
        page.fill("#f-chat-max_tokens", "9")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#answer-chat article:nth-child(3) b:has-text('9')")
        texts = page.eval_on_selector_all("#answer-chat .written", "all => all.map(each => each.textContent)")
        assert len(texts) == 3
        assert all(text.strip() for text in texts)
        page.click("#answer-chat .same summary")
        assert '"temperature": 0' in page.text_content("#answer-chat .same pre")
        page.click("#answer-chat article:nth-child(3) button:has-text('Go on')")
        page.wait_for_selector(".dialogue li:nth-child(2)")
        assert page.text_content(".dialogue li:nth-child(1) .written") == "the cat <b>saw</b>"
        assert page.text_content(".dialogue li:nth-child(2) .written") == texts[2]
        assert page.input_value("#f-chat-message") == ""
        assert page.input_value("#f-chat-max_tokens") == "9"
        page.fill("#f-attention-text", "the cat saw a book")
        page.click("#form-attention button.main")
        page.wait_for_selector(".heat td[data-w='20']")
        page.click("button[value='decoder:1.2']")
        page.wait_for_selector("button[value='decoder:1.2'][aria-pressed=true]")
        page.hover(".heat tbody tr:nth-child(2) td:nth-child(2)")
        assert re.search(r"→ the: [01]\.\d\d$", page.text_content(".reads"))
        page.evaluate(AXE)
        found = page.evaluate("(rules) => axe.run({runOnly: rules})", RULES)["violations"]
        assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []
        for width in (400, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(OUTSIDE) == []

"""The page on which a model is tried: who may ask, and what a process that lies can do. The whole of it in Chromium is in
test_browser.py."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from pipelines.core.presentation import AttentionHead, AttentionView, Form, FormField
from service.api.problems import Problem
from service.cli.trying import local_app
from service.serving.processes import ModelProcesses
from service.settings import read_settings
from service.store.models import PublishedModel
from service.web import trying as trying_page
from service.web.rendering import partial
from service.web.sessions import Visitor
from service.web.trying import card_sections, same_answer, small_picture
from tests import writers
from tests.service.web.conftest import csrf

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}"
"""What the stand-in says everywhere."""
STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in_trying.py")))
CARD = "# m\n\nIntro <b>x</b>.\n\n## Scores\n\n| a | b |\n|---|---:|\n| f1 | 0.9 |\n\n## Use\n\n```python\n## no heading\n```\n"


class Page:
    """The page of one folder whose process is a stand-in."""

    def __init__(self, folder: Path, processes: ModelProcesses, settings: Any) -> None:
        self.model = PublishedModel("model-1", "", "m", "f", "", str(folder))
        self.client = TestClient(local_app(settings, processes, self.model), base_url="http://127.0.0.1")
        self.at = "/models/model-1/try"
        self.csrf = csrf(self.client.get(self.at).text)

    def post(self, name: str, hx: bool = False, **values: Any) -> Any:
        headers = {"HX-Request": "true"} if hx else {}
        return self.client.post(f"{self.at}/{name}", data={"csrf": self.csrf, **values}, headers=headers)

    def ready(self) -> str:
        """The part with the forms, once the process is there."""
        self.post("start")
        limit = time.monotonic() + 20
        while "being opened" in (text := self.client.get(f"{self.at}/state").text) and time.monotonic() < limit:
            time.sleep(0.05)
        return text


@pytest.fixture
def trying(tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    """`trying("hostile")`: the page of a model whose process does that."""
    settings = read_settings({}, home=tmp_path / "home", isolation="none", serve_seconds=20.0)
    processes = ModelProcesses(settings, STAND_IN)

    def make(behaviour: str) -> Page:
        folder = tmp_path / "model"
        shutil.copytree(writers.folder("bert-classifier"), folder)
        (folder / "behaviour").write_text(behaviour)
        (folder / "README.md").write_text(CARD)
        return Page(folder, processes, settings)

    yield make
    processes.close()


def test_a_model_opens_once_somebody_asks_and_then_answers_with_and_without_javascript(trying: Any) -> None:
    page = trying("starts slowly")
    asleep = page.client.get(page.at).text
    assert "Open it" in asleep
    assert "<b>x</b>" not in asleep
    assert "&lt;b&gt;x" in asleep, "the card stands beside it"
    started = page.client.post(f"{page.at}/start", data={"csrf": page.csrf}, follow_redirects=False)
    assert started.status_code == 303
    waiting = page.client.get(page.at).text
    assert "The model is being opened" in waiting
    assert 'http-equiv="refresh"' in waiting
    assert 'id="form-predict"' in page.ready()
    assert ">one</textarea>" in page.client.get(f"{page.at}?form=predict&example=0").text
    whole, part = page.post("predict", **{"v.text": "a < b"}), page.post("predict", hx=True, **{"v.text": "a < b"})
    assert "heard a &lt; b" in whole.text
    assert ">a &lt; b</textarea>" in whole.text, "what was asked stands there still"
    assert part.text.strip().startswith("<p>heard a &lt; b")
    stream = page.post("predict/stream", **{"v.text": "x"}).text
    assert "event: answer" in stream
    assert "heard x" in stream


def test_what_is_wrong_is_one_sentence_at_its_form(trying: Any) -> None:
    page = trying("refuses")
    page.ready()
    empty = page.post("predict", hx=True, **{"v.text": "  "})
    assert (empty.status_code, "'Text' is empty; write something there." in html.unescape(empty.text)) == (400, True)
    long = page.post("predict", hx=True, **{"v.text": "x" * 200_001})
    assert (long.status_code, "more than the 200,000 of one question" in long.text) == (413, True)
    refused = page.post("predict", hx=True, **{"v.text": "x"})
    assert (refused.status_code, "No: &lt;script&gt;" in refused.text) == (400, True)
    assert page.post("magic", **{"v.text": "x"}).status_code == 404
    assert page.client.get("/models/other/try").status_code == 404
    without = page.client.post(f"{page.at}/predict", data={"v.text": "x"})
    assert (without.status_code, "outdated or was not sent from this site" in without.text) == (403, True)
    elsewhere = page.client.get(page.at, headers={"Host": "evil.example"})
    assert elsewhere.status_code == 421
    policy = page.client.get(page.at).headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        ("offers nonsense", "says what this page cannot show"),
        ("answers nonsense", "answered with what this page cannot show"),
        ("cannot be opened", "the weights are torn"),
    ],
)
def test_a_process_that_says_nonsense_is_told_in_a_sentence(trying: Any, behaviour: str, sentence: str) -> None:
    page = trying(behaviour)
    page.ready()
    answer = page.post("predict", **{"v.text": "x"})
    assert answer.status_code in (500, 503)
    assert sentence in answer.text


def test_nothing_that_a_process_says_becomes_a_part_of_the_page(trying: Any) -> None:
    page = trying("hostile")
    texts = [page.ready(), page.client.get(page.at).text]
    answer = page.post("predict", hx=True, **{f"v.{HOSTILE[:200]}": HOSTILE})
    assert answer.status_code == 200
    texts.append(answer.text)
    events = [line[6:] for line in page.post("chat/stream", **{"v.text": HOSTILE}).text.splitlines() if "data:" in line]
    texts += [said for said in map(json.loads, events) if isinstance(said, str)]
    assert len(texts) == 4
    for text in texts:
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert not re.search(r"<[^>]*\sonerror=", re.sub(r'"[^"]*"', '""', text))
        assert "&lt;script&gt;alert(1)" in text
        assert "{{ 7 * 7 }}" in text


def test_a_small_map_is_a_picture_only_where_its_size_is_right() -> None:
    def picture(data: str) -> str:
        head = AttentionHead(layer=1, head=1, entropy=1.0, distance=None, picture=data)
        view = AttentionView(name="x", title="x", queries=("a",), keys=("a", "b", "c"), heads=(head,))
        return small_picture(head, view)

    made = picture("AID/")  # 0, 128, 255
    image = Image.open(BytesIO(b64decode(made.partition(",")[2])))
    assert list(image.convert("RGBA").getchannel("A").tobytes()) == [0, 128, 255]
    assert picture("AAAA")
    assert picture("AAAAAAAA") == picture("A") == picture("") == ""


def test_a_field_of_several_texts_has_a_box_for_each_and_keeps_their_lines() -> None:
    field = FormField(name="answers", label="Answers", control="texts", low=2, high=4)
    assert trying_page._value(field, ["one\ntwo", " ", "three", "", "four", "five", "six"]) == [
        "one\ntwo",
        "three",
        "four",
        "five",
    ]
    form = Form(name="predict", title="?", button="Ask", fields=(field,))
    assert trying_page.sent(form, {"answers": ["one", "two"]}) == {"answers": ["one", "two"]}
    for few, sentence in (([], "'Answers' is empty"), (["one"], "'Answers' needs at least 2 texts")):
        with pytest.raises(Problem, match=sentence):
            trying_page.sent(form, {"answers": few})
    visitor = Visitor(nonce="", csrf="0" * 64)
    drawn = partial(
        "parts/try_form.html.jinja",
        form=form,
        values={"predict": {"answers": ["<b>\none"]}},
        answers={},
        base="/x",
        prefix=trying_page.PREFIX,
        visitor=visitor,
        shown_in=trying_page.shown_in,
        boxes=trying_page.boxes,
        beginning=trying_page.beginning,
    )
    assert drawn.count('name="v.answers"') == 4
    assert drawn.count("required") == 2
    assert "&lt;b&gt;\none</textarea>" in drawn


def test_a_card_is_cut_at_its_headings_and_code_is_closed() -> None:
    found = card_sections(CARD)
    assert [(heading, open_) for heading, _, open_ in found] == [("", True), ("Scores", True), ("Use", False)]
    assert "## no heading" in found[2][1]


def test_commands_for_the_same_answer_quote_what_was_written() -> None:
    nasty = "it's; rm -rf $HOME `x`"
    model = PublishedModel("model-1", "", "my model", "f", "", "/tmp/my model")
    form = Form(name="predict", title="?", button="!", fields=(FormField(name="text", label="T"),))
    ((_, command),) = same_answer(form, {"text": nasty}, model, "http://h", True)
    words = shlex.split(command)
    assert json.loads(words[1]) == {"text": nasty}
    assert words[2:] == ["|", "finery", "predict", "/tmp/my model", "-"]
    found = dict(same_answer(form, {"text": nasty}, model, "http://h", False))
    assert json.loads(shlex.split(found["curl"].replace("\\\n", " "))[-1]) == {"inputs": [{"text": nasty}]}
    assert "http://h/api/v1/models/my%20model%401/predict" in found["curl"]
    compile(found["Python"], "answer.py", "exec")
    (command,) = (code for title, code in found.items() if title.startswith("Command"))
    assert shlex.split(command)[2:] == ["|", "finery", "predict", "my-model", "-"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("64.0", "64"), (" 7 ", "7"), ("1e2", "100"), ("2.5", "2.5"), ("x", "x"), ("", ""), ("inf", "inf")],
)
def test_a_whole_number_is_taken_however_it_is_written(given: str, kept: str) -> None:
    field = FormField(name="max_tokens", label="Tokens", control="number", whole=True)
    assert trying_page._value(field, [given]) == kept


def test_no_command_is_shown_for_what_the_command_does_not_take() -> None:
    model = PublishedModel("model-1", "", "m", "f", "", "/tmp/m")
    form = Form(name="chat", title="?", button="!", fields=(FormField(name="message", label="M"),))
    for values, titles in (({}, ["Command"]), ({"system": "Be brief."}, [])):
        shown = same_answer(form, {"message": "Hi", "max_tokens": "8", **values}, model, "http://h", True)
        assert [title for title, _ in shown] == titles


# ---- in a service, with a real process ---------------------------------------------------------------------------------


def test_roles_decide_who_may_ask(clients: Any, tried: Any) -> None:
    at = f"/models/{tried.id}/try"
    viewer, foreign = clients("viewer"), clients("foreign")
    assert "Your token is a viewer&#39;s" in viewer.get(at).text
    assert viewer.post(f"{at}/start").status_code == 403
    assert viewer.post(f"{at}/chat", data={"v.message": "a"}).status_code == 403
    assert foreign.get(at).status_code == foreign.post(f"{at}/start").status_code == 404
    assert clients("submitter").get(f"/models/{tried.id}").text.count(f'href="{at}"') == 1
    with_no_files = clients("submitter").get("/models/mini-encoder-mrpc/try").text
    assert "do not say what kind of model it is" in with_no_files


def test_a_project_opens_no_more_models_on_the_page_than_it_may_run(clients: Any, site: Any, tried: Any) -> None:
    at, client = f"/models/{tried.id}/try", clients("submitter")
    site.store.set_project(tried.project, max_running=0)
    try:
        opened_here = client.post(f"{at}/start")
        swapped = client.post(f"{at}/start", headers={"HX-Request": "true"})
        asked = client.post(f"{at}/chat", data={"v.message": "a"})
    finally:
        site.store.set_project(tried.project, max_running=None)
    sentence = "Project 'team' may have 0 processes at once (max_running)"
    assert sentence in html.unescape(opened_here.text)
    assert sentence in html.unescape(swapped.text)
    assert sentence in html.unescape(asked.text)
    assert (opened_here.status_code, swapped.status_code, asked.status_code) == (429, 200, 429)
    assert "Open it" in client.get(at).text, "nothing was started"

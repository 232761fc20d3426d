"""Requests that cost the server more than their sender: each is refused before the work, or by a process that may be killed."""

import concurrent.futures
import json
import os
import select
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import anyio
import pytest

from pipelines.core.errors import RecipeError
from pipelines.core.load import read_text
from pipelines.data import chat_templates
from service import checking
from service.api import files, watching
from service.api.limits import unfit_json
from service.checking import Checker, Crowded, Lane
from service.safety import network_recipes
from service.safety import network_recipes as materialise
from service.safety.network_recipes import MOST_CHARACTERS, MOST_DEPTH, MOST_OVERRIDES, MOST_VALUES, Known, check
from service.web import job as differences
from tests.service.executors.worlds import until
from tests.service.served import RECIPE, YAML, listening

CHILD_MEMORY = 64 << 20


def deep(levels, bottom=1):
    for _ in range(levels):
        bottom = {"a": bottom}
    return bottom


@pytest.fixture
def asked(served, monkeypatch):
    """What workers are asked; nothing, where a refusal comes before the work."""
    seen = []
    worker = checking._Worker.ask
    monkeypatch.setattr(checking._Worker, "ask", lambda self, request: seen.append(request) or worker(self, request))
    return seen


@pytest.mark.parametrize(
    "submission",
    [
        {"recipe": RECIPE, "overrides": [".".join("a" * 4900) + "=1"]},
        {"recipe": RECIPE, "overrides": ["a" + "[0]" * 3000 + "=1"]},
        {"recipe": RECIPE, "overrides": ["a=" + "[" * 4000]},
        {"recipe": RECIPE, "overrides": ["a=[" + "1," * 4900 + "1]"] * 4},
        {"recipe": RECIPE, "overrides": ["a=1"] * (MOST_OVERRIDES + 1)},
        {"recipe": {"a": [1] * (MOST_VALUES + 1)}},
        {"recipe": {"a": [[1, 2]] * MOST_VALUES}},
        {"recipe": {"a": "x" * (MOST_CHARACTERS + 1)}},
        {"recipe": {f"{key}{'k' * 100}": 1 for key in range(MOST_CHARACTERS // 100)}},
        {"recipe": deep(MOST_DEPTH + 5)},
        {"recipe": "a: [" + "1, " * (MOST_VALUES + 1) + "1]"},
        {"recipe": "a:\n" + "- 1\n" * (MOST_VALUES + 1)},
        {"recipe": "x: " + "[" * 200 + "]" * 200},
        {"recipe": "x" * (MOST_CHARACTERS + 1)},
        {"recipe": "a: {" + "<<: *a, " * 50 + "}"},
    ],
    ids=lambda given: str(given)[:40],
)
def test_a_submission_beyond_all_use_reaches_no_worker(served, asked, submission):
    for path, client in (("/api/v1/validate", served.viewer), ("/api/v1/jobs", served.submitter)):
        answer = client.post(path, json=submission)
        assert answer.status_code == 422, answer.text
        assert len(answer.text) < 2000
    assert asked == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"recipe": {"a": [' + b"1," * 900_000 + b"1]}}",
        b'{"recipe": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"recipe": ' + b'{"a":' * 500 + b"1" + b"}" * 501,
        b'{"recipe": {"a": ' + b"9" * 60_000 + b"}}",
        b'{"a": "' + b'\\\\\\"' * 1000 + b'", "b": [' + b"0," * 100_000 + b"0]}",
    ],
    ids=["many", "deep", "nested", "digits", "strings"],
)
@pytest.mark.parametrize(
    "path", ["/api/v1/validate", "/api/v1/jobs", "/v1/fine_tuning/jobs", "/api/v1/files", "/api/v1/tokens"]
)
def test_json_beyond_all_use_is_counted_in_its_bytes_and_never_parsed(served, monkeypatch, path, body):
    monkeypatch.setattr(json, "loads", lambda *given, **named: pytest.fail("was parsed"))
    answer = served.admin.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == (400 if path.startswith("/v1/") else 422), answer.text[:300]


def test_what_stands_in_texts_is_not_counted():
    text = 'quotes \\" and [[[[ brackets, ' * 10_000
    assert unfit_json(json.dumps({"recipe": text, "more": [1, {"a": text}]}).encode()) is None


def test_an_override_path_is_bounded_for_local_recipes_too():
    with pytest.raises(RecipeError, match="has 4900 parts"):
        read_text(RECIPE, overrides=[".".join("a" * 4900) + "=1"])


def run_within(memory, code, *arguments):
    """Code in a process that has so much memory beyond its imports."""
    limits = f"""
import resource, sys
from pathlib import Path
from service.safety.network_recipes import Known, check
from pipelines.data import chat_templates
import jinja2.sandbox, jinja2.ext
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + {memory}, mapped + {memory}))
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
"""
    return subprocess.run(
        [sys.executable, "-c", limits + code, *arguments], capture_output=True, text=True, check=True, timeout=120
    ).stdout


CAUSAL = """\
name: chat
model: {architecture: {preset: gpt-tiny}}
tokenizer: {train: byte_bpe, vocab_size: 600}
stages: [{stage: supervised, task: {kind: causal, path: file:file-1}, chat_template: file:file-2}]
"""


def test_a_chat_template_of_105_megabytes_is_never_opened(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"messages": []}\n')
    with open(tmp_path / "large.jinja", "wb") as file:
        file.truncate(105 << 20)
    code = f"""
from pipelines.core.errors import RecipeError
try:
    check({CAUSAL!r}, (), Known({{"file-1": Path(sys.argv[1]) / "rows.jsonl", "file-2": Path(sys.argv[1]) / "large.jinja"}}))
except RecipeError as error:
    print(error)
print(any("large.jinja" in each for each in opened))
"""
    said = run_within(CHILD_MEMORY, code, str(tmp_path))
    assert "has 110,100,480 bytes, a chat template has at most 262,144" in said, said
    assert said.splitlines()[-1] == "False"


def test_a_chat_template_that_grows_while_it_is_read_is_given_up(tmp_path, monkeypatch):
    path = tmp_path / "grows.jinja"
    path.write_text("x" * 100)
    monkeypatch.setattr(chat_templates, "LARGEST", 50)
    real = Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda self, **named: type("Small", (), {"st_size": 1})() if self == path else real(self, **named)
    )
    with pytest.raises(ValueError, match="has more than 50 bytes"):
        chat_templates._read(path)


@pytest.mark.parametrize(
    "text",
    [
        "{{ " + "(" * 50_000,
        "{{ " + "[" * 20_000 + "]" * 20_000 + " }}",
        "{% if a %}" * 20_000,
        "{{ a" + "|b" * 60_000 + " }}",
        "{{" + "-" * 90_000 + "1}}",
    ],
    ids=lambda text: text[:8],
)
def test_a_deep_template_is_a_mistake_in_the_recipe(served, text):
    template = served.submitter.post(
        "/api/v1/files/upload", params={"filename": "deep.jinja"}, content=text.encode()
    ).json()["id"]
    rows = served.submitter.post(
        "/api/v1/files/upload", params={"filename": "rows.jsonl"}, content=b'{"prompt": "a", "completion": "b"}\n'
    ).json()["id"]
    recipe = CAUSAL.replace("file:file-1", f"file:{rows}").replace("file:file-2", f"file:{template}")
    answer = served.viewer.post("/api/v1/validate", content=recipe, headers=YAML)
    assert answer.status_code in (200, 422), answer.text
    assert len(answer.content) < 50_000


def test_the_server_itself_reads_no_recipe(served, monkeypatch):
    """Everything that parses what a client wrote happens in a worker."""
    fail = lambda *given, **named: pytest.fail("was read in the server's process")  # noqa: E731
    served.checker = served.service.checker
    served.service.checker.read(RECIPE)  # the workers are there
    for module, name in (
        (network_recipes, "read_network"),
        (network_recipes, "check"),
        (network_recipes, "read_text"),
        (materialise, "needs"),
    ):
        monkeypatch.setattr(module, name, fail)
    recipe = RECIPE.replace("demo", "read-elsewhere")
    assert served.viewer.post("/api/v1/validate", content=recipe, headers=YAML).status_code == 200
    job, other = served.job(recipe), served.job(RECIPE.replace("demo", "another"))
    for path in (f"jobs/{job}/diff/{other}", f"jobs/{job}/cells", f"jobs/{job}"):
        assert served.viewer.get(f"/api/v1/{path}").status_code == 200


@pytest.fixture
def checker():
    made = Checker(workers=2, seconds=30.0)
    yield made
    made.close()


def workers_of(checker):
    return [each for each in checker._idle.queue if each is not None]


def test_a_worker_that_does_not_answer_is_replaced_and_the_recipe_refused(checker):
    for number in (signal.SIGSTOP, signal.SIGKILL):
        recipe = f"{RECIPE}# {number}\n"
        checker.read(recipe)
        (worker,) = workers_of(checker)
        worker._seconds = 0.2
        ready = worker.ask
        worker.ask = lambda request, pid=worker.pid, number=number, ready=ready: os.kill(pid, number) or ready(request)
        with pytest.raises(RecipeError, match="takes too long to check"):
            checker.check(recipe, (), Known(), 1)
        assert worker.pid not in {each.pid for each in workers_of(checker)}
        assert not Path(f"/proc/{worker.pid}").exists(), "killed, and not left as a zombie"
        assert checker.check(recipe, (), Known(), 1).name == "demo", "what was refused for its time is tried again"


def test_a_worker_that_is_first_asked_long_after_its_start_answers():
    checker = Checker(workers=1)
    try:
        checker.start()
        (worker,) = workers_of(checker)
        assert select.select([worker._process.stdout], [], [], 60)[0], "it says that it is ready"
        worker._begun -= 2 * checking.START_SECONDS
        assert checker.check(RECIPE, (), Known(), 1).name == "demo"
        assert workers_of(checker) == [worker]
    finally:
        checker.close()


def test_a_recipe_that_takes_too_much_memory_is_refused(served):
    small = Checker(workers=2, seconds=60.0, memory=4 << 20)
    try:
        assert small.check(RECIPE, (), Known(), 1).name == "demo"
        with pytest.raises(RecipeError, match="4 MB of memory"):
            small.read("a:\n" + "- b: c\n" * 9000)
        assert small.check(RECIPE.replace("demo", "next"), (), Known(), 1).name == "next"
    finally:
        small.close()


@pytest.mark.parametrize("error", [MemoryError(), SystemError("error return without exception set")])
def test_a_worker_without_memory_says_that_it_is_spent(error, monkeypatch):
    """CPython 3.11 raises the second where it gets no memory for a call's frame."""

    def without_memory(**given):
        raise error

    monkeypatch.setattr(checking, "_read", without_memory)
    assert checking._answer({"work": "read", "recipe": "", "is_text": True, "overrides": ()}) == b'{"spent": true}'


def test_workers_hold_no_torch_and_no_secret_of_the_server(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a" * 34)
    monkeypatch.setenv("FINERY_SECRET_JUDGE", "sesame")
    monkeypatch.setenv("FINERY_DATABASE_URL", "postgresql://user:password@host/name")
    checker = Checker()
    try:
        checker.check(RECIPE, (), Known(), 1)
        (worker,) = workers_of(checker)
        environment = Path(f"/proc/{worker.pid}/environ").read_bytes()
        assert not any(word in environment for word in (b"HF_TOKEN", b"sesame", b"password"))
        assert "torch" not in Path(f"/proc/{worker.pid}/maps").read_text()
        assert "Max address space" in (limits := Path(f"/proc/{worker.pid}/limits").read_text())
        assert "unlimited" not in next(line for line in limits.splitlines() if line.startswith("Max address space"))
    finally:
        checker.close()


def test_workers_end_with_the_server_even_if_it_is_killed():
    code = (
        "import time\nfrom service.checking import Checker\nmade = Checker(); made.start(); made.read('name: a')\n"
        "print(*[each.pid for each in made._idle.queue], flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        pids = server.stdout.readline().split()
        server.kill()
    assert len(pids) == 2
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30)


def test_one_caller_never_has_the_whole_lane():
    begun, go = [], threading.Event()

    def work(name):
        begun.append(name)
        go.wait(30)

    async def play():
        lane = Lane("a check", 3, waiting=20, each=10)
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(lane.run, "greedy", work, "greedy")
            await anyio.wait_all_tasks_blocked()
            group.start_soon(lane.run, "modest", work, "modest")
            with anyio.fail_after(20):
                while "modest" not in begun:
                    await anyio.sleep(0.01)
            assert begun.count("greedy") == 2, "of three threads"
            with pytest.raises(Crowded) as refused:
                await lane.run("greedy", work, "one too many")
            assert refused.value.status == 429
            for number in range(12):
                group.start_soon(lane.run, f"caller-{number}", work, "more")
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(Crowded) as refused:
                await lane.run("late", work, "late")
            assert refused.value.status == 503
            go.set()
        assert not {"one too many", "late"} & set(begun), "refused before the work"
        assert not lane._callers, "callers are forgotten when nothing of theirs waits"

    anyio.run(play)


def test_a_crowded_lane_is_answered_with_when_to_come_again(served, monkeypatch):
    monkeypatch.setattr(served.service.lanes.checks, "each", 0)
    answer = served.viewer.post("/api/v1/validate", content=RECIPE, headers=YAML)
    assert (answer.status_code, answer.json()["code"], "retry-after" in answer.headers) == (429, "crowded", True)


def test_health_is_answered_while_fifty_downloads_hang(served, monkeypatch):
    begun, go = threading.Semaphore(0), threading.Event()

    def hangs(*given, **named):
        begun.release()
        go.wait(60)
        raise files.Problem(422, "given up", "test")

    monkeypatch.setattr(files, "from_url", hangs)
    token = served.submitter.headers["Authorization"]
    with listening(served) as url, concurrent.futures.ThreadPoolExecutor(50) as pool:

        def fetch():
            body = json.dumps({"url": "http://example.com/a.csv"}).encode()
            request = urllib.request.Request(
                f"{url}/api/v1/files", body, {"Authorization": token, "Content-Type": "application/json"}
            )
            try:
                urllib.request.urlopen(request, timeout=90)
            except urllib.error.HTTPError as error:
                return error.code

        pending = [pool.submit(fetch) for _ in range(50)]
        try:
            assert begun.acquire(timeout=30)
            with urllib.request.urlopen(f"{url}/healthz", timeout=30) as answer:
                assert answer.status == 200
            request = urllib.request.Request(f"{url}/api/v1/me", headers={"Authorization": token})
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200, "nor do others wait"
        finally:
            go.set()
        assert {each.result() for each in pending} == {422}


def test_recipes_of_lines_that_repeat_are_not_compared_line_by_line(served, monkeypatch):
    fail = lambda *given, **named: pytest.fail("was compared")  # noqa: E731
    monkeypatch.setattr(watching.difflib, "unified_diff", fail)
    monkeypatch.setattr(differences, "SequenceMatcher", fail)
    text = RECIPE + "#\n" * 5000
    one, other = served.job(text), served.job(text.replace("demo", "other"))
    answer = served.viewer.get(f"/api/v1/jobs/{one}/diff/{other}").json()
    assert [change["key"] for change in answer["changes"]] == ["name", "stages.publish.to"]
    assert answer["text"].count("\n-#") == answer["text"].count("\n+#") == 5000
    lines = differences.difference(text, text.replace("demo", "other"))
    assert {line.kind for line in lines} == {"gone", "new"}


def test_the_check_itself_refuses_what_came_past_the_front():
    """Recipes of the store and of forms are held to the same bounds."""
    with pytest.raises(RecipeError, match="has an override whose path has more than 40 parts"):
        check(RECIPE, [".".join("a" * 50) + "=1"])

"""The whole service as its users meet it: five jobs from the command, the `openai` client and the page; the server dies and comes back.

Three recipes are submitted with `finery submit`, one job with the unmodified `openai` client, one from the page in a real browser. They run two
at a time. The server is killed with SIGKILL while two are running and started again. All five finish once, and the leaderboard is filled.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FINERY = Path(sys.executable).with_name("finery")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="the page is used in Debian's chromium, which is not installed"),
]
SECONDS = 600

RECIPE = """
name: {name}
seed: {seed}
model:
  architecture: {{preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}}
tokenizer: {{train: wordpiece, vocab_size: 600}}
stages:
  - stage: pretrain
    objective: masked_lm
    datasets: [{{path: builtin/python-docs}}]
    block_size: 32
    max_train_samples: 200
    arguments: {{max_steps: 60, global_batch_size: 8, learning_rate: 1e-3, logging_steps: 5, save_steps: 20}}
  - stage: supervised
    task: builtin/python-docs
    max_length: 32
    max_train_samples: 48
    arguments: {{num_train_epochs: 1, global_batch_size: 8, learning_rate: 1e-3}}
  - {{stage: evaluate, max_eval_samples: 40, baselines: [majority]}}
  - {{stage: publish, to: {name}}}
"""


class Server:
    """`finery serve` in a process of its own, on one home."""

    def __init__(self, folder):
        self.home = folder / "home"
        self.environment = os.environ | {
            "FINERY_HOME": str(folder / "cache"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "FINERY_CPUS": "2",
        }
        self.port = 0
        self.start()

    def start(self):
        words = [FINERY, "serve", "--home", self.home, "--port", str(self.port), "--json"]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self.environment
        )
        self.told = json.loads(self.process.stdout.readline())
        self.url = self.told["url"]
        self.port = int(self.url.rpartition(":")[2])
        self.token = Path(self.told["admin_token"]).read_text().strip()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def get(self, path):
        answer = httpx.get(f"{self.url}/api/v1{path}", headers={"Authorization": f"Bearer {self.token}"}, timeout=30)
        answer.raise_for_status()
        return answer.json()

    def jobs(self):
        return {job["id"]: job for job in self.get("/jobs")["data"]}

    def finery(self, *words):
        environment = self.environment | {"FINERY_URL": self.url, "FINERY_TOKEN": self.token}
        done = subprocess.run([FINERY, *map(str, words)], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    for job in server.jobs().values():
        if "cancel" in job["actions"]:
            server.finery("cancel", job["id"])
    server.process.terminate()
    server.process.wait(60)


def through_the_page(server, text):
    """Submit a recipe as somebody at a browser does."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{server.url}/")
        page.get_by_label("Access token").fill(server.token)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Submit").first.click()
        page.get_by_role("button", name="YAML").click()
        page.get_by_label("Recipe as YAML", exact=True).fill(text)  # not the preview, "The recipe as YAML"
        page.get_by_role("button", name="Submit", exact=True).click()
        page.wait_for_url("**/jobs/job-*")
        job = page.url.rpartition("/")[2]
        browser.close()
    return job


def through_openai(server, folder):
    """Fine-tune as somebody with OpenAI's own client does."""
    from openai import OpenAI

    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {n} plus {n}?"},
                {"role": "assistant", "content": str(2 * n)},
            ]
        }
        for n in range(40)
    ]
    (folder / "chat.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    client = OpenAI(base_url=f"{server.url}/v1", api_key=server.token)
    file = client.files.create(file=(folder / "chat.jsonl").open("rb"), purpose="fine-tune")
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 1, "batch_size": 8}}}
    made = client.fine_tuning.jobs.create(model="scratch/gpt-tiny", training_file=file.id, suffix="sums", method=method)
    return client, made.id


def running(server):
    return [job for job in server.jobs().values() if job["state"] == "running"]


def wait(condition, what):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"after {SECONDS} s: {what}")


def test_five_jobs_from_everywhere_outlive_the_server_and_finish_once(server, tmp_path):
    ours = []
    for seed in (1, 2, 3):
        (tmp_path / "recipe.yaml").write_text(RECIPE.format(name=f"story-{seed}", seed=seed))
        ours.append(json.loads(server.finery("submit", tmp_path / "recipe.yaml", "--json"))["id"])
    client, tuned = through_openai(server, tmp_path)
    with ThreadPoolExecutor(1) as thread:  # another test's browser may hold this thread's event loop
        ours.append(thread.submit(through_the_page, server, RECIPE.format(name="story-page", seed=4)).result())

    most = 0

    def two_at_work():
        nonlocal most
        busy = running(server)
        most = max(most, len(busy))
        return len(busy) == 2 and all(job["progress"].get("stage") == "pretrain" for job in busy) and busy

    busy = wait(two_at_work, "never were two jobs training at once")
    server.kill()
    server.start()
    assert {job["id"] for job in busy} <= set(server.jobs())

    def all_over():
        nonlocal most
        jobs = server.jobs().values()
        most = max(most, sum(job["state"] == "running" for job in jobs))
        return all(job["state"] in ("succeeded", "failed", "cancelled") for job in jobs) and jobs

    jobs = wait(all_over, "not all jobs ended")
    assert len(jobs) == 5
    assert {(job["state"], job["message"]) for job in jobs} == {("succeeded", "")}
    assert most == 2

    done = client.fine_tuning.jobs.retrieve(tuned)
    assert done.status == "succeeded"
    assert done.fine_tuned_model in [model.id for model in client.models.list()]

    published = [model["name"] for model in server.get("/models")["data"]]
    assert sorted(name for name in published if name.startswith("story-")) == [
        "story-1",
        "story-2",
        "story-3",
        "story-page",
    ]
    board = server.get("/leaderboard/builtin/python-docs")
    lines = board["data"] if isinstance(board, dict) else board
    assert {line["job_name"] for line in lines} == {"story-1", "story-2", "story-3", "story-page"}
    for job in ours:
        finished = [
            event for event in server.get(f"/jobs/{job}/events?limit=5000")["data"] if event["event"] == "finished"
        ]
        assert len(finished) == 1
        assert [attempt["state"] for attempt in server.get(f"/jobs/{job}/attempts")] == [
            "ended"
        ]  # the one before the kill was taken over

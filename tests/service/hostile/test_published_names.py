"""What is published, and what the API says of it, names uploads by name, models by reference, and no server folder."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines.publishing import provenance

SECONDS = 400
ROWS = "".join(
    json.dumps(
        {"messages": [{"role": "user", "content": f"Say {word}."}, {"role": "assistant", "content": f"It is {word}."}]}
    )
    + "\n"
    for word in ("red", "green", "blue", "black", "white", "brown")
)
LABELLED = "".join(json.dumps({"text": f"{word} harbour", "label": word}) + "\n" for word in ("red", "blue") * 12)
OWN = """\
name: own
model: {{architecture: {{preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}}}}
tokenizer: {{train: wordpiece, vocab_size: 300}}
stages:
  - {{stage: supervised, id: colours, task: {{kind: classification, columns: [text], label: label, train: 'file:{file}', validation: 'file:{file}'}}, max_length: 16, arguments: {{max_steps: 2}}}}
  - {{stage: evaluate, baselines: [majority]}}
  - {{stage: publish, to: own}}
"""
ONWARD = """\
name: onward-{kind}
model: {{checkpoint: '{reference}'}}
stages:
  - {{stage: supervised, id: again, task: {{kind: classification, columns: [text], label: label, train: 'file:{file}', validation: 'file:{file}'}}, max_length: 16, arguments: {{max_steps: 2}}}}
  - {{stage: publish, to: onward-{kind}}}
"""


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an attempt on a server knows of its paths."""
    job = tmp_path / "home" / "jobs" / "job-1"
    (job / "inputs").mkdir(parents=True)
    names = {
        f"{job}/inputs/file-1/rows.jsonl": "file:file-1",
        f"{job}/inputs/file-1/rows.jsonl.gz": "file:file-2",
        "/srv/models/x/model": "model:mine",
    }
    (job / "inputs" / "references.json").write_text(json.dumps(names))
    monkeypatch.setenv(provenance.REFERENCES, str(job / "inputs" / "references.json"))
    monkeypatch.setenv("FINERY_HOME", str(job / "cache"))
    monkeypatch.chdir(job)
    return job


def test_paths_become_what_they_stand_for_and_folders_go(known: Path) -> None:
    said = {
        "train": f"{known}/inputs/file-1/rows.jsonl",
        "other": (f"{known}/inputs/file-1/rows.jsonl.gz",),
        "checkpoint": "/srv/models/x/model",
        f"data of {known}/inputs/file-1/rows.jsonl": 1,
        "folder": str(known),
        "stage": f"{known}/cache/stages/ab/model",
        "name": "google/bert",
        "count": 3,
    }
    assert provenance.public(said) == {
        "train": "file:file-1",
        "other": ("file:file-2",),
        "checkpoint": "model:mine",
        "data of file:file-1": 1,
        "folder": ".",
        "stage": "stages/ab/model",
        "name": "google/bert",
        "count": 3,
    }
    assert provenance.described("/srv/models/x/model") == "`model:mine`"
    assert provenance.public(f"read {known}/inputs/file-1/rows.jsonl, twice") == "read file:file-1, twice"


def test_where_no_server_is_paths_stay_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(provenance.REFERENCES, raising=False)
    said = {"train": f"{tmp_path}/rows.jsonl", "folder": str(Path.cwd())}
    assert provenance.public(said) is said


class Server:
    """`finery serve` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "served"
        root = str(Path(__file__).parents[3])
        self.environment = {name: value for name, value in os.environ.items() if name != "FINERY_HOME"} | {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": root,
            "FINERY_WARM": "1",  # six jobs pay for importing ahead
        }
        words = [sys.executable, "-m", "service.cli", "serve", "--home", str(self.home), "--port", "0", "--json"]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self.environment
        )
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]
        token = (self.home / "admin.token").read_text().strip()
        self.client = httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer

    def upload(self, name: str, text: str, openai: bool = False) -> str:
        if openai:
            answer = self.client.post("/v1/files", files={"file": (name, text)}, data={"purpose": "fine-tune"})
        else:
            answer = self.client.post("/api/v1/files/upload", params={"filename": name}, content=text.encode())
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    def submit(self, recipe: str) -> str:
        answer = self.client.post("/api/v1/jobs", content=recipe, headers={"Content-Type": "application/yaml"})
        assert answer.status_code == 201, answer.text
        return self.ended(str(answer.json()["id"]))

    def ended(self, job: str) -> str:
        limit = time.monotonic() + SECONDS
        while (said := self.get(f"/api/v1/jobs/{job}").json())["state"] not in ("succeeded", "failed", "cancelled"):
            assert time.monotonic() < limit, said
            time.sleep(0.3)
        assert said["state"] == "succeeded", said
        return job

    def fine_tuned(self, file: str) -> str:
        asked = {"model": "scratch/gpt-tiny", "training_file": file, "hyperparameters": {"n_epochs": 1}}
        answer = self.client.post("/v1/fine_tuning/jobs", json=asked)
        assert answer.status_code == 200, answer.text
        limit = time.monotonic() + SECONDS
        while (said := self.get(f"/v1/fine_tuning/jobs/{answer.json()['id']}").json())["status"] not in (
            "succeeded",
            "failed",
            "cancelled",
        ):
            assert time.monotonic() < limit, said
            time.sleep(0.3)
        assert said["status"] == "succeeded", said
        return str(said["fine_tuned_model"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.process.terminate()
    server.process.wait(60)


@pytest.mark.long
def test_nothing_that_is_published_names_a_folder_of_the_server(server: Server, tmp_path: Path) -> None:
    """Of a model of one's own file, of one that starts from it in both ways, and of one that `/v1` made."""
    chats, rows = server.upload("chats.jsonl", ROWS * 4, openai=True), server.upload("rows.jsonl", LABELLED)
    first = server.submit(OWN.format(file=rows))
    server.submit(ONWARD.format(kind="model", reference="model:own", file=rows))
    server.submit(ONWARD.format(kind="job", reference="job:own", file=rows))
    tuned = server.fine_tuned(chats)
    names = [model["name"] for model in server.get("/api/v1/models").json()["data"]]
    assert sorted(names) == sorted(["own", "onward-model", "onward-job", tuned])

    ours = (str(server.home), str(tmp_path), str(Path(__file__).parents[3]), sys.prefix, "/jobs/job-")

    def clean(text: str, where: str, folders: tuple[str, ...] = (*ours, "inputs/", "cache/")) -> None:
        for folder in folders:
            assert folder not in text, f"{where}: {text[max(0, text.find(folder) - 200) : text.find(folder) + 200]}"

    found: dict[str, dict[str, str]] = {}
    for name in names:
        said = tarfile.open(fileobj=io.BytesIO(server.get(f"/api/v1/models/{name}/download").content))  # noqa: SIM115
        texts = {}
        for member in said.getmembers():
            content = said.extractfile(member)
            assert content is not None
            if not member.name.endswith(".safetensors"):
                texts[member.name.partition("/")[2]] = content.read().decode(errors="replace")
        found[name] = texts
        for path, text in texts.items():
            clean(text, f"{name} {path}")
        clean(server.get(f"/api/v1/models/{name}").text, name)
        clean(server.get(f"/api/v1/models/{name}/card").text, name)
    for job in server.get("/api/v1/jobs").json()["data"]:
        clean(json.dumps(job), job["id"])
        clean(server.get(f"/api/v1/jobs/{job['id']}").text, job["id"])
        clean(
            server.get(f"/api/v1/jobs/{job['id']}/events?limit=1000").text, job["id"], ours
        )  # relative to the job's own folder

    assert "train: data/rows.jsonl" in found["own"]["recipe.yaml"]
    assert "`data/rows.jsonl`" in found["own"]["README.md"]
    assert "data/chats.jsonl" in found[tuned]["recipe.yaml"]
    for name, texts in found.items():  # what nobody knows who has the folder alone
        assert "published/" not in texts["README.md"], name
        assert "file:" not in texts["README.md"] + texts["recipe.yaml"] + texts["manifest.json"], name
    assert 'checkpoint: "model:own@1"' in found["onward-model"]["recipe.yaml"]
    assert 'checkpoint: "job:own"' in found["onward-job"]["recipe.yaml"]
    assert "`model:own@1`" in found["onward-model"]["README.md"]
    stranger = tmp_path / "stranger"  # with the file as it was uploaded, in a folder of the usual name
    (stranger / "data").mkdir(parents=True)
    (stranger / "data/rows.jsonl").write_text(LABELLED)
    with tarfile.open(fileobj=io.BytesIO(server.get("/api/v1/models/own/download").content)) as said:
        said.extractall(
            stranger, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )  # not before Python 3.11.4
    line = next(line for line in found["own"]["README.md"].splitlines() if line.startswith("finery verify"))
    verb = [sys.executable, "-m", "service.cli", *shlex.split(line.partition("  #")[0])[1:3], "--json"]
    done = subprocess.run(verb, cwd=stranger, capture_output=True, text=True, env=server.environment)
    verified = json.loads(done.stdout)
    assert (verified["verified"], len(verified["scores"])) == (True, 2), done.stdout + done.stderr
    bases = {model["name"]: model["base"] for model in server.get("/api/v1/models").json()["data"]}
    assert (bases["own"], bases["onward-model"], bases["onward-job"]) == ("", "model:own@1", "job:own")
    assert (server.home / "jobs" / first / "cache" / "stages").is_dir()
    assert len(list((server.home / "cache" / "default" / "stages").iterdir())) > 4
    again = found["own"]["recipe.yaml"].replace("name: own", "name: own-again").replace("published/own", "own-again")
    server.submit(again.replace("data/rows.jsonl", f"file:{rows}"))  # as `finery submit` does it

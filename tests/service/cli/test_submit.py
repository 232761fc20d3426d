import hashlib
import json

import httpx
import pytest

from pipelines.core.errors import CommandError
from pipelines.core.load import read
from service.cli import submit
from service.cli.submit import local_files, upload, with_uploads
from service.client import Connection, ServerAddress


class Files:
    """A server's files, as the API keeps them; `breaks` is the number of chunks after which one answer is lost."""

    def __init__(self, breaks=None):
        self.stored = {}
        self.announced = {}
        self.chunks = 0
        self.breaks = breaks

    def __call__(self, request):
        path = request.url.path.removeprefix("/api/v1/files").strip("/")
        if request.method == "POST" and not path:
            told = json.loads(request.content)
            known = next(
                (key for key, value in self.stored.items() if hashlib.sha256(value).hexdigest() == told["sha256"]), None
            )
            if known:
                return httpx.Response(200, json={"id": known, "state": "ready"})
            name = f"file-{len(self.stored) + len(self.announced) + 1}"
            self.announced[name] = b""
            return httpx.Response(201, json={"id": name, "state": "uploading"})
        if request.method == "PATCH":
            if int(request.headers["Upload-Offset"]) != len(self.announced[path]):
                return httpx.Response(409, json={"detail": "another offset"})
            self.announced[path] += request.content
            self.chunks += 1
            if self.chunks == self.breaks:
                raise httpx.ReadError("connection reset")
            return httpx.Response(204, headers={"Upload-Offset": str(len(self.announced[path]))})
        if path.endswith("/complete"):
            name = path.removesuffix("/complete")
            body = self.announced.pop(name)
            assert json.loads(request.content)["sha256"] == hashlib.sha256(body).hexdigest()
            self.stored[name] = body
            return httpx.Response(200, json={"id": name, "state": "ready"})
        return httpx.Response(200, json={"id": path, "offset": len(self.announced[path])})

    def connect(self):
        return Connection(ServerAddress("http://server", "t"), transport=httpx.MockTransport(self), pause=0.0)


def test_a_file_is_sent_once_whatever_it_is_called(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n")
    (tmp_path / "b.csv").write_text("text,label\n")
    server = Files()
    with server.connect() as connection:
        assert upload(connection, tmp_path / "a.csv") == upload(connection, tmp_path / "b.csv")
    assert server.chunks == 1


def test_an_upload_whose_answer_was_lost_goes_on_where_the_server_is(tmp_path, monkeypatch):
    monkeypatch.setattr(submit, "PIECE", 10)
    body = bytes(range(35))
    (tmp_path / "a.bin").write_bytes(body)
    server = Files(breaks=2)
    with server.connect() as connection:
        name = upload(connection, tmp_path / "a.bin")
    assert server.stored[name] == body
    assert server.chunks == 4


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("")
    with Files().connect() as connection, pytest.raises(CommandError, match="is empty"):
        upload(connection, tmp_path / "a.csv")


RECIPE = """
name: own
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: texts, text: text}, {path: english_novels}]}
  - {stage: supervised, task: {kind: classification, columns: text, label: label, train: train.csv, validation: data/dev.csv}}
  - {stage: publish, to: own}
"""


@pytest.fixture
def recipe(tmp_path):
    for name in ("train.csv", "data/dev.csv", "texts/1.jsonl", "texts/2.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "recipe.yaml"


def test_the_overrides_put_every_local_file_into_the_text_as_it_was_written(recipe):
    server = Files()
    source = read(recipe)
    with server.connect() as connection:
        overrides = with_uploads(connection, source.data, source.folder)
    changed = read(recipe, overrides).data
    names = {body.decode().strip(): f"file:{key}" for key, body in server.stored.items()}
    assert [entry["path"] for entry in changed["stages"][0]["datasets"]] == [
        names["texts/1.jsonl"],
        names["texts/2.jsonl"],
        "english_novels",
    ]
    assert all(entry["text"] == "text" for entry in changed["stages"][0]["datasets"][:2])
    assert changed["stages"][1]["task"]["train"] == names["train.csv"]
    assert changed["stages"][1]["task"]["validation"] == names["data/dev.csv"]


def test_names_that_are_no_files_stay(recipe):
    named = [each.text for each in local_files(read(recipe).data, recipe.parent)]
    assert "english_novels" not in named
    assert "own" not in named


def test_a_folder_where_one_file_is_needed_is_refused_before_anything_travels(recipe):
    source = read(recipe, ["stages.supervised.task.train=texts"])
    server = Files()
    with server.connect() as connection, pytest.raises(CommandError, match="stands for 2 files"):
        with_uploads(connection, source.data, source.folder)
    assert not server.announced

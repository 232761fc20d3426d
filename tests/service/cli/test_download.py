"""`finery models download` from a service on a real port."""

import hashlib
import json
import shutil
from types import SimpleNamespace

import pytest

from service.cli import download
from service.cli.__main__ import main
from service.settings import read_settings
from service.store.store import Store
from tests.service.served import Served, listening, published

WEIGHTS = "base/model.safetensors"


@pytest.fixture(scope="module")
def site(migrated_sqlite, tmp_path_factory):
    """Three models: as published, without a record of its files, and with one that leads out of its folder."""
    home = tmp_path_factory.mktemp("models")
    shutil.copy(migrated_sqlite, home / "finery.db")
    settings = read_settings({}, home=home, burst=10_000)
    store = Store(settings.url)
    served = Served(settings, store)
    attempt = served.started(served.job())
    for name, more in (("demo-model", {}), ("no-record", None), ("leads-out", {"base/../../x": "0" * 64})):
        folder = published(served, attempt, name)
        sums = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in ("README.md", WEIGHTS)}
        if more is not None:
            (folder / "publication.json").write_text(json.dumps({"checksums": sums | more}))
    token = home / "token"
    token.write_text(served.token("viewer"))
    with listening(served) as address:
        yield folder.parents[1], ("--server", address, "--token-file", str(token))
    store.close()


@pytest.fixture
def fetch(site, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = main(("models", "download", *words, *site[1]))
        return code, *capsys.readouterr()

    return call


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_comes_as_it_was_published_and_once(fetch, site, tmp_path):
    there = files_of(site[0] / "demo-model" / "0123abcd")
    size = f"{sum(map(len, there.values())) / 1000:.1f} kB"
    line = f"demo-model@1  registry/demo-model-1  3 files, {size}, as published\n"
    assert fetch("demo-model") == (0, line, "")
    assert files_of(tmp_path) == {f"registry/demo-model-1/{name}": content for name, content in there.items()}
    assert fetch("demo-model@latest")[:2] == (0, line)
    answer = json.loads(fetch("demo-model@1", "--to", "elsewhere/here", "--json")[1])
    assert (answer["folder"], answer["files"], answer["model"]["version"]) == ("elsewhere/here", 3, 1)
    assert files_of(tmp_path / "elsewhere") == {f"here/{name}": content for name, content in there.items()}


def test_a_broken_download_goes_on_and_what_is_not_as_published_never_takes_its_place(fetch, site, tmp_path):
    there = files_of(site[0] / "demo-model" / "0123abcd")
    begun = tmp_path / "registry" / ".demo-model-1.download"
    (begun / "base").mkdir(parents=True)
    (begun / "publication.json").write_bytes(there["publication.json"])
    (begun / WEIGHTS).write_bytes(b"other" + there[WEIGHTS][5:100])
    code, _, told = fetch("demo-model")
    assert (code, f"'{WEIGHTS}' did not come as it was published" in told) == (1, True)
    assert not (tmp_path / "registry" / "demo-model-1").exists()
    (begun / WEIGHTS).write_bytes(there[WEIGHTS][:100])
    assert fetch("demo-model")[0] == 0
    assert files_of(tmp_path / "registry") == {f"demo-model-1/{name}": content for name, content in there.items()}


def test_what_another_version_left_is_not_gone_on_with(fetch, tmp_path):
    begun = tmp_path / "registry" / ".demo-model-1.download"
    begun.mkdir(parents=True)
    (begun / "publication.json").write_text('{"checksums": {"of": "another"}}')
    (begun / "of").write_text("another")
    assert fetch("demo-model")[0] == 0
    assert not list(tmp_path.rglob("of"))


def test_a_folder_that_holds_something_else_is_left_alone(fetch, tmp_path):
    (tmp_path / "mine").mkdir()
    code, _, told = fetch("demo-model", "--to", "mine")
    assert (code, "mine is there already and is not 'demo-model@1'; name another folder with --to" in told) == (2, True)
    assert fetch("demo-model")[0] == 0
    (tmp_path / "registry" / "demo-model-1" / WEIGHTS).write_bytes(b"changed")
    code, _, told = fetch("demo-model")
    assert (code, f"is 'demo-model@1', but '{WEIGHTS}' was changed" in told) == (2, True)


@pytest.mark.parametrize(
    ("model", "code", "sentence"),
    [
        ("nothing", 2, "there is no model 'nothing'"),
        ("no-record", 1, "has no publication.json with checksums"),
        ("leads-out", 1, "names a file 'base/../../x', which would lie outside of its folder"),
    ],
)
def test_what_cannot_come_is_one_sentence_and_leaves_nothing(fetch, tmp_path, model, code, sentence):
    told = fetch(model)
    assert (told[0], sentence in told[2]) == (code, True), told
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_told_before_anything_comes(fetch, tmp_path, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    code, _, told = fetch("demo-model")
    assert (code, "kB are to come, and the disk of" in told, "has 100 bytes left" in told) == (1, True, True)
    assert not files_of(tmp_path)

import json
import os
import shutil

import pytest

from service.attempts.folders import Folders
from service.attempts.publishing import place, publications

MARK = "f" * 32


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path / "job", "tiny")


def publish(folders, name="my-model", complete=True, fingerprint=MARK, hidden=False):
    folder = folders.job / "published" / (f".{name}.incoming" if hidden else name)
    (folder / "onnx").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "onnx" / "x").write_bytes(b"deep")
    (folder / "recipe.yaml").write_text("model: {checkpoint: google-bert/bert-base-uncased}\n")
    stages = [
        {"stage": "pretrain", "metrics": {"all_parameters": 5}},
        {"stage": "supervised", "metrics": {"all_parameters": 7}},
        {"stage": "evaluate", "metrics": {"glue/mrpc": {"f1": 0.9}}},
    ]
    (folder / "manifest.json").write_text(json.dumps({"stages": stages}))
    (folder / "publication.json").write_text(
        json.dumps({"complete": complete, "fingerprint": fingerprint, "checksums": {}})
    )
    return folder


def test_a_publication_is_found_with_its_scores_size_and_base(folders):
    publish(folders)
    [found] = publications(folders)
    assert (found.name, found.fingerprint, found.parameters) == ("my-model", MARK, 7)
    assert found.scores == {"glue/mrpc": {"f1": 0.9}}
    assert found.base == "google-bert/bert-base-uncased"


def test_what_is_not_complete_is_not_published(folders):
    publish(folders, "torn", complete=False)
    publish(folders, "coming", hidden=True)
    (folders.job / "published" / "empty").mkdir()
    assert list(publications(folders)) == []


def test_the_model_takes_its_place_in_one_step_and_the_job_s_copy_stays(folders, tmp_path):
    folder = publish(folders)
    [found] = publications(folders)
    path = place(found, tmp_path / "models", "default")
    assert path == tmp_path / "models" / "default" / "my-model" / MARK
    assert (path / "onnx" / "x").read_bytes() == b"deep"
    assert not os.path.samefile(path / "model.safetensors", folder / "model.safetensors"), (
        "an attempt could change what was published"
    )
    shutil.rmtree(folder)
    assert (path / "model.safetensors").read_bytes() == b"weights"


def test_placing_twice_and_after_a_kill_in_the_middle_changes_nothing(folders, tmp_path):
    publish(folders)
    [found] = publications(folders)
    torn = tmp_path / "models" / "default" / "my-model" / f".{MARK}.incoming"
    torn.mkdir(parents=True)
    (torn / "half").write_bytes(b"")
    path = place(found, tmp_path / "models", "default")
    before = sorted(each.relative_to(path) for each in path.rglob("*"))
    assert place(found, tmp_path / "models", "default") == path
    assert sorted(each.relative_to(path) for each in path.rglob("*")) == before
    assert [each.name for each in path.parent.iterdir()] == [MARK]

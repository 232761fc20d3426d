import json

import pytest

from pipelines.core.load import loads
from pipelines.runs.run import run
from pipelines.studies import workers

RECIPE = """\
name: small
model: {architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}}
tokenizer: {train: wordpiece, vocab_size: 300}
stages:
  - {stage: supervised, task: builtin/python-docs, max_length: 16, max_train_samples: 16, arguments: {max_steps: 1}}
"""


@pytest.fixture
def done(tmp_path):
    recipe = loads(RECIPE)
    return recipe, run(recipe, tmp_path / "small")


def test_a_finished_run_is_complete_until_something_of_it_changes(done, monkeypatch):
    recipe, folder = done
    before = sorted((path, path.lstat().st_mtime_ns) for path in folder.rglob("*"))
    assert workers.complete(recipe, folder, 1)
    assert sorted((path, path.lstat().st_mtime_ns) for path in folder.rglob("*")) == before  # it only looked
    assert not workers.complete(loads(RECIPE, overrides=["stages.supervised.max_length=32"]), folder, 1)
    assert not workers.complete(recipe, folder, 2)  # twice the processes, twice the batch
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.runs.fingerprints.versions", lambda: {"torch": "9"})
        assert not workers.complete(recipe, folder, 1)
    weights = folder / "stages" / "01-supervised" / "model" / "model.safetensors"
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1])
    assert not workers.complete(recipe, folder, 1)
    weights.write_bytes(kept)
    assert workers.complete(recipe, folder, 1)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["finished"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert not workers.complete(recipe, folder, 1)


def test_no_folder_is_not_complete(tmp_path):
    assert not workers.complete(loads(RECIPE), tmp_path / "nowhere", 1)

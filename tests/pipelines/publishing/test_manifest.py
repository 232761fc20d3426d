"""What a publication says about where it comes from, and what it keeps to itself."""

from __future__ import annotations

import json
from importlib.metadata import version

from pipelines.publishing.provenance import manifest_of


def test_versions_fingerprints_data_and_training_metrics_are_there(job):
    made = job("bert")
    run = {"hardware": {"cpu": "EPYC", "cores": 2}, "folder": "/home/ada/secret", "hostname": "ada-laptop"}
    (made.folder / "manifest.json").write_text(json.dumps(run))
    manifest = manifest_of(made.context(), ["mrpc", "evaluate", "model"])
    assert manifest["versions"]["torch"] == version("torch")
    assert manifest["hardware"] == run["hardware"]
    assert [stage["id"] for stage in manifest["stages"]] == ["mrpc", "evaluate"]
    mrpc = manifest["stages"][0]
    assert (mrpc["fingerprint"], mrpc["data"], mrpc["seed"]) == ("ab" * 16, {"train": "cd" * 16}, 42)
    assert mrpc["metrics"]["train_runtime"] == 12.5
    text = json.dumps(manifest)
    assert "secret" not in text
    assert "ada-laptop" not in text

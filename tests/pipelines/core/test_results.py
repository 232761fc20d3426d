"""Scores of one model among those of several."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.core.results import scores_of_model


def evaluation(folder: Path, **scored: tuple[str, float]) -> Path:
    folder.mkdir()
    names = {name.replace("_", "/"): value for name, value in scored.items()}
    (folder / "metrics.json").write_text(json.dumps({name: {"f1": score} for name, (_, score) in names.items()}))
    (folder / "details.json").write_text(json.dumps({name: {"model": model} for name, (model, _) in names.items()}))
    return folder


def test_only_the_models_own_scores_count_and_the_latest_of_each(tmp_path):
    folders = {
        "one": evaluation(tmp_path / "one", glue_mrpc=("a", 0.1), glue_cola=("b", 0.2), glue_rte=("a", 0.3)),
        "two": evaluation(tmp_path / "two", glue_mrpc=("b", 0.4), glue_rte=("a", 0.5)),
    }
    found = scores_of_model("a", ["one", "two"], folders)
    assert {name: each.metrics for name, each in found.items()} == {"glue/mrpc": {"f1": 0.1}, "glue/rte": {"f1": 0.5}}
    assert {name: each.folder for name, each in found.items()} == {
        "glue/mrpc": folders["one"],
        "glue/rte": folders["two"],
    }
    assert scores_of_model("c", ["one", "two"], folders) == {}

"""What a model began with is named by what it is; what a publication says of its origin, and keeps to itself."""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from pathlib import Path

import pytest

from pipelines.core.results import BenchmarkScores
from pipelines.publishing import provenance
from pipelines.publishing.provenance import described, is_hub_id, manifest_of, name_of


def folder(place: Path, **files: object) -> str:
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    for name, content in files.items():
        (place / name.replace("_json", ".json")).write_text(json.dumps(content))
    return str(place)


@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("registry/my-model", "my-model"),
        ("published/ft:gpt:acme::1", "ft:gpt:acme::1"),
        ("hub:me/mine", "me/mine"),
        ("s3://a/b/", "b"),
    ],
)
def test_a_publication_has_the_name_it_was_published_under(to: str, name: str, tmp_path: Path) -> None:
    place = folder(tmp_path / "0123abcd", publication_json={"to": to})
    assert (name_of(place), described(place)) == (name, f"`{name}`")


def test_a_stage_s_model_has_the_name_of_the_stage_and_of_its_run(tmp_path: Path) -> None:
    place = folder(tmp_path / "demo/stages/01-mrpc/model")
    (Path(place).parent / "stage.json").write_text('{"id": "mrpc"}')
    assert described(place) == "the model of stage `mrpc`"
    (tmp_path / "demo/recipe.yaml").write_text("name: demo\n")
    assert described(place) == "the model of stage `mrpc` in run `demo`"
    task = folder(tmp_path / "cache/abc/tasks/first/model")
    (tmp_path / "cache/abc/stage.json").write_text('{"id": "both"}')
    assert (name_of(task), described(task)) == ("both", "the model of stage `both`")


def test_other_folders_are_called_by_their_last_part_unless_that_says_nothing(tmp_path: Path) -> None:
    assert described(folder(tmp_path / "mine")) == "`mine`"
    assert described(folder(tmp_path / "theirs/model")) == "`theirs`"
    assert described(folder(tmp_path / "broken", publication_json=[1])) == "`broken`"


def test_the_file_that_a_stage_is_known_by_is_the_one_that_the_store_writes() -> None:
    from pipelines.runs import workspace

    assert provenance.RECORD == workspace.RECORD


def test_a_name_on_the_hub_stays() -> None:
    assert is_hub_id("google-bert/bert-base-uncased")
    assert not any(is_hub_id(each) for each in ("/srv/x", "./x", "~/x", "a/b/c"))
    assert described("google-bert/bert-base-uncased") == "`google-bert/bert-base-uncased`"


def test_versions_fingerprints_data_and_training_metrics_are_there(job):
    made = job("bert")
    run = {"hardware": {"cpu": "EPYC", "cores": 2}, "folder": "/home/ada/secret", "hostname": "ada-laptop"}
    (made.folder / "manifest.json").write_text(json.dumps(run))
    scores = BenchmarkScores(
        "glue/mrpc", "evaluate", "mrpc", {"accuracy": 0.5, "f1": math.nan}, {"accuracy": (0.25, 0.75)}
    )
    manifest = manifest_of(made.context(), ["mrpc", "evaluate", "model"], "mrpc", {"glue/mrpc": scores})
    assert manifest["versions"]["torch"] == version("torch")
    assert manifest["hardware"] == run["hardware"]
    assert [stage["id"] for stage in manifest["stages"]] == ["mrpc", "evaluate"]
    mrpc = manifest["stages"][0]
    assert (mrpc["fingerprint"], mrpc["data"], mrpc["seed"]) == ("ab" * 16, {"train": "cd" * 16}, 42)
    assert mrpc["metrics"]["train_runtime"] == 12.5
    assert manifest["model"] == {"stage": "mrpc", "publish": "publish"}
    assert manifest["environment"]["pyarrow"] == version("pyarrow")  # what a stranger's environment is made of
    assert {"finery", "bitsandbytes", "gensim", "nltk"} <= {*provenance.required()}  # what scores may need
    assert not {"wandb", "onnx", "deepspeed"} & {*provenance.required()}
    assert "deepspeed" in provenance.required(("deepspeed",))
    (stated,) = manifest["scores"]
    assert stated["metrics"] == {"accuracy": 0.5, "f1": None}
    assert stated["intervals"] == {"accuracy": [0.25, 0.75]}
    text = json.dumps(manifest, allow_nan=False)
    assert "secret" not in text
    assert "ada-laptop" not in text

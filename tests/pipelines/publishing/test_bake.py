"""Baked: one folder, one line; and never mistaken for the base alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import ModelError, RecipeError
from pipelines.core.load import loads
from pipelines.publishing.assemble import bake

ADAPTER = "{name: adapter, reduction_factor: 4}"


@pytest.fixture
def baked(pretrained: Any, quick: None) -> Any:
    """`baked(model_type)`: the published folder."""

    def make(model_type: str) -> Path:
        made = pretrained(model_type, "masked_lm", tuner=ADAPTER, publish=", bake: true")
        made.publish.run(made.context())
        return Path(made.publish.to)

    return make


def test_it_holds_base_and_adapter_and_names_one_class(baked: Any) -> None:
    from safetensors.torch import load_file

    folder = baked("bert")
    names = load_file(folder / "model.safetensors").keys()
    assert "bert.encoder.layer.0.output.dense.base_layer.weight" in names
    assert "bert.encoder.layer.0.output.dense.bottleneck_adapters.default.up.weight" in names
    assert not [name for name in names if "modules_to_save" in name or "original_module" in name]
    said = json.loads((folder / "config.json").read_text())
    assert set(said["auto_map"]) == {"AutoConfig", "AutoModelForMaskedLM"}
    assert said["architectures"] == ["BertForMaskedLMWithAdapter"]
    assert not (folder / "adapter_config.json").exists()
    assert not list(folder.rglob("__pycache__"))


@pytest.mark.parametrize("model_type", ["bert", "finery"])
def test_without_its_code_it_is_refused_and_not_read_as_the_base(baked: Any, model_type: str) -> None:
    """As `bert`, transformers would read it with fresh weights in place of the wrapped layers, and only warn.

    So it would as `finery` where Finery is installed: a class that a process has registered comes before the folder's.
    """
    from transformers import AutoModelForMaskedLM

    folder = baked(model_type)
    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=False)


def test_heads_that_were_trained_whole_are_plain_weights(job: Any, quick: None, tmp_path: Path) -> None:
    """A fresh head is not wrapped any more."""
    from peft import PeftModel
    from safetensors.torch import load_file

    from pipelines.core.interfaces import Head
    from pipelines.models import opening
    from pipelines.tuners.adapter import Adapter
    from tests import tiny

    head = Head("sequence_classification", ("no", "yes"))
    tiny.build("bert", tiny.MASKED).save_pretrained(tmp_path / "pretrained")
    base = opening.open_folder(tmp_path / "pretrained", head, seed=1)
    tuned = Adapter(reduction_factor=4).apply(base)
    tiny.disturb(tuned)
    tuned.save_pretrained(tmp_path / "trained")
    again = PeftModel.from_pretrained(opening.open_folder(tmp_path / "pretrained", head, seed=1), tmp_path / "trained")
    wanted = load_file(tmp_path / "trained/adapter_model.safetensors")
    bake(again, tmp_path / "trained", tmp_path / "out", "AutoModelForSequenceClassification")
    found = load_file(tmp_path / "out/model.safetensors")
    for name in ("classifier.weight", "bert.pooler.dense.weight"):
        assert bool((found[name] == wanted[f"base_model.model.{name}"]).all())


def test_a_method_of_pefts_own_is_refused(job: Any, tmp_path: Path) -> None:
    made = job("bert-lora")
    with pytest.raises(ModelError, match="cannot be baked; leave bake out"):
        bake(None, made.folder / "stages/mrpc/model", tmp_path, "AutoModel")


TEXT = (
    "name: x\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
    "  - {stage: supervised, id: mrpc, task: glue/mrpc, tuner: %s}\n  - {stage: publish, to: /tmp/nowhere%s}\n"
)


@pytest.mark.parametrize(
    ("tuner", "publish", "sentence"),
    [
        (
            "adapter",
            ", merge: true",
            "publish.merge is true, but adapter cannot be merged; leave merge out to publish the adapter with its base in base/, or write bake: true",
        ),
        (
            "adapter",
            ", merge: false, bake: true",
            "publish.bake is true, but merge: false asks for an adapter beside its base",
        ),
        ("lora", ", bake: true", "publish.bake is true, but lora is merged; leave bake out"),
        ("prefix", ", bake: true", "publish.bake is true, but prefix is loaded by PEFT; leave bake out"),
        (
            "full",
            ", bake: true",
            "publish.bake is true, but stage 'mrpc' trains every weight and leaves no adapter; leave bake out",
        ),
        ("full", ", merge: false", "publish.merge is false, but stage 'mrpc' trains every weight"),
    ],
)
def test_ways_that_the_tuner_rules_out_are_refused_in_the_recipe(tuner: str, publish: str, sentence: str) -> None:
    with pytest.raises(RecipeError) as caught:
        loads(TEXT % (tuner, publish))
    (mistake,) = caught.value.mistakes
    assert f"{mistake.key} {mistake.message}".startswith(f"stages.{sentence}")


@pytest.mark.parametrize(
    ("tuner", "publish"),
    [
        ("adapter", ""),
        ("adapter", ", merge: false"),
        ("adapter", ", bake: true"),
        ("lora", ", merge: true"),
        ("lora", ", merge: false"),
    ],
)
def test_every_other_way_is_valid(tuner: str, publish: str) -> None:
    assert loads(TEXT % (tuner, publish)).stages[-1].to == "/tmp/nowhere"

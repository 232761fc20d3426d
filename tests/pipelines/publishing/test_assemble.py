"""The files that are written: safetensors, no pickles, no path of this machine; a baked adapter in one folder."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import ModelError, RecipeError
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.publishing.assemble import assemble, bake, end_answers, is_adapter, read_head
from tests import writers

HEAD = Head("sequence_classification", ("not_equivalent", "equivalent"))


def test_an_adapter_keeps_its_bytes_and_names_its_base_by_the_folder_beside_it(job, tmp_path):
    from safetensors.torch import load_file

    made = job("bert-lora")
    trained = made.folder / "stages/mrpc/model"
    settings = json.loads((trained / "adapter_config.json").read_text())
    settings["target_modules"] = ["value", "query"]  # a set, in the order of one process
    (trained / "adapter_config.json").write_text(json.dumps(settings))
    assemble(made.context(), HEAD, "mrpc", tmp_path / "out", adapter=True)
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["target_modules"] == ["query", "value"]
    assert (tmp_path / "out/adapter_model.safetensors").read_bytes() == (
        trained / "adapter_model.safetensors"
    ).read_bytes()
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["base_model_name_or_path"] == "base"
    base, original = (
        load_file(tmp_path / "out/base/model.safetensors"),
        load_file(made.folder / "stages/mrpc/base/model.safetensors"),
    )
    assert base.keys() == original.keys()
    assert all(bool((base[name] == original[name]).all()) for name in base)


def test_a_merged_model_differs_from_its_base_by_the_update_that_the_paper_defines(job, tmp_path):
    """W + alpha/r B A, Hu et al. 2021, section 4.1, computed here from the adapter's own file."""
    import torch
    from safetensors.torch import load_file

    made = job("bert-lora")
    assemble(made.context(), HEAD, "mrpc", tmp_path / "out", adapter=False)
    merged = load_file(tmp_path / "out/model.safetensors")
    base = load_file(made.folder / "stages/mrpc/base/model.safetensors")
    adapter = load_file(made.folder / "stages/mrpc/model/adapter_model.safetensors")
    checked = 0
    for name, a in adapter.items():
        if name.endswith("lora_A.weight"):
            layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            expected = base[f"{layer}.weight"] + (4 / 2) * adapter[name.replace("lora_A", "lora_B")] @ a
            torch.testing.assert_close(merged[f"{layer}.weight"], expected, atol=1e-5, rtol=0)
            checked += 1
    assert checked >= 8
    assert not (tmp_path / "out/adapter_config.json").exists()


def test_no_file_knows_where_it_was_written(job, tmp_path):
    made = job("finery-lora")
    assemble(made.context(), HEAD, "mrpc", tmp_path / "out", adapter=True)
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert str(tmp_path).encode() not in path.read_bytes(), path.name


def test_every_head_of_our_family_is_named_by_files_that_are_there(job, tmp_path):
    made = job("finery")
    assemble(made.context(), HEAD, "mrpc", tmp_path / "out", adapter=False)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert {"AutoModelForSequenceClassification", "AutoModelForMaskedLM", "AutoConfig"} <= set(config["auto_map"])
    for target in config["auto_map"].values():
        assert (tmp_path / "out" / f"{target.partition('.')[0]}.py").is_file()


def test_a_chat_model_names_the_token_that_ends_an_answer_for_every_program(tmp_path):
    tokenizer = copy.deepcopy(writers.tokenizer())
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    model = writers.model("gpt2")
    end_answers(model, tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id, "it is named already"
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}[MASK]{{ eos_token }}{% endfor %}"
    end_answers(model, tokenizer)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "generation_config.json").read_text())
    assert written["eos_token_id"] == sorted([tokenizer.eos_token_id, tokenizer.mask_token_id])
    classifier = writers.model("bert-classifier")
    end_answers(classifier, tokenizer)
    assert getattr(classifier, "generation_config", None) is None


def test_a_model_that_saves_a_pickle_is_refused(job, tmp_path):
    made = job("bert")
    context = made.context()

    def open_model(head, **named):
        model = context.open_model(head, **named)
        save = model.save_pretrained

        def save_pretrained(folder, **named):
            save(folder, **named)
            with open(f"{folder}/pytorch_model.bin", "wb") as file:
                file.write(b"\x80")

        model.save_pretrained = save_pretrained
        return model

    with pytest.raises(ModelError, match=r"'pytorch_model\.bin', a pickle"):
        assemble(made.context(open_model=open_model), HEAD, "mrpc", tmp_path / "out", adapter=False)


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
            "publish.merge is true, but adapter cannot be merged; leave merge out to publish the adapter with "
            "its base in base/, or write bake: true",
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


def test_a_head_is_read_as_it_was_written(tmp_path):
    (tmp_path / "head.json").write_text('{"kind": "sequence_classification", "labels": ["no", "yes"]}')
    assert read_head(tmp_path) == Head("sequence_classification", ("no", "yes"))


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"kind": "masked_lm"}', '{"kind": "masked_lm", "labels": null}']
)
def test_an_unreadable_one_is_one_sentence(tmp_path, content):
    if content is not None:
        (tmp_path / "head.json").write_text(content)
    with pytest.raises(ModelError, match="run the stage that trained the model again"):
        read_head(tmp_path)


def test_an_unknown_kind_names_the_known_ones(tmp_path):
    (tmp_path / "head.json").write_text('{"kind": "telepathy", "labels": []}')
    with pytest.raises(ModelError, match="masked_lm"):
        read_head(tmp_path)


def test_every_head_that_a_recipe_can_train_can_be_published():
    import transformers

    from pipelines.core.registry import OBJECTIVES, TASKS
    from pipelines.models.heads import HEAD_CLASSES

    trained = {OBJECTIVES.load(name)().head.kind for name in OBJECTIVES}
    trained |= {
        TASKS.load(name).head.kind
        for name in TASKS
        if TASKS.load(name).labels or TASKS.load(name).kind != "classification"
    }
    assert trained == set(HEAD_CLASSES)
    assert all(hasattr(transformers, use.auto_class) for use in HEAD_CLASSES.values())


def test_an_adapter_is_known_by_its_configuration(tmp_path):
    assert not is_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert is_adapter(tmp_path)

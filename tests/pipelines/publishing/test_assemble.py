"""The files that are written: safetensors, no pickles, no path of this machine."""

from __future__ import annotations

import json

import pytest

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head
from pipelines.publishing.assemble import assemble

HEAD = Head("sequence_classification", ("not_equivalent", "equivalent"))


def test_an_adapter_keeps_its_bytes_and_names_its_base_by_the_folder_beside_it(job, tmp_path):
    from safetensors.torch import load_file

    made = job("bert-lora")
    assemble(made.context(), HEAD, "mrpc", tmp_path / "out", adapter=True)
    trained = made.folder / "stages/mrpc/model"
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

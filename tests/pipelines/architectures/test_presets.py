"""configs/architectures: the named shapes against the library's own models of the same name and against the papers."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML
from transformers import BertConfig, BertForPreTraining, BertModel

import pipelines.architectures
from pipelines.architectures import FineryConfig
from pipelines.architectures.arithmetic import parameter_count

FOLDER = Path(pipelines.architectures.__file__).parents[2] / "configs" / "architectures"
PRESETS = sorted(FOLDER.glob("bert-*.yaml"))
# Layers, width, heads, feed-forward width; millions of parameters as printed, and the unit of the last digit.
PUBLISHED = {
    "bert-tiny": (2, 128, 2, 512, 4.4, 0.1),
    "bert-mini": (4, 256, 4, 1024, 11.3, 0.1),
    "bert-small": (4, 512, 8, 2048, 29.1, 0.1),
    "bert-medium": (8, 512, 8, 2048, 41.7, 0.1),
    "bert-base": (12, 768, 12, 3072, 110, 1),
    "bert-large": (24, 1024, 16, 4096, 340, 10),
}

each_preset = pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.stem)


def shape_of(preset: Path) -> dict:
    return dict(YAML(typ="safe").load(preset))


def bert_of(preset: Path, bert_class: type) -> torch.nn.Module:
    bert_fields = {field.name for field in fields(BertConfig)}
    with torch.device("meta"):
        return bert_class(
            BertConfig(**{name: value for name, value in shape_of(preset).items() if name in bert_fields})
        )


def test_every_published_shape_is_there():
    assert {preset.stem for preset in PRESETS} == set(PUBLISHED)


@each_preset
def test_a_preset_is_a_flat_mapping_of_config_fields(preset):
    shape = shape_of(preset)
    assert set(shape) <= {field.name for field in fields(FineryConfig)}
    assert not any(isinstance(value, dict | list) for value in shape.values())
    FineryConfig(**shape)


@each_preset
def test_a_preset_has_the_published_shape(preset):
    shape = shape_of(preset)
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    assert tuple(shape[name] for name in names) == PUBLISHED[preset.stem][:4]


@each_preset
def test_a_preset_has_as_many_parameters_as_the_librarys_bert(preset):
    bert = sum(weight.numel() for weight in bert_of(preset, BertModel).parameters())
    assert parameter_count(shape_of(preset), "base")["total"] == bert


@each_preset
def test_the_header_states_the_published_size_and_our_count(preset):
    """The papers round the size of the model as pretrained, heads included."""
    *_, millions, unit = PUBLISHED[preset.stem]
    header = "".join(line for line in preset.read_text().splitlines() if line.startswith("#"))
    assert f"Published size: {millions} million" in header
    assert "arxiv.org/abs/" in header
    stated = int(re.search(r"Encoder and pooler alone: ([\d,]+)\.", header)[1].replace(",", ""))
    assert stated == parameter_count(shape_of(preset), "base")["total"]
    pretrained = sum(weight.numel() for weight in bert_of(preset, BertForPreTraining).parameters())
    assert pretrained / 1e6 == pytest.approx(millions, abs=unit / 2)

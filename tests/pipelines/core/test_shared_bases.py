"""Bases are the same by their bytes, whatever anybody says of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipelines.core.shared_bases import shared_base


@pytest.fixture
def one(tmp_path: Path) -> Path:
    place = tmp_path / "one"
    (place / "base").mkdir(parents=True)
    (place / "adapter_config.json").write_text('{"peft_type": "LORA", "bias": "none"}')
    (place / "base/config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    (place / "base/model.safetensors").write_bytes(b"weights")
    return place


def test_the_same_bytes_are_one_base_wherever_they_lie(one: Path, tmp_path: Path) -> None:
    two = Path(shutil.copytree(one, tmp_path / "two"))
    (two / "base/README.md").write_text("another card")
    (two / "adapter_model.safetensors").write_bytes(b"its own")
    assert shared_base(one) == shared_base(two) is not None
    (two / "base/model.safetensors").write_bytes(b"Weights")
    assert shared_base(one) != shared_base(two)


@pytest.mark.parametrize(
    "settings", [{"peft_type": "PREFIX_TUNING"}, {"peft_type": "LORA", "bias": "all"}, {}, {"peft_type": "IA3"}]
)
def test_other_kinds_of_adapters_do_not_stand_with_lora(settings: dict[str, str], one: Path, tmp_path: Path) -> None:
    two = Path(shutil.copytree(one, tmp_path / "two"))
    (two / "adapter_config.json").write_text(json.dumps(settings))
    assert shared_base(two) != shared_base(one)
    assert (shared_base(two) is not None) == (settings.get("peft_type") == "IA3")


def test_whole_models_and_those_that_write_nothing_share_nothing(one: Path) -> None:
    (one / "base/config.json").write_text('{"architectures": ["BertForSequenceClassification"]}')
    assert shared_base(one) is None
    shutil.rmtree(one / "base")
    assert shared_base(one) is None

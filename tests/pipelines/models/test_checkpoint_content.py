"""A checkpoint's hash follows its bytes, wherever the folder lies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.models import checkpoint_content as module
from pipelines.models.checkpoint_content import checkpoint_content


def test_bytes_and_names_count_and_the_place_does_not(tmp_path: Path) -> None:
    for name, weights in (("one", "a"), ("two", "a"), ("three", "b")):
        (tmp_path / name / "more").mkdir(parents=True)
        (tmp_path / name / "more" / "model.safetensors").write_text(weights)
    one, two, three = (checkpoint_content(str(tmp_path / name)) for name in ("one", "two", "three"))
    assert one == two != three
    (tmp_path / "two" / "more" / "model.safetensors").rename(tmp_path / "two" / "model.safetensors")
    assert checkpoint_content(str(tmp_path / "two")) != one


def test_an_adapter_is_told_by_its_base_too(tmp_path: Path) -> None:
    adapter, base = tmp_path / "adapter", tmp_path / "elsewhere"
    adapter.mkdir(), base.mkdir()
    (base / "model.safetensors").write_text("a")

    def named(name: str) -> str:
        (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": name, "revision": "abc"}))
        return checkpoint_content(str(adapter))

    first, hub = named(str(base)), named("owner/name")
    assert hub.endswith(" on owner/name@abc")
    (base / "model.safetensors").write_text("b")
    second = named(str(base))
    assert second != first
    (base / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(adapter)}))
    assert named(str(base)) not in (first, second)  # each other's base: both are told, once
    (adapter / "adapter_config.json").write_text("{}")
    assert " on " not in checkpoint_content(str(adapter))  # names none, which opening it says


def test_a_hub_name_is_told_by_its_revision() -> None:
    assert checkpoint_content("owner/name") == "owner/name@main"
    assert checkpoint_content("owner/name", "abc") == "owner/name@abc"


def test_a_commit_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "commit_of", lambda source, revision: pytest.fail("asked"))
    assert checkpoint_content("owner/name", "a" * 40) == f"owner/name@{'a' * 40}"

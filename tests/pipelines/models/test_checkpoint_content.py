"""A checkpoint's hash follows its bytes, wherever the folder lies."""

from __future__ import annotations

from pathlib import Path

from pipelines.models.checkpoint_content import checkpoint_content


def test_bytes_and_names_count_and_the_place_does_not(tmp_path: Path) -> None:
    for name, weights in (("one", "a"), ("two", "a"), ("three", "b")):
        (tmp_path / name / "more").mkdir(parents=True)
        (tmp_path / name / "more" / "model.safetensors").write_text(weights)
    one, two, three = (checkpoint_content(str(tmp_path / name)) for name in ("one", "two", "three"))
    assert one == two != three
    (tmp_path / "two" / "more" / "model.safetensors").rename(tmp_path / "two" / "model.safetensors")
    assert checkpoint_content(str(tmp_path / "two")) != one


def test_a_hub_name_is_told_by_its_revision() -> None:
    assert checkpoint_content("owner/name") == "owner/name@main"
    assert checkpoint_content("owner/name", "abc") == "owner/name@abc"

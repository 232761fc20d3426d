"""The picture shows every map where its layer and head say, and survives any text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipelines.commands import attention_files
from pipelines.commands.attention import Maps, Section

YELLOW, BLUE = (254, 232, 56), (0, 34, 78)
"""The ends of cividis."""


def section(layers: int, heads: int, rows: int = 6, columns: int = 6, name: str = "encoder") -> Section:
    """Every map looks at the first token only."""
    weights = np.zeros((layers, heads, rows, columns), dtype=np.float32)
    weights[..., 0] = 1.0
    tokens = tuple(f"t{number}" for number in range(max(rows, columns)))
    return Section(
        name, name, tokens[:rows], tokens[:columns], weights, tuple(range(1, layers + 1)), tuple(range(1, heads + 1))
    )


def draw(tmp_path: Path, *sections: Section, **changed: Any) -> Any:
    path = tmp_path / "attention.png"
    attention_files.write_attention_picture(
        Maps(**{"model": "m", "family": "encoder", "text": "a text", "sections": sections} | changed), path
    )
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def near(pixels: Any, colour: tuple[int, int, int]) -> Any:
    return (np.abs(pixels - np.array(colour)).max(-1) <= 12).sum()


def test_a_map_has_its_bright_and_its_dark_columns(tmp_path: Path) -> None:
    pixels = draw(tmp_path, section(2, 3))
    bright, dark = near(pixels, YELLOW), near(pixels, BLUE)
    assert bright > 6 * 1000
    assert dark / bright == pytest.approx(5, rel=0.08)  # one column of six


def test_more_layers_make_it_taller_and_more_heads_wider(tmp_path: Path) -> None:
    height, width, _ = draw(tmp_path, section(2, 8)).shape
    assert draw(tmp_path, section(4, 8)).shape[0] > height + 150
    assert draw(tmp_path, section(2, 12)).shape[1] > width + 300


def test_three_kinds_of_attention_stand_below_each_other(tmp_path: Path) -> None:
    one = draw(tmp_path, section(2, 2))
    three = draw(tmp_path, section(2, 2), section(2, 2, 4, 4, "decoder"), section(2, 2, 4, 6, "cross"))
    assert three.shape[0] > 2 * one.shape[0]
    assert near(three, YELLOW) > 2 * near(one, YELLOW)


def test_one_map_alone_is_large(tmp_path: Path) -> None:
    assert near(draw(tmp_path, section(1, 1)), BLUE) > 5 * near(draw(tmp_path, section(1, 2)), BLUE)


@pytest.mark.parametrize("token", ["$x_{", "<b>", "日本", "\x00\x1b[31m", "a" * 400, "\\frac", ""])
def test_any_token_can_be_a_label(tmp_path: Path, token: str) -> None:
    weights = np.ones((1, 1, 1, 1), dtype=np.float32)
    assert draw(
        tmp_path, Section("encoder", "e", (token,), (token,), weights, (1,), (1,)), text=token, model=token or "m"
    ).size


def test_the_same_maps_give_the_same_bytes(tmp_path: Path) -> None:
    draw(tmp_path, section(2, 2))
    before = (tmp_path / "attention.png").read_bytes()
    draw(tmp_path, section(2, 2))
    assert (tmp_path / "attention.png").read_bytes() == before

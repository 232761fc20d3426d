"""Page and picture of attention maps: every map where its layer and head say, and nothing that a text says can run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipelines.commands import attention
from pipelines.commands.attention import page
from pipelines.core.errors import CommandError, StageError
from pipelines.models.attention_maps import AttentionMaps, AttentionRequest, AttentionSection, attend
from tests import writers
from tests.writers import TEXT


class Reader(HTMLParser):
    """Elements, their attributes, and the content of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.contents: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "br", "input", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.contents.append((self.open[-1], data))

    def of(self, tag: str) -> list[str]:
        return [content for where, content in self.contents if where == tag]

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def maps(**changed: Any) -> AttentionMaps:
    draw = np.random.default_rng(0)
    weights = draw.dirichlet([0.3] * 5, size=(2, 3, 4)).astype(np.float32)  # (layers, heads, query, key)
    crossing = AttentionSection(
        "cross", "Cross", ("a", "b", "c", "d"), ("v", "w", "x", "y", "z"), weights, (1, 2), (1, 2, 3)
    )
    alone = draw.dirichlet([0.3] * 4, size=(2, 3, 4)).astype(np.float32)
    own = AttentionSection("encoder", "Encoder", ("a", "b", "c", "d"), ("a", "b", "c", "d"), alone, (1, 2), (1, 2, 3))
    return AttentionMaps(
        **{"model": "m", "family": "encoder-decoder", "text": "a b c d", "sections": (own, crossing), "notes": ("cut",)}
        | changed
    )


def data_of(reader: Reader) -> Any:
    place = [attributes.get("type") for attributes in reader.attributes("script")].index("application/json")
    return json.loads(reader.of("script")[place])


def test_the_page_is_well_formed_and_closes_what_it_opens() -> None:
    text = page(maps())
    reader = Reader(text)
    assert reader.open == []
    assert text.startswith("<!DOCTYPE html>")
    assert reader.attributes("html") == [{"lang": "en"}]
    names = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(names) == len(set(names))
    script = reader.of("script")[-1]
    assert set(re.findall(r'one\("#([\w-]+)"\)', script)) <= set(names)  # whatever the script looks for is there


def test_its_policy_allows_its_own_style_and_script_and_nothing_else() -> None:
    reader = Reader(page(maps()))
    policy = next(
        each["content"] for each in reader.attributes("meta") if each.get("http-equiv") == "Content-Security-Policy"
    )
    style, script = reader.of("style")[0], reader.of("script")[-1]
    hashes = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in (style, script)]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; base-uri "
        "'none'; form-action 'none'"
    )


def test_it_loads_nothing_and_has_no_inline_style_or_handler() -> None:
    text = page(maps())
    for tag, attributes in Reader(text).elements:
        assert not {"src", "style", "srcset", "action"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")]
        assert tag != "link"
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"https?://|@import|url\(|eval\(|innerHTML|fetch\(|XMLHttpRequest", text)


def test_every_weight_is_in_it() -> None:
    told = maps()
    for section, data in zip(told.sections, data_of(Reader(page(told))), strict=True):
        steps = np.frombuffer(base64.b64decode(data["weights"]), dtype="<u2").reshape(section.weights.shape)
        np.testing.assert_allclose(steps / 65_535, section.weights, atol=1 / 65_535)
        assert data["queries"] == list(section.queries)
        assert [(each["layer"], each["head"]) for each in data["maps"]] == [
            (layer, head) for layer in (1, 2) for head in (1, 2, 3)
        ]


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--<script>", '"><img src=x onerror=alert(1)>', "]]>&amp;'"]
)
def test_a_text_cannot_run(text: str) -> None:
    section = AttentionSection(
        "encoder", "Encoder", (text, "b"), (text, "b"), np.full((1, 1, 2, 2), 0.5, np.float32), (1,), (1,)
    )
    reader = Reader(page(maps(model=text, text=text, notes=(text,), sections=(section,))))
    assert len(reader.attributes("script")) == 2
    assert not reader.attributes("img")
    assert data_of(reader)[0]["keys"] == [text, "b"]
    assert reader.of("blockquote") == [text]


def test_without_a_script_the_numbers_of_every_head_stand_there() -> None:
    told = maps()
    reader = Reader(page(told))
    cells = reader.of("td")
    entropies = [f"{value:.2f}" for section in told.sections for value in section.entropies().ravel()]
    assert cells[2::4] == entropies
    assert cells[3 + 4 * 6 :: 4] == ["–"] * 6  # across two texts there is no distance
    assert reader.of("noscript") or reader.attributes("noscript")


YELLOW, BLUE = (254, 232, 56), (0, 34, 78)
"""The ends of cividis."""


def section(layers: int, heads: int, rows: int = 6, columns: int = 6, name: str = "encoder") -> AttentionSection:
    """Every map looks at the first token only."""
    weights = np.zeros((layers, heads, rows, columns), dtype=np.float32)
    weights[..., 0] = 1.0
    tokens = tuple(f"t{number}" for number in range(max(rows, columns)))
    return AttentionSection(
        name, name, tokens[:rows], tokens[:columns], weights, tuple(range(1, layers + 1)), tuple(range(1, heads + 1))
    )


def draw(tmp_path: Path, *sections: AttentionSection, **changed: Any) -> Any:
    path = tmp_path / "attention.png"
    attention.write_picture(
        AttentionMaps(**{"model": "m", "family": "encoder", "text": "a text", "sections": sections} | changed), path
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


@pytest.mark.parametrize(
    "token",
    [
        "$x_{",
        pytest.param("<b>", marks=pytest.mark.long),
        "日本",
        "\x00\x1b[31m",
        "a" * 400,
        pytest.param("\\frac", marks=pytest.mark.long),
        "",
    ],
)
def test_any_token_can_be_a_label(tmp_path: Path, token: str) -> None:
    weights = np.ones((1, 1, 1, 1), dtype=np.float32)
    assert draw(
        tmp_path,
        AttentionSection("encoder", "e", (token,), (token,), weights, (1,), (1,)),
        text=token,
        model=token or "m",
    ).size


def test_the_same_maps_give_the_same_bytes(tmp_path: Path) -> None:
    draw(tmp_path, section(2, 2))
    before = (tmp_path / "attention.png").read_bytes()
    draw(tmp_path, section(2, 2))
    assert (tmp_path / "attention.png").read_bytes() == before


def test_page_and_picture_appear_together_and_nothing_else(tmp_path: Path) -> None:
    answer = attention.answer(
        {"model": str(writers.folder("t5")), "text": TEXT, "out": str(tmp_path / "new" / "place")}
    )
    assert sorted(path.name for path in (tmp_path / "new" / "place").iterdir()) == ["attention.html", "attention.png"]
    assert answer["html"] == str(tmp_path / "new/place/attention.html")
    assert [each["name"] for each in answer["sections"]] == ["encoder", "decoder", "cross"]
    assert len(answer["sections"][0]["maps"]) == 4


def test_a_failed_picture_leaves_the_older_page_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(maps: AttentionMaps, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / "attention.html").write_text("older")
    monkeypatch.setattr(attention, "write_picture", fail)
    with pytest.raises(StageError, match="cannot be written: No space left on device"):
        attention.write(attend(AttentionRequest(str(writers.folder("bert")), TEXT)), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["attention.html"]
    assert (tmp_path / "attention.html").read_text() == "older"


def test_a_file_is_no_place_for_a_page(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(CommandError, match="is a file; name a folder"):
        attention.answer({"model": str(writers.folder("bert")), "text": TEXT, "out": str(tmp_path / "x")})

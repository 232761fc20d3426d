"""A model's README.md as HTML that cannot do anything: no raw HTML, no scripts, no images from elsewhere."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from service.attempts.folders import open_regular

LARGEST = 400_000
"""Characters of a card that are shown."""
LINKS = ("http://", "https://", "mailto:", "#")


@lru_cache(maxsize=1)
def _parser() -> Any:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": 20}).enable("table")
    parser.validateLink = _may_link  # type: ignore[method-assign, assignment]
    parser.add_render_rule("heading_open", _one_level_lower)
    parser.add_render_rule("heading_close", _one_level_lower)
    parser.add_render_rule("link_open", _elsewhere)
    parser.add_render_rule("image", _picture)
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll" tabindex="0" role="group" aria-label="table"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("td_open", _aligned)
    parser.add_render_rule("th_open", _aligned)
    return parser


def rendered(text: str) -> Markup:
    """Markdown as HTML: the YAML front matter left out, headings a level lower, tags shown as text."""
    return Markup(_parser().render(without_front_matter(text[:LARGEST])))


def without_front_matter(text: str) -> str:
    """The text behind `---` … `---` at its start."""
    if not text.startswith("---\n"):
        return text
    end = text.find("\n---", 3)
    line = text.find("\n", end + 1) if end >= 0 else -1
    return text[line + 1 :] if line >= 0 else text


def read_card(folder: Path) -> str | None:
    """The README.md of a published model, or None when it has none that can be read."""
    try:
        with open_regular(folder / "README.md", folder) as file:
            return file.read(4 * LARGEST).decode(errors="replace")[: LARGEST + 1]
    except OSError:
        return None


def _may_link(address: str) -> bool:
    return address.strip().lower().startswith(LINKS)


def _one_level_lower(self: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
    tokens[place].tag = f"h{min(6, int(tokens[place].tag[1]) + 1)}"
    return str(self.renderToken(tokens, place, options, env))


def _elsewhere(self: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
    tokens[place].attrSet("rel", "noopener noreferrer nofollow")
    return str(self.renderToken(tokens, place, options, env))


def _picture(self: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
    """A link in place of the picture: the page loads nothing from elsewhere."""
    token = tokens[place]
    return f'<a href="{escape(token.attrs["src"])}" rel="noopener noreferrer nofollow">picture: {escape(token.content or token.attrs["src"])}</a>'


def _aligned(self: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
    """Alignment as a class: the content security policy forbids `style`."""
    style = tokens[place].attrs.pop("style", "")
    if "right" in style or "center" in style:
        tokens[place].attrSet("class", "number" if "right" in style else "centre")
    return str(self.renderToken(tokens, place, options, env))

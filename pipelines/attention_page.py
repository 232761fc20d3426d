"""Attention maps as one HTML file that needs nothing else: no network, no library, its own strict content policy."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.attention_maps import Maps, Section

STEPS = 65_535
"""Weights are carried as 16-bit numbers: exact to 0.00001."""


def write(maps: Maps, path: Path) -> None:
    """Write the page."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(page(maps))
        file.flush()
        os.fsync(file.fileno())


def page(maps: Maps) -> str:
    """The page as text. Styles and script are named in its policy by their SHA-256; nothing else may run or load."""
    from jinja2 import Environment, StrictUndefined

    folder = resources.files("pipelines").joinpath("templates")
    style, script, template = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("attention.css", "attention.js", "attention.html.jinja")
    )
    environment = Environment(undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    summaries = [section.summary() for section in maps.sections]
    return environment.from_string(template).render(
        model=maps.model, family=maps.family, text=maps.text, notes=maps.notes, sections=summaries,
        single=len(summaries) == 1, style=style, script=script, style_hash=_hash(style), script_hash=_hash(script),
        data=_json([_data(section, summary) for section, summary in zip(maps.sections, summaries, strict=True)]),
    )  # fmt: skip


def _data(section: Section, summary: dict[str, Any]) -> dict[str, Any]:
    """What the script draws: tokens, and the weights as base64 of little-endian 16-bit numbers, map after map."""
    import numpy as np

    steps = np.rint(np.clip(section.weights, 0.0, 1.0) * STEPS).astype("<u2")
    return summary | {"weights": base64.b64encode(steps.tobytes()).decode("ascii")}


def _json(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"

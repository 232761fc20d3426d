"""Licences of data sets and checkpoints, as somebody states them; nobody's silence is taken for a licence.

The recipe may say it (`license` beside `path` or `train`). Else the header of the README says it: that of the folder in
which the data lies, or that of the repository on the Hub, from the cache or the network. Identifiers are the Hub's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from pipelines.core import data_files
from pipelines.data import hub
from pipelines.data.builtin import NAMES

PATTERN = r"^[a-z0-9][a-z0-9.+-]*$"
License = Annotated[str | None, Field(pattern=PATTERN)]
"""The type of a field that states a licence. It changes no result, so that no fingerprint holds it."""
BUILTIN = "psf-2.0"
"""Of Python's documentation, which `builtin/python-docs` is made of."""
UNKNOWN = "unknown"


class Licence(NamedTuple):
    """What is stated, and by whom."""

    name: str
    """The Hub's identifier, several joined by commas; `unknown` where nobody says anything."""
    stated_by: str
    """Who says so, or who was asked; for a reader."""


def licence_of(path: str, revision: str | None = None, kind: Literal["dataset", "model"] = "dataset") -> Licence:
    """Of a data set or a checkpoint, by the name that a recipe gives it."""
    if path in NAMES:
        return Licence(BUILTIN, "Python")
    if kind == "dataset" and (folder := data_files.mirror_folder(path)) is not None:
        found = _in_header(data_files.header(folder))
        # a copy that says nothing is a copy of what may say something
        return Licence(found, "its local copy's README") if found else _on_the_hub(path, revision, kind)
    place = Path(path).expanduser()
    if place.is_absolute() or place.exists():
        folder = place if place.is_dir() else place.parent
        found = _in_header(data_files.header(folder))
        return Licence(found or UNKNOWN, "the README beside it" if found else "no README beside it says")
    return _on_the_hub(path, revision, kind)


def _on_the_hub(path: str, revision: str | None, kind: Literal["dataset", "model"]) -> Licence:
    from huggingface_hub import hf_hub_download

    if not hub.NAME.match(path):
        return Licence(UNKNOWN, "nobody says")
    try:
        card = hf_hub_download(path, "README.md", repo_type=kind, revision=revision)
    except Exception:  # no network, no card, no right to read it: the client's errors have no common base
        return Licence(UNKNOWN, "its card on the Hub could not be read")
    found = _in_header(data_files.header(Path(card).parent))
    return Licence(found or UNKNOWN, "its card on the Hub" if found else "its card on the Hub does not say")


def _in_header(header: Mapping[str, Any]) -> str:
    """The identifiers in a card's header; empty where it has none that could be one."""
    given = header.get("license")
    named = [each.lower() for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)]
    return ", ".join(each for each in named if re.fullmatch(PATTERN, each) and each != UNKNOWN)

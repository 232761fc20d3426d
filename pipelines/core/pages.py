"""HTML pages that need no other file: the one template environment, and quantities as people read them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def render(package: str, template: str, **values: object) -> str:
    """A template of `package` (its `templates` folder) as HTML; every page may include `page.css`."""
    return _environment(package).get_template(template).render(**values)


@cache
def _environment(package: str) -> Environment:
    """Made once, for it remembers the templates that it has compiled."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(__package__)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def count(number: float | None) -> str:
    """`1.2 M`."""
    if number is None:
        return ""
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.0f}"


def size(number: float | None) -> str:
    """`3.2 MB`, powers of ten."""
    if number is None:
        return ""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.0f} B"


def seconds(number: float | None) -> str:
    """`42 s`, `3.1 min`."""
    if number is None:
        return ""
    return f"{number:.3g} s" if number < 90 else f"{number / 60:.1f} min" if number < 5400 else f"{number / 3600:.1f} h"

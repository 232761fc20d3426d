"""A recipe from the fields of its form. What was left empty is left out; what cannot be read stays as it was typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.errors import FineryError
from pipelines.marks import read_yaml_text, scalar
from service.web.forms.editing import is_place
from service.web.forms.fields import ABSENT, CHOICE, YAML
from service.web.forms.schemas import Schema, followed, recipe_schema, scalar_of, union_of

MOST_ROWS = 200


def draft_of(posted: Mapping[str, str]) -> dict[str, Any]:
    """The draft that a filled-in form stands for."""
    found = _group(recipe_schema(), "", posted)
    return found if isinstance(found, dict) else {}


def _value(schema: Schema, name: str, key: str, posted: Mapping[str, str]) -> Any:
    if f"{name}{YAML}" in posted:
        return _read(posted[f"{name}{YAML}"])
    schema = followed(schema, key)
    union = union_of(schema)
    if union is not None:
        word = posted.get(f"{name}{CHOICE}", "").strip()
        member = union.member(word)
        if not word:
            return ABSENT
        if member is None:
            return word
        found = _group(member.schema, name, posted, without=member.key)
        found = {} if found is ABSENT else found
        if member.key:
            return word if union.short and not found and member.key != "stage" else {member.key: word, **found}
        return found
    if scalar_of(schema):
        return _scalar(schema, posted.get(name, ""))
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        items = followed(schema["items"])
        if scalar_of(items):
            words = [word.strip() for word in posted.get(name, "").split(",")]
            return [_scalar(items, word) for word in words if word] or ABSENT
        return _rows(items, name, posted)
    if "properties" in schema:
        return _group(schema, name, posted)
    return ABSENT


def _rows(items: Schema, name: str, posted: Mapping[str, str]) -> Any:
    """Every row that the form had, in the order of their numbers."""
    prefix = f"{name}."
    numbers = {rest for each in posted if each.startswith(prefix) and is_place(rest := each.removeprefix(prefix).split(".")[0].rstrip(YAML + CHOICE))}
    rows = []
    for number in sorted(map(int, numbers))[:MOST_ROWS]:
        found = _value(items, f"{name}.{number}", "", posted)
        rows.append({} if found is ABSENT else found)
    return rows or ABSENT


def _group(schema: Schema, name: str, posted: Mapping[str, str], without: str = "") -> Any:
    prefix = f"{name}." if name else ""
    known: Mapping[str, Any] = schema.get("properties", {})
    found: dict[str, Any] = {}
    for key, described in known.items():
        if key == without:
            continue
        value = _value(described, f"{prefix}{key}", key, posted)
        if value is not ABSENT:
            found[key] = value
    for each, text in posted.items():
        key = each.removeprefix(prefix).removesuffix(YAML)
        if each.startswith(prefix) and each.endswith(YAML) and "." not in key and key not in known and text.strip():
            found[key] = _read(text)
    return found or ABSENT


def _scalar(schema: Schema, text: str) -> Any:
    text = text.strip()
    if not text:
        return ABSENT
    if schema.get("type") == "string" or text in schema.get("enum", (schema.get("const"),)):
        return text
    try:
        return scalar(text)
    except Exception:  # any text may be typed into a field
        return text


def _read(text: str) -> Any:
    if not text.strip():
        return ABSENT
    try:
        value = read_yaml_text(text)[0]
    except FineryError:
        return text
    return value

"""The JSON Schema of a recipe as forms read it: references followed, unions sorted by what tells their members apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pipelines import recipe
from pipelines.fields import arguments

Schema = Mapping[str, Any]
TELLING = ("stage", "name", "kind")
"""Keys whose constant tells the members of a union apart."""
SCALARS = ("string", "integer", "number", "boolean")


@lru_cache(maxsize=1)
def recipe_schema() -> Schema:
    """The schema of a recipe; making it takes a second, so it is made once."""
    return recipe.schema()


@lru_cache(maxsize=1)
def _arguments() -> Schema:
    """A stage's `arguments` with all their names, which the recipe's schema leaves open."""
    return {**arguments.schema(), "additionalProperties": True}


def followed(schema: Schema, key: str = "") -> Schema:
    """The schema behind references, without the alternative `null`; a description beside a reference stays."""
    if key == "arguments" and schema.get("additionalProperties") is True and "properties" not in schema:
        return {**_arguments(), "description": schema.get("description", "")}
    if "$ref" in schema:
        target = recipe_schema()["$defs"][str(schema["$ref"]).rpartition("/")[2]]
        return followed({**target, **{name: value for name, value in schema.items() if name != "$ref"}})
    members = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    if len(members) == 1:
        outside = {name: value for name, value in schema.items() if name != "anyOf"}
        return followed({**members[0], **outside})
    if members and len(members) < len(schema["anyOf"]):
        return {**schema, "anyOf": members}
    kinds = schema.get("type")
    if isinstance(kinds, list):
        rest = [kind for kind in kinds if kind != "null"]
        return {**schema, "type": rest[0] if len(rest) == 1 else rest}
    return schema


@dataclass(frozen=True)
class Member:
    """One alternative of a union of mappings."""

    word: str
    """What chooses it."""
    schema: Schema
    key: str = ""
    """The key whose constant is `word`; empty when nothing tells it but its keys."""


@dataclass(frozen=True)
class Union:
    """Alternatives: mappings, and names that stand for themselves."""

    members: tuple[Member, ...]
    names: tuple[str, ...] = ()
    """Values that may stand in place of a mapping, such as `glue/mrpc`."""
    short: bool = False
    """Whether a mapping with nothing but its telling key is written as that word alone."""

    def member(self, word: str) -> Member | None:
        """The alternative of this word."""
        return next((each for each in self.members if each.word == word), None)

    def of(self, value: Any) -> Member | None:
        """The alternative that a value is, as far as it can be told."""
        if isinstance(value, str):
            return self.member(value) if self.short else None
        if not isinstance(value, Mapping):
            return None
        for each in self.members:
            if each.key and value.get(each.key) == each.word:
                return each
        unnamed = [each for each in self.members if not each.key]
        fitting = [each for each in unnamed if all(_allows(each.schema, key, entry) for key, entry in value.items())]
        return next(iter(fitting), unnamed[0] if unnamed else None)


def _allows(schema: Schema, key: str, value: Any) -> bool:
    known = schema.get("properties", {})
    if key not in known:
        return bool(schema.get("additionalProperties", True))
    described = known[key]
    if "const" in described:
        return bool(described["const"] == value)
    return bool(described.get("not", {}).get("const", object()) != value)


def union_of(schema: Schema) -> Union | None:
    """The union that a schema is; None when it is none of mappings."""
    members: list[Member] = []
    names: list[str] = []
    for each in map(followed, schema.get("anyOf", ())):
        if "properties" in each:
            key = next((key for key in TELLING if "const" in each["properties"].get(key, {})), "")
            first = next(iter(each["properties"]))
            members.append(Member(str(each["properties"][key]["const"]) if key else first, each, key))
        elif "enum" in each:
            names += map(str, each["enum"])
        else:
            return None
    if not members:
        return None
    words = {each.word for each in members if each.key}
    rest = tuple(name for name in names if name not in words)
    return Union(tuple(members), rest, short=bool(names) and not rest)


def scalar_of(schema: Schema) -> bool:
    """Whether every value of it fits into one line: a text, a number, a switch, or a choice of these."""
    if "enum" in schema or "const" in schema:
        return True
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return kinds in SCALARS
    if isinstance(kinds, list):
        return all(kind in SCALARS for kind in kinds)
    members = [followed(each) for each in schema.get("anyOf", ())]
    return bool(members) and all(scalar_of(each) for each in members)

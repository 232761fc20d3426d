"""The form of a recipe, made of its JSON Schema: fields, drafts, and a recipe from what was filled in.

The schema is read with references followed and unions sorted by what tells their members apart. A form is a tree of
fields, built from the schema and a draft of the recipe; whatever no field can show is shown as YAML. Buttons change the
draft: stages and rows are added, removed and moved. Of the filled-in fields, what was left empty is left out, and what
cannot be read stays as it was typed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pipelines.core import recipe
from pipelines.core.errors import FineryError
from pipelines.core.yaml_positions import read_yaml_text, scalar, write_yaml

Schema = Mapping[str, Any]
TELLING = ("stage", "name", "kind", "family")
"""Keys whose constant tells the members of a union apart."""
SCALARS = ("string", "integer", "number", "boolean")


@lru_cache(maxsize=1)
def recipe_schema() -> Schema:
    """The schema of a recipe; making it takes a second, so it is made once."""
    return recipe.schema()


def followed(schema: Schema) -> Schema:
    """The schema behind references, without the alternative `null`; a description beside a reference stays."""
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
class UnionMember:
    """One alternative of a union of mappings."""

    word: str
    """What chooses it."""
    schema: Schema
    key: str = ""
    """The key whose constant is `word`; empty when nothing tells it but its keys."""


@dataclass(frozen=True)
class SchemaUnion:
    """Alternatives: mappings, and names that stand for themselves."""

    members: tuple[UnionMember, ...]
    names: tuple[str, ...] = ()
    """Values that may stand in place of a mapping, such as `glue/mrpc`."""
    short: bool = False
    """Whether a mapping with nothing but its telling key is written as that word alone."""

    def member(self, word: str) -> UnionMember | None:
        """The alternative of this word."""
        return next((each for each in self.members if each.word == word), None)

    def of(self, value: Any) -> UnionMember | None:
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
    properties = schema.get("properties", {})
    if key not in properties:
        return bool(schema.get("additionalProperties", True))
    described = properties[key]
    if "const" in described:
        return bool(described["const"] == value)
    refused = described.get("not", {})
    return value not in refused.get("enum", [refused["const"]] if "const" in refused else [])


def union_of(schema: Schema) -> SchemaUnion | None:
    """The union that a schema is; None when it is none of mappings."""
    members: list[UnionMember] = []
    names: list[str] = []
    for each in map(followed, schema.get("anyOf", ())):
        if "properties" in each:
            key = next((key for key in TELLING if "const" in each["properties"].get(key, {})), "")
            first = next(iter(each["properties"]))
            members.append(UnionMember(str(each["properties"][key]["const"]) if key else first, each, key))
        elif "enum" in each:
            names += map(str, each["enum"])
        else:
            return None
    if not members:
        return None
    words = {each.word for each in members if each.key}
    rest = tuple(name for name in names if name not in words)
    return SchemaUnion(tuple(members), rest, short=bool(names) and not rest)


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


ABSENT: Any = object()
"""The value of a key that the draft does not have."""
AT_ONCE = {
    "name", "model", "tokenizer", "stages", "architecture", "checkpoint", "preset", "train", "vocab_size",
    "pretrained", "task", "tasks", "tuner", "objective", "datasets", "path", "benchmarks", "to", "arguments",
    "num_train_epochs", "max_steps", "learning_rate", "global_batch_size", "kind", "columns", "label", "validation",
    "max_length", "r",
}  # fmt: skip
"""Keys that are shown at once; the others stand under `more` until they are set."""
YAML = "!"
"""Behind the name of a field that holds YAML."""
CHOICE = "?"
"""Behind the name of a field that chooses a member of a union."""


@dataclass(frozen=True)
class Field:
    """One field, or a group of them."""

    kind: str
    """text, choice, switch, list, yaml, group, union, rows."""
    name: str
    """Dotted path in the recipe, which is also the field's name in the form."""
    key: str = ""
    label: str = ""
    help: str = ""
    needed: bool = False
    value: str = ""
    hint: str = ""
    """What is taken when it is left empty."""
    numeric: bool = False
    options: tuple[str, ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Of a union: (heading, words)."""
    fields: tuple[Field, ...] = ()
    more: tuple[Field, ...] = ()
    """Fields that are folded away."""
    extra: Mapping[str, Any] = field(default_factory=dict)


def form_of(draft: Mapping[str, Any]) -> Field:
    """The form of a recipe, filled in with a draft."""
    return _group(recipe_schema(), draft, "", "", "", True)


def names(form: Field) -> set[str]:
    """The names of all fields in a form."""
    return {form.name.rstrip(YAML)}.union(*(names(each) for each in (*form.fields, *form.more)))


def _field(schema: Schema, value: Any, name: str, key: str, needed: bool) -> Field:
    schema = followed(schema)
    help = str(schema.get("description", "")).replace("\n", " ")
    common: dict[str, Any] = {"key": key, "label": key, "help": help, "needed": needed}
    union = union_of(schema)
    if union is not None:
        return _union(schema, value, name, common)
    if scalar_of(schema) and (value is ABSENT or value is None or isinstance(value, str | int | float)):
        return _scalar(schema, value, name, common)
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        items = followed(schema["items"])
        if scalar_of(items) and (
            value is ABSENT or (isinstance(value, list | tuple) and all(_one_word(each) for each in value))
        ):
            options = tuple(map(str, items.get("enum", ())))
            return Field(
                "list",
                name,
                value="" if value is ABSENT else ", ".join(_written(each) for each in value),
                options=options,
                **common,
            )
        if ("properties" in items or union_of(items)) and (value is ABSENT or isinstance(value, list | tuple)):
            return _rows(items, () if value is ABSENT else value, name, common)
    if "properties" in schema and (value is ABSENT or isinstance(value, Mapping)):
        return _group(schema, {} if value is ABSENT else value, name, key, help, needed)
    return _yaml(value, name, common)


def _yaml(value: Any, name: str, common: Mapping[str, Any]) -> Field:
    return Field("yaml", f"{name}{YAML}", value="" if value is ABSENT else as_yaml(value), **common)


def as_yaml(value: Any) -> str:
    """A value as YAML of its own."""
    return (
        write_yaml(value).removesuffix("...\n").strip("\n")
        if isinstance(value, Mapping | list | tuple)
        else _written(value)
    )


def _written(value: Any) -> str:
    """A single value as a recipe would have it."""
    if isinstance(value, str):
        return value
    text = write_yaml({"value": value}).partition(":")[2].strip()
    return text or "null"


def _one_word(value: Any) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, str) and "," not in value and value.strip() == value and value != ""
    )


def _scalar(schema: Schema, value: Any, name: str, common: Mapping[str, Any]) -> Field:
    hint = "" if schema.get("default") in (None, "") else _written(schema["default"])
    written = "" if value is ABSENT else _written(value)
    options = (str(schema["const"]),) if "const" in schema else tuple(map(str, schema.get("enum", ())))
    if schema.get("type") == "boolean" and written in ("", "true", "false"):
        return Field("choice", name, value=written, hint=hint, options=("true", "false"), **common)
    if options and written in ("", *options):
        return Field("choice", name, value=written, hint=hint, options=options, **common)
    numeric = schema.get("type") in ("integer", "number")
    return Field("text", name, value=written, hint=hint, numeric=numeric, **common)


def _union(schema: Schema, value: Any, name: str, common: Mapping[str, Any]) -> Field:
    union = union_of(schema)
    assert union is not None
    default = schema.get("default")
    hint = str(default) if isinstance(default, str) else ""
    words = tuple(each.word for each in union.members)
    groups: tuple[tuple[str, tuple[str, ...]], ...] = (
        (("", union.names), ("one's own", words)) if union.names else (("", words),)
    )
    if value is ABSENT:
        return Field("union", name, groups=groups, hint=hint, **common)
    if isinstance(value, str) and value in union.names:
        return Field("union", name, value=value, groups=groups, hint=hint, **common)
    member = union.of(value)
    if member is None:
        return _yaml(value, name, common)
    inner = _group(
        member.schema,
        value if isinstance(value, Mapping) else {},
        name,
        "",
        str(member.schema.get("description", "")),
        True,
        without=member.key,
    )
    return Field(
        "union",
        name,
        value=member.word,
        groups=groups,
        hint=hint,
        fields=inner.fields,
        more=inner.more,
        extra={"help": inner.help},
        **common,
    )


def _rows(items: Schema, value: Sequence[Any], name: str, common: Mapping[str, Any]) -> Field:
    union = union_of(items)
    rows = []
    for place, each in enumerate(value):
        row = _field(items, each, f"{name}.{place}", "", True)
        rows.append(row)
    options = tuple(member.word for member in union.members) if union else ("",)
    return Field("rows", name, fields=tuple(rows), options=options, **common)


def _group(
    schema: Schema, value: Mapping[str, Any], name: str, key: str, help: str, needed: bool, without: str = ""
) -> Field:
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    fields: list[Field] = []
    more: list[Field] = []
    for inner, described in properties.items():
        if inner == without:
            continue
        made = _field(
            described, value.get(inner, ABSENT), f"{name}.{inner}" if name else inner, inner, inner in required
        )
        (fields if inner in required or inner in value or inner in AT_ONCE else more).append(made)
    for inner, entry in value.items():
        if inner not in properties:
            fields.append(
                _yaml(
                    entry,
                    f"{name}.{inner}" if name else str(inner),
                    {"key": str(inner), "label": str(inner), "help": ""},
                )
            )
    fields.sort(key=lambda each: list(properties).index(each.key) if each.key in properties else len(properties))
    return Field("group", name, key, key, help, needed, fields=tuple(fields), more=tuple(more))


def edited(draft: Mapping[str, Any], order: str) -> dict[str, Any]:
    """The draft after `add stages supervised`, `add stages.0.datasets`, `remove stages.1`, `up stages.1` or `down
    stages.1`.

    An order that fits nothing changes nothing.
    """
    word, _, rest = order.partition(" ")
    path, _, kind = rest.partition(" ")
    data: dict[str, Any] = _lists(draft)
    if word == "add":
        rows = _at(data, path, make=True)
        if isinstance(rows, list):
            rows.append({"stage": kind} if path == "stages" else {})
    elif word in ("remove", "up", "down"):
        holder, _, number = path.rpartition(".")
        rows = _at(data, holder)
        if isinstance(rows, list) and is_place(number) and int(number) < len(rows):
            _reorder(rows, word, int(number))
    return data


def is_place(text: str) -> bool:
    """Whether a text is the number of a row: `²` is a digit too, and Python reads no number of 5,000 digits."""
    return text.isascii() and text.isdigit() and len(text) < 6


def _reorder(rows: list[Any], word: str, at: int) -> None:
    if word == "remove":
        del rows[at]
    elif (to := at + (1 if word == "down" else -1)) in range(len(rows)):
        rows[at], rows[to] = rows[to], rows[at]


def _lists(value: Any) -> Any:
    """A copy whose sequences can be changed."""
    if isinstance(value, Mapping):
        return {key: _lists(entry) for key, entry in value.items()}
    return [_lists(entry) for entry in value] if isinstance(value, list | tuple) else value


def _at(data: Any, path: str, make: bool = False) -> Any:
    parts = path.split(".") if path else []
    here = data
    for place, part in enumerate(parts):
        if isinstance(here, list):
            if not is_place(part) or int(part) >= len(here):
                return None
            here = here[int(part)]
        elif isinstance(here, dict):
            if part not in here:
                if not make:
                    return None
                here[part] = [] if place == len(parts) - 1 else {}
            here = here[part]
        else:
            return None
    return here


def field_of(key: str, ids: list[str | None], field_names: set[str]) -> str:
    """The field that a mistake belongs to: the nearest one to its key that the form has; empty for the whole recipe.

    `ids` are those of the draft's stages, the default ones too.
    """
    parts = key.replace("[", ".").replace("]", "").split(".")
    if len(parts) > 1 and parts[0] == "stages":
        parts[1] = str(ids.index(parts[1])) if parts[1] in ids else parts[1]
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in field_names:
            return name
    return ""


MOST_ROWS = 200


def draft_of(posted: Mapping[str, str]) -> dict[str, Any]:
    """The draft that a filled-in form stands for."""
    draft = _posted_group(recipe_schema(), "", posted)
    return draft if isinstance(draft, dict) else {}


def _posted_value(schema: Schema, name: str, key: str, posted: Mapping[str, str]) -> Any:
    if f"{name}{YAML}" in posted:
        return _read(posted[f"{name}{YAML}"])
    schema = followed(schema)
    union = union_of(schema)
    if union is not None:
        word = posted.get(f"{name}{CHOICE}", "").strip()
        member = union.member(word)
        if not word:
            return ABSENT
        if member is None:
            return word
        group = _posted_group(member.schema, name, posted, without=member.key)
        group = {} if group is ABSENT else group
        if member.key:
            return word if union.short and not group and member.key != "stage" else {member.key: word, **group}
        return group
    if scalar_of(schema):
        return _posted_scalar(schema, posted.get(name, ""))
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        items = followed(schema["items"])
        if scalar_of(items):
            words = [word.strip() for word in posted.get(name, "").split(",")]
            return [_posted_scalar(items, word) for word in words if word] or ABSENT
        return _posted_rows(items, name, posted)
    if "properties" in schema:
        return _posted_group(schema, name, posted)
    return ABSENT


def _posted_rows(items: Schema, name: str, posted: Mapping[str, str]) -> Any:
    """Every row that the form had, in the order of their numbers."""
    prefix = f"{name}."
    numbers = {
        rest
        for each in posted
        if each.startswith(prefix) and is_place(rest := each.removeprefix(prefix).split(".")[0].rstrip(YAML + CHOICE))
    }
    rows = []
    for number in sorted(map(int, numbers))[:MOST_ROWS]:
        row = _posted_value(items, f"{name}.{number}", "", posted)
        rows.append({} if row is ABSENT else row)
    return rows or ABSENT


def _posted_group(schema: Schema, name: str, posted: Mapping[str, str], without: str = "") -> Any:
    prefix = f"{name}." if name else ""
    properties: Mapping[str, Any] = schema.get("properties", {})
    values: dict[str, Any] = {}
    for key, described in properties.items():
        if key == without:
            continue
        value = _posted_value(described, f"{prefix}{key}", key, posted)
        if value is not ABSENT:
            values[key] = value
    for each, text in posted.items():
        key = each.removeprefix(prefix).removesuffix(YAML)
        if (
            each.startswith(prefix)
            and each.endswith(YAML)
            and "." not in key
            and key not in properties
            and text.strip()
        ):
            values[key] = _read(text)
    return values or ABSENT


def _posted_scalar(schema: Schema, text: str) -> Any:
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

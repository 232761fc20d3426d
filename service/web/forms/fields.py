"""A form as a tree of fields, built from a schema and a draft of the recipe. Whatever no field can show is shown as YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.marks import write_yaml
from service.web.forms.schemas import Schema, followed, recipe_schema, scalar_of, union_of

ABSENT: Any = object()
"""The value of a key that the draft does not have."""
AT_ONCE = {
    "name", "model", "tokenizer", "stages", "architecture", "checkpoint", "preset", "train", "vocab_size", "pretrained", "task", "tasks", "tuner",
    "objective", "datasets", "path", "benchmarks", "to", "arguments", "num_train_epochs", "max_steps", "learning_rate", "global_batch_size", "kind", "columns",
    "label", "validation", "max_length", "r",
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
    schema = followed(schema, key)
    help = str(schema.get("description", "")).replace("\n", " ")
    common: dict[str, Any] = {"key": key, "label": key, "help": help, "needed": needed}
    union = union_of(schema)
    if union is not None:
        return _union(schema, value, name, common)
    if scalar_of(schema) and (value is ABSENT or value is None or isinstance(value, str | int | float)):
        return _scalar(schema, value, name, common)
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        items = followed(schema["items"])
        if scalar_of(items) and (value is ABSENT or (isinstance(value, list | tuple) and all(_one_word(each) for each in value))):
            options = tuple(map(str, items.get("enum", ())))
            return Field("list", name, value="" if value is ABSENT else ", ".join(_written(each) for each in value), options=options, **common)
        if ("properties" in items or union_of(items)) and (value is ABSENT or isinstance(value, list | tuple)):
            return _rows(items, () if value is ABSENT else value, name, common)
    if "properties" in schema and (value is ABSENT or isinstance(value, Mapping)):
        return _group(schema, {} if value is ABSENT else value, name, key, help, needed)
    return _yaml(value, name, common)


def _yaml(value: Any, name: str, common: Mapping[str, Any]) -> Field:
    return Field("yaml", f"{name}{YAML}", value="" if value is ABSENT else as_yaml(value), **common)


def as_yaml(value: Any) -> str:
    """A value as YAML of its own."""
    return write_yaml(value).removesuffix("...\n").strip("\n") if isinstance(value, Mapping | list | tuple) else _written(value)


def _written(value: Any) -> str:
    """A single value as a recipe would have it."""
    if isinstance(value, str):
        return value
    text = write_yaml({"value": value}).partition(":")[2].strip()
    return text or "null"


def _one_word(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and "," not in value and value.strip() == value and value != "")


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
    groups: tuple[tuple[str, tuple[str, ...]], ...] = (("", union.names), ("one's own", words)) if union.names else (("", words),)
    if value is ABSENT:
        return Field("union", name, groups=groups, hint=hint, **common)
    if isinstance(value, str) and value in union.names:
        return Field("union", name, value=value, groups=groups, hint=hint, **common)
    member = union.of(value)
    if member is None:
        return _yaml(value, name, common)
    inner = _group(member.schema, value if isinstance(value, Mapping) else {}, name, "", str(member.schema.get("description", "")), True, without=member.key)
    return Field("union", name, value=member.word, groups=groups, hint=hint, fields=inner.fields, more=inner.more, extra={"help": inner.help}, **common)


def _rows(items: Schema, value: Sequence[Any], name: str, common: Mapping[str, Any]) -> Field:
    union = union_of(items)
    rows = []
    for place, each in enumerate(value):
        row = _field(items, each, f"{name}.{place}", "", True)
        rows.append(row)
    options = tuple(member.word for member in union.members) if union else ("",)
    return Field("rows", name, fields=tuple(rows), options=options, **common)


def _group(schema: Schema, value: Mapping[str, Any], name: str, key: str, help: str, needed: bool, without: str = "") -> Field:
    known: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    fields: list[Field] = []
    more: list[Field] = []
    for inner, described in known.items():
        if inner == without:
            continue
        made = _field(described, value.get(inner, ABSENT), f"{name}.{inner}" if name else inner, inner, inner in required)
        (fields if inner in required or inner in value or inner in AT_ONCE else more).append(made)
    for inner, entry in value.items():
        if inner not in known:
            fields.append(_yaml(entry, f"{name}.{inner}" if name else str(inner), {"key": str(inner), "label": str(inner), "help": ""}))
    fields.sort(key=lambda each: list(known).index(each.key) if each.key in known else len(known))
    return Field("group", name, key, key, help, needed, fields=tuple(fields), more=tuple(more))

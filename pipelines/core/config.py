"""A recipe block is the keyword arguments of one frozen pydantic class; nothing else happens between YAML and Python.

`Block` collects every issue inside it instead of stopping at the first; `Pick` chooses the class of a nested block from
a registry by its name. Both say in the same words what was given, what is allowed, and the nearest name.

Where no class stands behind a value, words name its type, such as `int|float|null`: `int`, `float`, `str`, `bool`,
`list`, `dict`, `null`, `any`, and `=choice` for one allowed text. A whole number stands where `float` is asked for; a
boolean never stands for a number.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from sys import float_info
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from pipelines.core.registry import Registry, nearest

if TYPE_CHECKING:
    from pipelines.core.recipe import Recipe


Position = tuple[str | int, ...]
ConfigIssue = tuple[Position, str]


class ConfigIssues(ValueError):
    """Several mistakes, each with its place below the value that was checked."""

    def __init__(self, issues: Iterable[ConfigIssue]) -> None:
        self.found = tuple(issues)
        super().__init__(
            "; ".join(f"{key_path(place)}: {message}" if place else message for place, message in self.found)
        )


def key_path(place: Position) -> str:
    """`('stages', 1, 'tuner', 'r')` as `stages[1].tuner.r`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def show(value: object) -> str:
    """A value as it stands in a recipe, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def unknown_key(key: object, allowed: Iterable[str]) -> str:
    """The sentence for a key that a block does not have."""
    names = list(allowed)
    return f"unknown key '{key}'.{nearest(str(key), names)} Allowed: {', '.join(names)}"


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "dict_attributes_type": "a mapping",
}


def sentence(error: Mapping[str, Any]) -> str:
    """One pydantic error in the words of a recipe."""
    kind, context, given = error["type"], error.get("ctx", {}), show(error["input"])
    if kind == "missing":
        return "is missing"
    if kind in _EXPECTED:
        return f"is {given}, must be {_EXPECTED[kind]}"
    if kind in ("literal_error", "enum"):
        expected = str(context["expected"]).replace("'", "").replace(" or ", ", ")
        return f"is {given}, must be one of {expected}.{nearest(str(error['input']), expected.split(', '))}".rstrip(".")
    bounds = {
        "greater_than": ("gt", "greater than"),
        "greater_than_equal": ("ge", "at least"),
        "less_than": ("lt", "less than"),
        "less_than_equal": ("le", "at most"),
    }
    if kind in bounds:
        key, words = bounds[kind]
        return f"is {given}, must be {words} {context[key]}"
    if kind == "too_short":
        return f"has {context['actual_length']} entries, must have at least {context['min_length']}"
    if kind == "too_long":
        return f"has {context['actual_length']} entries, must have at most {context['max_length']}"
    if kind == "string_pattern_mismatch":
        return f"is {given}, must match {context['pattern']}"
    if kind == "string_too_short":
        return "is empty"
    if kind == "value_error":
        return str(context["error"])
    message: str = error["msg"]
    return f"is {given}: {message[0].lower()}{message[1:]}"


def flatten(error: ValidationError) -> list[ConfigIssue]:
    """Every mistake in a pydantic error, those of nested blocks at their own place."""
    issues: list[ConfigIssue] = []
    for entry in error.errors(include_url=False):
        cause = entry.get("ctx", {}).get("error")
        if isinstance(cause, ConfigIssues):
            issues += [(entry["loc"] + place, message) for place, message in cause.found]
        elif isinstance(cause, ValidationError):
            issues += [(entry["loc"] + place, message) for place, message in flatten(cause)]
        else:
            issues.append((entry["loc"], sentence(entry)))
    return issues


REFERENCE = re.compile(r"(file|job|model):([A-Za-z0-9][A-Za-z0-9_.:-]{0,199}(?:@[a-z0-9][a-z0-9_-]{0,39})?)")
"""How a recipe that is handed to a server names what lies there; `service.safety.references` says what each means."""


def server_reference(value: str, *kinds: str) -> str | None:
    """Why a recipe that is checked here cannot name `value`; None where it is no reference of these kinds."""
    parts = REFERENCE.fullmatch(value)
    if parts is None or parts[1] not in kinds:
        return None
    return f"'{value}' names what a server holds; hand the recipe in with: finery submit"


def files_exist(info: ValidationInfo) -> bool:
    """Whether the files that a block names must be there: not where it is read for what a model has learnt."""
    return bool((info.context or {}).get("files_exist", True))


class Block(BaseModel):
    """Base of every recipe block: frozen, strict, unknown keys are mistakes, fields documented where they stand.

    What stands below a field is read when a JSON Schema is made, not whenever a class is built: that would read the
    source of every class.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_default=True,
        populate_by_name=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )
    recipe_examples: ClassVar[tuple[str, ...]] = ()
    """How the block is written in a recipe, as YAML; where there are none, its name alone is enough."""

    @classmethod
    def keys(cls) -> list[str]:
        """The keys that a recipe may write in this block."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """The docstring below each field, by the field's name; of a field declared again, that of the last time."""
        texts: dict[str, str | None] = {}
        for each in reversed(cls.__mro__):
            if issubclass(each, Block):
                below = docstrings(each)
                texts |= {name: below.get(name) for name in inspect.get_annotations(each)}
        return {name: text for name in cls.model_fields if (text := texts.get(name))}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        made = handler(schema)
        properties = handler.resolve_ref_schema(made).get("properties", {})
        for name, text in cls.descriptions().items():
            key = cls.model_fields[name].alias or name
            if key in properties:
                properties[key].setdefault("description", text)
        return made

    @model_validator(mode="wrap")
    @classmethod
    def _every_mistake(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise ConfigIssues([((), f"is {show(data)}, must be a mapping with the keys {', '.join(cls.keys())}")])
        allowed = {*cls.keys(), *cls.model_fields}
        issues: list[ConfigIssue] = [((str(key),), unknown_key(key, cls.keys())) for key in data if key not in allowed]
        try:
            block = handler({key: value for key, value in data.items() if key in allowed})
        except ValidationError as error:
            raise ConfigIssues(issues + flatten(error)) from None
        if issues:
            raise ConfigIssues(issues)
        return block

    def plain(self) -> dict[str, Any]:
        """The block as it would stand in a recipe: defaults left out, lists and mappings only."""
        data: dict[str, Any] = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return data


def docstrings(block: type) -> dict[str, str]:
    """The text that stands below each annotated name in the body of a class."""
    body = _classes(getattr(sys.modules[block.__module__], "__file__", None) or "").get(block.__qualname__, [])
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@cache
def _classes(file: str) -> dict[str, list[ast.stmt]]:
    """The body of each class of a source file, by its qualified name."""
    found: dict[str, list[ast.stmt]] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[prefix + node.name] = node.body
                collect(node.body, f"{prefix}{node.name}.")

    if file.endswith(".py"):  # a class that was typed in has no source
        collect(ast.parse(Path(file).read_text(encoding="utf-8")).body, "")
    return found


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


class Consulted(Block):
    """Base of the blocks that a stage asks while it works, rewards and judges: what they read, for checks and
    fingerprints."""

    name: str

    @property
    def stages(self) -> tuple[str, ...]:
        """Ids of the earlier stages whose models it reads."""
        return ()

    def check(self, recipe: Recipe, stage_id: str) -> Iterable[ConfigIssue]:
        """What is wrong with it in the stage of that id, places relative to the block."""
        return ()

    def content(self) -> dict[str, str]:
        """Content hash of everything outside the run that it reads, by its role."""
        return {}


class Pick:
    """The type of a nested block whose class a registry holds: `tuner: {name: lora, r: 8}`, or just `tuner: lora`."""

    def __init__(self, registry: Registry, key: str) -> None:
        self.registry = registry
        self.key = key

    def __call__(self, value: object, info: ValidationInfo) -> Any:
        if isinstance(value, Block):
            return value
        if isinstance(value, str):
            value = {self.key: value}
        if not isinstance(value, Mapping):
            raise ConfigIssues(
                [
                    (
                        (),
                        f"is {show(value)}, must be the name of {_article(self.registry.kind)} or a mapping "
                        f"with '{self.key}'",
                    )
                ]
            )
        if self.key not in value:
            raise ConfigIssues([((), f"'{self.key}' is missing; available: {', '.join(sorted(self.registry))}")])
        name = value[self.key]
        if not isinstance(name, str) or name not in self.registry:
            raise ConfigIssues([((self.key,), self.registry.unknown(name))])
        try:
            return self.registry.load(name).model_validate(value, context=info.context)
        except ValidationError as error:
            raise ConfigIssues(flatten(error)) from None

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self, serialization=core_schema.plain_serializer_function_ser_schema(self._serialize)
        )

    def _serialize(self, value: object) -> Any:
        if not isinstance(value, Block):
            return value
        return {self.key: getattr(value, self.key), **value.plain()}

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        choices: list[JsonSchemaValue] = []
        for name in self.registry:
            block = self.registry.load(name)
            choice = dict(
                handler.resolve_ref_schema(block.__get_pydantic_json_schema__(block.__pydantic_core_schema__, handler))
            )
            choice["properties"] = {self.key: {"const": name}} | {
                k: v for k, v in choice.get("properties", {}).items() if k != self.key
            }
            choice["required"] = [self.key] + [k for k in choice.get("required", []) if k != self.key]
            choices.append(choice)
        return {"anyOf": [*choices, {"enum": list(self.registry)}]}


class Named:
    """The type of a text that names an entry of a registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def __call__(self, name: str) -> str:
        if name not in self.registry:
            raise ConfigIssues([((), self.registry.unknown(name))])
        return name

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": list(self.registry)}


WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "list": "a list",
    "dict": "a mapping",
    "null": "null",
}
"""How a sentence names each type."""


def fits(value: object, kind: str) -> bool:
    """Whether a plain value has one of the types in `kind`."""
    return any(_is(value, word) for word in kind.split("|"))


def _is(value: object, word: str) -> bool:
    if word == "any":
        return True
    if word.startswith("="):
        return isinstance(value, str) and value == word[1:]
    if value is None or isinstance(value, bool):
        return word == ("null" if value is None else "bool")
    if isinstance(value, int):
        return word == "int" or (word == "float" and abs(value) <= float_info.max)
    if isinstance(value, float):
        return word == "float"
    if isinstance(value, str):
        return word == "str"
    if isinstance(value, Mapping):
        return word == "dict"
    return isinstance(value, list | tuple) and word == "list"


def misfit(value: object, kind: str) -> str | None:
    """The sentence for a value that has none of the types in `kind`, or None."""
    if fits(value, kind):
        return None
    words = kind.split("|")
    choices = [word[1:] for word in words if word.startswith("=")]
    types = [word for word in words if word in WORDS and not (word == "int" and "float" in words)]
    named = [WORDS[word] for word in types]
    if not choices:
        return f"is {show(value)}, must be {' or '.join(named)}"
    allowed = ", ".join([*choices, *named])
    return f"is {show(value)}, must be one of {allowed}.{nearest(str(value), choices)}".rstrip(".")


def as_kind(value: object, kind: str) -> object:
    """`value` as strict dataclasses want it: a whole number becomes a float where only `float` is allowed."""
    words = kind.split("|")
    if isinstance(value, int) and not isinstance(value, bool) and "float" in words and "int" not in words:
        return float(value)
    return list(value) if isinstance(value, tuple) else value


_JSON = {
    "int": "integer",
    "float": "number",
    "str": "string",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "null": "null",
}


def json_type(kind: str) -> dict[str, object]:
    """The JSON Schema of a kind."""
    words = kind.split("|")
    if "any" in words:
        return {}
    choices = [word[1:] for word in words if word.startswith("=")]
    types = [_JSON[word] for word in words if not word.startswith("=")]
    if not choices:
        return {"type": types[0] if len(types) == 1 else types}
    return {"anyOf": [{"enum": choices}, *({"type": each} for each in types)]} if types else {"enum": choices}

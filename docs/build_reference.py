"""Builds docs/reference: what recipes, commands and the service's API know, read from the code that knows it.

    python docs/build_reference.py [FOLDER]

Nothing here names a tuner, a key or a route: registries, schemas and the command are asked. Pages are not committed.
"""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from pipelines.core import errors, events, registry  # noqa: E402
from pipelines.core.recipe import Recipe  # noqa: E402

JSON = Mapping[str, Any]


# Markdown


def cell(text: object) -> str:
    """A text that may stand in a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(heading) + " |"
    yield "|" + "---|" * len(heading)
    for row in rows:
        yield "| " + " | ".join(cell(each) for each in row) + " |"
    yield ""


def code(value: object) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}`"


def first_line(thing: Any) -> str:
    """The first sentence or line of what a class, function, module or value says about itself."""
    said = inspect.getdoc(thing if callable(thing) or inspect.ismodule(thing) else type(thing)) or ""
    return said.strip().split("\n\n")[0].replace("\n", " ")


# JSON Schema


def kind(schema: JSON) -> str:
    """What values a schema takes, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](recipe.md#{name.lower()})"
    if "const" in schema:
        return code(schema["const"])
    if "enum" in schema:
        return ", ".join(code(each) for each in schema["enum"])
    if union := schema.get("anyOf", schema.get("oneOf")):
        picked = [name for each in union if (name := discriminator(each))]
        others = [each for each in union if not discriminator(each) and each != {"enum": picked}]
        block = [f"a block, by name: {', '.join(code(name) for name in picked)}"] if picked else []
        return " or ".join(dict.fromkeys([*block, *(kind(each) for each in others if each.get("type") != "null")]))
    words = {"integer": "whole number", "string": "text", "boolean": "true or false", "object": "mapping"}
    name = schema.get("type")
    if name == "array":
        inner = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
        return f"list of {kind(inner)}" if inner else "list"
    bounds = [
        f"{sign} {schema[key]}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in schema
    ]
    return " ".join([words.get(str(name), str(name or "any")), *bounds])


def discriminator(schema: JSON) -> str:
    """The name by which a recipe picks this member of a union of blocks, or nothing."""
    fixed = [each["const"] for each in schema.get("properties", {}).values() if isinstance(each.get("const"), str)]
    return fixed[0] if fixed else ""


def fields(schema: JSON, without: Sequence[str] = ()) -> Iterator[str]:
    """The keys of a block."""
    required = set(schema.get("required", ()))
    rows = [
        (
            code(name),
            kind(each),
            "needed" if name in required else code(each["default"]) if each.get("default") is not None else "",
            each.get("description", ""),
        )
        for name, each in schema.get("properties", {}).items()
        if name not in without
    ]
    if rows:
        yield from table(("key", "value", "default", "meaning"), rows)
    else:
        yield "No keys.\n"


# Pages


def recipe_page() -> Iterator[str]:
    schema = Recipe.model_json_schema(by_alias=True)
    yield "# The recipe\n"
    yield schema.get("description", "") + "\n"
    yield "Stages and what they pick by name stand on pages of their own: [index](index.md).\n"
    yield from fields(schema)
    for name, block in sorted(schema.get("$defs", {}).items()):
        yield f"## {name}\n"
        yield block.get("description", "") + "\n"
        yield from fields(block)


def registry_page(table_: registry.Registry, meaning: str) -> Iterator[str]:
    yield f"# {table_.kind[0].upper()}{table_.kind[1:]}: the names\n"
    if meaning:
        yield meaning + "\n"
    for name in table_:
        thing = table_.load(name)
        yield f"## {name}\n"
        if hasattr(table_, "path"):  # a file of data
            yield from file_of(table_.path(name))
            continue
        yield said_of(thing, table_.module(name)) + "\n"
        if inspect.isclass(thing) and hasattr(thing, "model_json_schema"):
            schema = thing.model_json_schema(by_alias=True)
            yield from fields(schema, without=[key for key, each in schema["properties"].items() if fixed(each)])
            if examples := getattr(thing, "examples", ()):
                yield "\n".join(["```yaml", *(each.strip("\n") for each in examples), "```", ""])


def file_of(path: Path) -> Iterator[str]:
    """What the header of a YAML file says, and its content."""
    lines = path.read_text(encoding="utf-8").splitlines()
    header = [line.lstrip("# ") for line in lines if line.startswith("#")]
    yield "\n".join(header) + "\n"
    yield "```yaml"
    yield from (line for line in lines if not line.startswith("#"))
    yield "```\n"


def fixed(schema: JSON) -> bool:
    return isinstance(schema.get("const"), str)


def said_of(thing: Any, module: str) -> str:
    """What an entry says about itself; its module, where the entry is a value or says nothing of its own."""
    own = inspect.isclass(thing) or inspect.isfunction(thing)
    if own and str(getattr(thing, "__module__", "")).startswith(("pipelines", "service")) and thing.__doc__:
        return first_line(thing)
    return first_line(sys.modules[module])


def registries() -> Iterator[tuple[str, registry.Registry, str]]:
    """(file name, table, what the string under the table says) of every registry."""
    source = inspect.getsource(registry)
    for name, value in vars(registry).items():
        if isinstance(value, registry.Registry):
            meaning = source.partition(f"\n{name} = ")[2].partition('"""')[2].partition('"""')[0]
            yield name.lower().replace("_", "-"), value, meaning.replace("\n", " ")


def executors_page() -> Iterator[str]:
    from service.executors.registry import EXECUTORS

    yield "# Executors of the service\n"
    yield "`finery serve --executor NAME`: how an attempt at a job is run.\n"
    rows = []
    for name in EXECUTORS:
        module = str(EXECUTORS[name]).partition(":")[0]
        rows.append((code(name), first_line(import_module(module))))
    yield from table(("name", "what it does"), rows)


def configs_page() -> Iterator[str]:
    yield "# What comes along in configs\n"
    for folder in sorted(each for each in (REPOSITORY / "configs").iterdir() if each.is_dir()):
        rows = []
        for file in sorted(folder.rglob("*.yaml")):
            lines = file.read_text(encoding="utf-8").splitlines()
            comment = " ".join(line.lstrip("# ") for line in lines[:4] if line.startswith("#"))
            rows.append((code(str(file.relative_to(folder).with_suffix(""))), comment.split(". ")[0].rstrip(".")))
        if rows:
            yield f"## {folder.name}\n"
            yield from table(("name", "its header"), rows)


def commands_page() -> Iterator[str]:
    import typer.main

    from service.cli.__main__ import app

    yield "# Commands\n"
    yield "`finery VERB --help` shows the same. Exit codes: [events and exit codes](events.md#exit-codes).\n"
    yield from verbs(typer.main.get_command(app), "finery")


def verbs(command: Any, name: str) -> Iterator[str]:
    for verb, each in sorted(getattr(command, "commands", {}).items()):
        if getattr(each, "hidden", False):
            continue
        if hasattr(each, "commands"):
            yield from verbs(each, f"{name} {verb}")
            continue
        arguments = [parameter for parameter in each.params if parameter.param_type_name == "argument"]
        words = [f"{name} {verb}", *(str(parameter.metavar or parameter.name.upper()) for parameter in arguments)]
        yield f"## {name} {verb}\n"
        yield f"{code(' '.join(words))}\n"
        yield inspect.cleandoc(each.help or "") + "\n"
        rows = [
            (
                code(", ".join(parameter.opts) if parameter not in arguments else parameter.metavar or parameter.name),
                "" if parameter.default in (None, False, ...) or callable(parameter.default) else parameter.default,
                getattr(parameter, "help", "") or "",
            )
            for parameter in each.params
        ]
        if rows:
            yield from table(("argument or option", "default", "meaning"), rows)


def events_page() -> Iterator[str]:
    yield "# Events and exit codes\n"
    yield first_line(events) + "\n"
    yield from table(("event", "meaning and fields"), ((code(name), said) for name, said in events.EVENTS.items()))
    yield "## Exit codes\n"
    exits = {name.removeprefix("EXIT_").lower(): value for name, value in vars(errors).items() if name[:5] == "EXIT_"}
    yield from table(("code", "name"), ((value, name) for name, value in exits.items()))
    yield "## Errors\n"
    rows = [
        (code(each.__name__), each.exit_code, code(each.reason), first_line(each))
        for each in family(errors.FineryError)
    ]
    yield from table(("error", "exit code", "reason", "meaning"), rows)


def family(parent: type[errors.FineryError]) -> Iterator[type[errors.FineryError]]:
    yield parent
    for child in parent.__subclasses__():
        yield from family(child)


def api_page() -> Iterator[str]:
    from service.api.app import create_app
    from service.settings import read_settings

    document = create_app(read_settings({}), None).openapi()  # type: ignore[arg-type]
    yield "# The HTTP API\n"
    yield document["info"].get("description", "") + "\n"
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            yield f"## {method.upper()} {path}\n"
            yield route.get("description", route.get("summary", "")) + "\n"
            rows = [
                (code(each["name"]), each["in"], kind(each.get("schema", {})), each.get("description", ""))
                for each in route.get("parameters", ())
            ]
            if rows:
                yield from table(("parameter", "in", "value", "meaning"), rows)
            bodies = route.get("requestBody", {}).get("content", {})
            if bodies:
                yield (
                    "Body: "
                    + ", ".join(f"{code(media)} {body_of(each)}".rstrip() for media, each in bodies.items())
                    + "\n"
                )
            answers = route.get("responses", {}).items()
            yield from table(("answer", "meaning"), ((status, each.get("description", "")) for status, each in answers))
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        yield f"## {name}\n"
        yield schema.get("description", "") + "\n"
        yield from fields(schema)


def body_of(content: JSON) -> str:
    return kind(content["schema"]) if "$ref" in content.get("schema", {}) else ""


def build(folder: Path) -> list[Path]:
    """Write every page into `folder`, which is emptied first. Returns the pages."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pages: dict[str, tuple[str, Iterable[str]]] = {"recipe": ("the recipe's keys and blocks", recipe_page())}
    for name, each, meaning in registries():
        pages[name] = (meaning or each.kind, registry_page(each, meaning))
    pages |= {
        "configs": ("architectures, tasks, recipes that come along", configs_page()),
        "command-line": ("every verb of `finery` with its options", commands_page()),
        "events": ("events, exit codes, errors", events_page()),
        "executors": ("how the service runs an attempt", executors_page()),
        "api": ("the routes of the service", api_page()),
    }
    for name, (_, lines) in pages.items():
        text = "\n".join(lines).replace("](recipe.md#", "](#") if name in ("recipe", "api") else "\n".join(lines)
        (folder / f"{name}.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    index = ["# Reference", "", "Built by `make docs` from the code.", ""]
    index += [f"- [{name}]({name}.md): {meaning.rstrip('.')}" for name, (meaning, _) in pages.items()]
    (folder / "index.md").write_text("\n".join(index) + "\n", encoding="utf-8")
    return sorted(folder.glob("*.md"))


if __name__ == "__main__":
    made = build(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "docs" / "reference")
    print(f"{len(made)} pages in {made[0].parent}")

"""`finery models`: versions of a service's models: list, show, compare, promote, alias, delete, restore, lineage."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError, FineryError
from service.cli.jobs import connect, quoted, since, table, tell
from service.safety.references import VERSION, parsed

PAGE = 500


def listed(
    name: str | None, deleted: bool, limit: int, server: str | None, token_file: Path | None, as_json: bool
) -> int:
    """List versions, newest first. Returns the exit code."""
    models: list[dict[str, Any]] = []
    with connect(server, token_file) as connection:
        after = None
        while len(models) < limit:
            page = connection.get(
                "/models",
                name=name,
                deleted="true" if deleted else None,
                after=after,
                limit=min(PAGE, limit - len(models)),
            )
            models += page["data"]
            after = page["next"]
            if after is None:
                break
    if as_json:
        print(json.dumps({"models": models, "more": after is not None}, ensure_ascii=False))
    elif not models:
        print("No deleted models." if deleted else "No models." if name is None else f"No model is named '{name}'.")
    else:
        rows = [
            (
                reference(each),
                " ".join(each["aliases"]),
                scores_of(each),
                each["base"],
                each["job"],
                since(each["deleted"] if deleted else each["created"]),
            )
            for each in models
        ]
        table(("model", "aliases", "scores", "made from", "job", "deleted" if deleted else "published"), rows)
        if after is not None:
            print(f"… and more: --limit {limit * 2}")
    return 0


def show(model: str, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Show a version, and the aliases of its name. Returns the exit code."""
    with connect(server, token_file) as connection:
        found = connection.get(f"/models/{quoted(model)}")
        about = connection.get(f"/models/{quoted(found['name'])}/aliases")
    if as_json:
        return tell({**found, "name_aliases": about["aliases"], **_goes_by(about)}, True)
    facts = [
        ("model", f"{reference(found)}   {' '.join(found['aliases'])}".rstrip()),
        ("made from", found["base"] or "scratch"),
        ("by job", found["job"]),
        ("fingerprint", found["fingerprint"]),
        ("published", since(found["created"])),
        *(
            (f"{benchmark} {metric}", f"{value:.4g}")
            for benchmark, values in found["scores"].items()
            if isinstance(values, Mapping)
            for metric, value in values.items()
            if isinstance(value, int | float)
        ),
        *((f"@{each['alias']}", f"version {each['version']}") for each in about["aliases"]),
        ("@best goes by", f"{about['benchmark']}.{about['metric']}" if about["benchmark"] else "no score"),
    ]
    width = max(len(name) for name, _ in facts)
    return tell(None, False, *(f"{name:<{width}}  {value}" for name, value in facts))


def compare(model: str, against: str, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Hold two versions against each other on the same examples. Returns the exit code."""
    with connect(server, token_file) as connection:
        # answered when the process that compares has ended; the second time at once
        answer = connection.get(f"/models/{quoted(model)}/compare", seconds=COMPARE_SECONDS, against=against)
    if as_json:
        return tell(answer, True)
    one, other = reference(answer["model"]), reference(answer["against"])
    rows = [
        (
            section["benchmark"] if at == 0 else "",
            metric,
            shown(each["model"]),
            shown(each["against"]),
            *_tested(each["difference"], section["same_examples"]),
        )
        for section in answer["benchmarks"]
        for at, (metric, each) in enumerate(section["metrics"].items())
    ]
    table(("benchmark", "score", one, other, "difference", "95 % interval", "p", ""), rows)
    return 0


def _tested(difference: Mapping[str, Any] | None, same: bool) -> tuple[str, str, str, str]:
    if difference is None:
        return "", "", "", "not of single examples" if same else "not scored on the same examples"
    interval = f"{signed(difference['low'])} to {signed(difference['high'])}"
    return signed(difference["value"]), interval, shown(difference["p"].get("bootstrap")), difference["verdict"]


COMPARE_SECONDS = 330.0
"""To wait for a comparison, which the service ends after 300 s."""


def promote(
    model: str,
    to: str,
    on: str | None,
    force: str | None,
    server: str | None,
    token_file: Path | None,
    as_json: bool,
) -> int:
    """Have an alias name this version, if it is better beyond noise. Returns the exit code."""
    if force is not None and not force.strip():
        raise CommandError("--force needs a reason, which the audit trail keeps: --force 'rollback: …'")
    body = {"to": to.removeprefix("@"), "on": on, "reason": force or ""}
    with connect(server, token_file) as connection:
        answer = connection.post(f"/models/{quoted(model)}/promote", body, seconds=COMPARE_SECONDS)
    return tell(answer, as_json, answer["sentence"])


def alias(
    model: str,
    name: str | None,
    remove: bool,
    on: str | None,
    server: str | None,
    token_file: Path | None,
    as_json: bool,
) -> int:
    """Show, set or remove an alias of one's own, or name the score that best goes by. Returns the exit code."""
    plain, selector = parsed(model)
    name = None if name is None else name.removeprefix("@")
    place = f"/models/{quoted(plain)}"
    with connect(server, token_file) as connection:
        if on is not None:
            if name not in (None, "best") or remove:
                raise CommandError(
                    "--on names the score that best goes by; give it with best: NAME best --on TASK.METRIC"
                )
            about = connection.put(f"{place}/benchmark", {"on": on})
        elif name is None:
            about = connection.get(f"{place}/aliases")
        elif remove:
            about = connection.delete(f"{place}/aliases/{quoted(name)}")
        else:
            version = (
                int(selector) if VERSION.fullmatch(selector) else connection.get(f"/models/{quoted(model)}")["version"]
            )
            about = connection.put(f"{place}/aliases/{quoted(name)}", {"version": version})
    lines = [f"{plain}@{each['alias']}  version {each['version']}" for each in about["aliases"]]
    return tell(about, as_json, *lines, *([f"best goes by {_goes_by(about)['goes_by']}"] if about["benchmark"] else []))


def delete(models: Sequence[str], server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Delete versions, none where one of them is not there; they can be restored for days. Returns the exit code."""
    with connect(server, token_file) as connection:
        found = {each["id"]: each for each in [connection.get(f"/models/{quoted(each)}") for each in models]}

        def delete_one(each: dict[str, Any]) -> dict[str, Any]:
            connection.delete(f"/models/{quoted(each['id'])}")
            return each

        gone = [reference(each) for each in _one_by_one("deleted", found.values(), delete_one)]
    lines = [f"{each}  deleted; finery models restore {each} brings it back" for each in gone]
    return tell({"deleted": gone}, as_json, *lines)


def restore(models: Sequence[str], server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Bring deleted versions back. Returns the exit code."""
    with connect(server, token_file) as connection:
        back = _one_by_one("restored", models, lambda each: connection.post(f"/models/{quoted(each)}/restore"))
    return tell({"restored": back}, as_json, *(f"{reference(each)}  restored" for each in back))


def _one_by_one(done: str, asked: Iterable[Any], act: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """The version that each became; where one is refused, those before it are named beside the reason."""
    models: list[dict[str, Any]] = []
    for each in asked:
        try:
            models.append(act(each))
        except FineryError:
            if models:
                print(f"{done} before that: {', '.join(map(reference, models))}", file=sys.stderr)
            raise
    return models


def lineage(model: str, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Show what a version comes from, and what was made from it. Returns the exit code."""
    with connect(server, token_file) as connection:
        answer = connection.get(f"/models/{quoted(model)}/lineage")
    children = [f"made from it: {reference(each)}" for each in answer["children"]]
    return tell(answer, as_json, *lines_of(answer["nodes"]), *children)


def lines_of(nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lineage as lines: what each thing is, and what it was made from."""
    listed = list(nodes)
    titles = {node["id"]: node["title"] for node in listed}
    widths = [max((len(str(node[key])) for node in listed), default=0) for key in ("kind", "title", "detail")]
    lines = []
    for node in listed:
        cells = [f"{node[key]:<{width}}" for key, width in zip(("kind", "title", "detail"), widths, strict=True)]
        reads = ", ".join(titles[each] for each in node["reads"] if each in titles)
        lines.append("  ".join([*cells, f"<- {reads}" if reads else ""]).rstrip())
    return lines


def reference(model: Mapping[str, Any]) -> str:
    """`demo@3`."""
    return f"{model['name']}@{model['version']}"


def scores_of(model: Mapping[str, Any], most: int = 2) -> str:
    """The first scores of each benchmark, in a line."""
    parts = []
    for benchmark, values in model["scores"].items():
        numbers = [(name, value) for name, value in values.items() if isinstance(value, int | float)]
        parts += [f"{benchmark} {name} {value:.4g}" for name, value in numbers[:most]]
    return ", ".join(parts)


def shown(value: float | None) -> str:
    """Four figures; empty for nothing."""
    return "" if value is None else f"{value:.4g}"


def signed(value: float | None) -> str:
    """`+0.012`; empty for nothing."""
    return "" if value is None else f"{value:+.3f}"


def _goes_by(about: Mapping[str, Any]) -> dict[str, str]:
    return {"goes_by": f"{about['benchmark']}.{about['metric']}" if about["benchmark"] else ""}

"""`finery publish` and `finery gc`: publish the model of a finished run, and free what no run uses.

Child processes do the work: one publishes as a publish stage would, one decides what is unused and deletes it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.core.errors import EXIT_DONE, CommandError
from service.cli.child import ask_and_show, call, refuse_call


@dataclass(frozen=True)
class PublishOptions:
    """The options, in the words of the child."""

    source: str
    to: str
    require: dict[str, str]
    settings: dict[str, Any]


def requirements(given: Sequence[str]) -> dict[str, str]:
    """`glue/mrpc.f1>=0.8` or `glue/mrpc.f1=">= 0.8"` as a key and what it must fulfil. Raises CommandError."""
    conditions: dict[str, str] = {}
    for each in given:
        at = min((place for sign in "<>=" if (place := each.find(sign)) > 0), default=0)
        key, rest = each[:at].strip(), each[at:].strip()
        # KEY="== 1" and KEY=">= 1", not KEY==1
        assigned = rest.startswith("===") or (rest.startswith("=") and not rest.startswith("=="))
        value = rest[1:].strip().strip("\"'").strip() if assigned else rest
        if not key or not value or key[0] in "<>=":
            raise CommandError(f"--require '{each}' is no requirement; write it as glue/mrpc.f1=\">= 0.8\"")
        conditions[key] = value
    return conditions


def publish(options: PublishOptions, as_json: bool) -> int:
    """Publish, and say where it lies. Returns the exit code."""
    doing = "Writing the checkpoint, then proving that it loads …"
    return ask_and_show("publish", asdict(options), doing, as_json, show_published)


def show_published(data: Mapping[str, Any]) -> None:
    """Where the model lies, and what a reader should know."""
    for warning in data["warnings"]:
        print(warning, file=sys.stderr)
    print(f"  Published   {data['location']}   the model of '{data['model']}'")


def gc(dry_run: bool, older_than: float | None, as_json: bool) -> int:
    """Show what was freed, or would be. Returns the exit code."""
    arguments = ["gc"]
    if dry_run:
        arguments.append("--dry-run")
    if older_than is not None:
        arguments += ["--older-than", f"{older_than:g}"]
    code, out, err = call(arguments)
    if code != EXIT_DONE:
        return refuse_call(code, err, "Nothing could be freed", as_json)
    if as_json:
        sys.stdout.write(out)
        return code
    print("\n".join(render(json.loads(out), dry_run)))
    return code


def render(freed: Mapping[str, Any], dry_run: bool) -> list[str]:
    """What was freed: how many of what and how large, and what stays."""
    folders = [Path(each) for each in freed["folders"]]
    attempts = sum(each.name.endswith(".partial") for each in folders)
    stages = sum(each.parent.name == "stages" for each in folders) - attempts
    counts = {
        "complete stage": stages,
        "unfinished stage": attempts,
        "piece of prepared data": len(folders) - stages - attempts,
    }
    parts = [f"{count} {_plural(what, count)}" for what, count in counts.items() if count]
    in_use = f"{freed['kept']} {_plural('stage', freed['kept'])} in use {'stays' if freed['kept'] == 1 else 'stay'}"
    if not parts:
        return [f"Nothing to free; {in_use}."]
    verb = "Would free" if dry_run else "Freed"
    lines = [f"{verb} {size(freed['bytes'])}: {', '.join(parts)}; {in_use}."]
    return [*(f"  {each}" for each in folders), *lines] if dry_run else lines


def _plural(what: str, count: int) -> str:
    if count == 1:
        return what
    return what.replace("piece", "pieces") if what.startswith("piece") else f"{what}s"


def size(count: float) -> str:
    """`512 bytes`, `3.2 MB`, `18.0 GB`: powers of ten, as disks are sold and as `df -H` counts."""
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.95 or unit == "TB":
            break
    return f"{count:.1f} {unit}"

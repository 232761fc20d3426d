"""`finery token`, `finery project` and `finery audit`: who may use a service, how much, and who did what on it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError
from pipelines.core.pages import size
from service.cli.jobs import connect, quoted, say, since, table


def create(
    role: str, project: str | None, name: str, server: str | None, token_file: Path | None, as_json: bool
) -> int:
    """Make a token and print it, this once. Returns the exit code."""
    body: dict[str, Any] = {"role": role, "name": name, **({"project": project} if project else {})}
    with connect(server, token_file) as connection:
        made = connection.post("/tokens", body)
    if as_json:
        print(json.dumps(made, ensure_ascii=False))
    else:
        print(made["token"])
        say(
            f"A {role} of project {made['project']}. This is the only time it is shown; keep it in a file with mode "
            "0600."
        )
    return 0


def listed(server: str | None, token_file: Path | None, as_json: bool) -> int:
    """List the tokens, without what makes them tokens. Returns the exit code."""
    with connect(server, token_file) as connection:
        answer = connection.get("/tokens")
    tokens = answer["data"] if isinstance(answer, dict) else answer
    if as_json:
        print(json.dumps({"tokens": tokens}, ensure_ascii=False))
    else:
        rows = [
            (
                each["id"],
                each["name"],
                each["role"],
                each["project"],
                since(each["created"]),
                since(each["last_used"]),
                "revoked" if each["revoked"] else "",
            )
            for each in tokens
        ]
        table(("id", "name", "role", "project", "made", "used", ""), rows)
    return 0


def revoke(identifier: str, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Take a token back. Returns the exit code."""
    with connect(server, token_file) as connection:
        token = connection.delete(f"/tokens/{quoted(identifier)}")
    print(
        json.dumps(token if token is not None else {"id": identifier, "revoked": True}, ensure_ascii=False)
        if as_json
        else f"{identifier}  revoked"
    )
    return 0


KINDS = ("files", "jobs", "models", "evals", "stages", "downloads")
SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kMGTP]?i?)B?", re.ASCII)
POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def bytes_of(text: str) -> int | None:
    """`50GB`, `1.5 TB`, `512MiB`, a number of bytes, or `none`. Raises CommandError."""
    if text.strip().lower() == "none":
        return None
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise CommandError(
            f"'{text}' is no size: write bytes, or a number with kB, MB, GB, TB or PB (KiB and so on for powers of "
            "1024), or `none` for no limit"
        )
    unit = match.group(2)
    factor = (1024 if unit.endswith("i") else 1000) ** POWERS[unit.rstrip("i")]
    return round(float(match.group(1)) * float(factor))


def show_project(name: str | None, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """What a project keeps on the disk, and what takes the most. Returns the exit code."""
    with connect(server, token_file) as connection:
        project = name or connection.get("/me")["project"]
        usage = connection.get(f"/projects/{quoted(project)}/usage")
    if as_json:
        print(json.dumps(usage, ensure_ascii=False))
        return 0
    limit = usage["limit"]
    allowed = "no limit" if limit is None else f"of {size(limit)} that it may keep"
    print(f"Project {usage['project']} keeps {size(usage['total'])} on the disk, {allowed}.")
    table(("kept", "size"), [(kind, size(usage[kind])) for kind in KINDS])
    if usage["largest"]:
        print("\nThe largest:")
        table(("kind", "id", "name", "size"), [_kept(each) for each in usage["largest"]])
    return 0


def _kept(thing: dict[str, Any]) -> tuple[str, str, str, str]:
    return thing["kind"].removesuffix("s"), thing["id"], thing["name"], size(thing["bytes"])


def list_projects(server: str | None, token_file: Path | None, as_json: bool) -> int:
    """All projects with their limits and what they keep. Returns the exit code."""
    with connect(server, token_file) as connection:
        answer = connection.get("/projects")
    if as_json:
        print(json.dumps({"projects": answer}, ensure_ascii=False))
        return 0
    rows = [
        (
            each["name"],
            f"{each['weight']:g}",
            *("-" if each[key] is None else each[key] for key in ("max_gpus", "max_running", "max_queued")),
            size(each["usage"]["total"]),
            "-" if each["max_bytes"] is None else size(each["max_bytes"]),
        )
        for each in answer
    ]
    table(("project", "weight", "GPUs", "running", "queued", "kept", "may keep"), rows)
    return 0


def set_project(
    name: str,
    given: dict[str, str | None],
    weight: float | None,
    max_bytes: str | None,
    server: str | None,
    token_file: Path | None,
    as_json: bool,
) -> int:
    """Set limits of a project, which is made when it is not there. Returns the exit code."""
    body: dict[str, Any] = {key: _count(key, text) for key, text in given.items() if text is not None}
    if weight is not None:
        body["weight"] = weight
    if max_bytes is not None:
        body["max_bytes"] = bytes_of(max_bytes)
    with connect(server, token_file) as connection:
        project = connection.put(f"/projects/{quoted(name)}", body)
    if as_json:
        print(json.dumps(project, ensure_ascii=False))
        return 0
    limits = {key: project[key] for key in ("weight", "max_gpus", "max_running", "max_queued")}
    limits["max_bytes"] = None if project["max_bytes"] is None else size(project["max_bytes"])
    print(f"{project['name']}  " + "  ".join(f"{key} {'-' if each is None else each}" for key, each in limits.items()))
    return 0


def _count(key: str, text: str) -> int | None:
    if text.strip().lower() == "none":
        return None
    if not (text.strip().isascii() and text.strip().isdecimal() and len(text.strip()) < 10):
        raise CommandError(f"--{key.replace('_', '-')} is '{text}', must be a whole number, or `none` for no limit")
    return int(text)


PAGE = 500
UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def audit(
    action: str | None,
    actor: str | None,
    project: str | None,
    thing: str | None,
    begin: str | None,
    limit: int,
    server: str | None,
    token_file: Path | None,
    as_json: bool,
) -> int:
    """List the newest rows of the trail. Returns the exit code."""
    entries: list[dict[str, Any]] = []
    wanted: dict[str, Any] = {
        "action": action,
        "actor": actor,
        "project": project,
        "thing": thing,
        "since": _moment(begin),
    }
    with connect(server, token_file) as connection:
        after = None
        while len(entries) < limit:
            page = connection.get("/audit", **wanted, after=after, limit=min(PAGE, limit - len(entries)))
            entries += page["data"]
            after = page["next"]
            if after is None:
                break
    if as_json:
        print(json.dumps({"audit": entries, "more": after is not None}, ensure_ascii=False))
    elif not entries:
        print("Nothing of that kind is in the trail.")
    else:
        rows = [
            (
                since(each["time"]),
                each["action"],
                f"{each['kind']} {each['thing']}",
                each["project"] or "",
                _who(each),
                each["address"],
                _details(each),
            )
            for each in entries
        ]
        table(("when", "did", "what", "of", "who", "from", ""), rows)
        if after is not None:
            print(f"… and more: --limit {limit * 2}")
    return 0


def _who(entry: dict[str, Any]) -> str:
    return " ".join(part for part in (entry["actor"] or "nobody known", entry["role"]) if part)


def _details(entry: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in entry["details"].items())


def _moment(text: str | None) -> str | None:
    """`30m`, `12h`, `7d` and `2w` ago, or a time with a zone, as the service takes it."""
    if text is None:
        return None
    number, unit = text[:-1], text[-1:]
    if unit in UNITS and number.isascii() and number.isdigit() and len(number) < 6:
        return (datetime.now(UTC) - timedelta(**{UNITS[unit]: int(number)})).isoformat()
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f"--since is '{text}', must be an age such as 30m, 12h, 7d or 2w, or a time such as 2026-11-21T22:00:00Z"
        ) from None
    return (given if given.tzinfo else given.astimezone()).isoformat()

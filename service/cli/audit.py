"""`finery audit`: who did what on a service, for its admins."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines.errors import CommandError
from service.cli.talking import connect, since, table

PAGE = 500
UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def audit(
    action: str | None, actor: str | None, project: str | None, thing: str | None, begin: str | None, limit: int,
    server: str | None, token_file: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """List the newest rows of the trail. Returns the exit code."""
    found: list[dict[str, Any]] = []
    wanted = {"action": action, "actor": actor, "project": project, "thing": thing, "since": _moment(begin)}
    with connect(server, token_file) as connection:
        after = None
        while len(found) < limit:
            page = connection.get("/audit", **wanted, after=after, limit=min(PAGE, limit - len(found)))
            found += page["data"]
            after = page["next"]
            if after is None:
                break
    if as_json:
        print(json.dumps({"audit": found, "more": after is not None}, ensure_ascii=False))
    elif not found:
        print("Nothing of that kind is in the trail.")
    else:
        rows = [(since(each["time"]), each["action"], f"{each['kind']} {each['thing']}", each["project"] or "", _who(each), each["address"], _details(each)) for each in found]
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
        raise CommandError(f"--since is '{text}', must be an age such as 30m, 12h, 7d or 2w, or a time such as 2026-11-21T22:00:00Z") from None
    return (given if given.tzinfo else given.astimezone()).isoformat()

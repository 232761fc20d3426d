"""`finery token` and `finery audit`: who may use a service, and who did what on it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError
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

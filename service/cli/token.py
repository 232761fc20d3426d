"""`finery token`: make, list and take back the tokens that a service lets in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from service.cli.jobs import quoted
from service.cli.talking import connect, say, since, table


def create(role: str, project: str | None, name: str, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Make a token and print it, this once. Returns the exit code."""
    body: dict[str, Any] = {"role": role, "name": name, **({"project": project} if project else {})}
    with connect(server, token_file) as connection:
        made = connection.post("/tokens", body)
    if as_json:
        print(json.dumps(made, ensure_ascii=False))
    else:
        print(made["token"])
        say(f"A {role} of project {made['project']}. This is the only time it is shown; keep it in a file with mode 0600.")
    return 0


def listed(server: str | None, token_file: Path | None, as_json: bool) -> int:
    """List the tokens, without what makes them tokens. Returns the exit code."""
    with connect(server, token_file) as connection:
        found = connection.get("/tokens")
    tokens = found["data"] if isinstance(found, dict) else found
    if as_json:
        print(json.dumps({"tokens": tokens}, ensure_ascii=False))
    else:
        rows = [(each["id"], each["name"], each["role"], each["project"], since(each["created"]), since(each["last_used"]), "revoked" if each["revoked"] else "") for each in tokens]
        table(("id", "name", "role", "project", "made", "used", ""), rows)
    return 0


def revoke(identifier: str, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Take a token back. Returns the exit code."""
    with connect(server, token_file) as connection:
        told = connection.delete(f"/tokens/{quoted(identifier)}")
    print(json.dumps(told if told is not None else {"id": identifier, "revoked": True}, ensure_ascii=False) if as_json else f"{identifier}  revoked")
    return 0

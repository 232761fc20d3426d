"""Reading a secret by its name: from the files that a server gave to this attempt, else from the environment.

Beside a secret's file may lie `<NAME>.hosts`: the hosts that may see it, one a line. `api.example.com` stands for
https at its usual port; `judge.internal:8000` for that port, with or without TLS.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

FOLDER = "FINERY_SECRETS"
"""Set by a server for each attempt, the folder of its secrets: then nothing is taken from the environment."""
HOSTS = ".hosts"


def secret(name: str) -> str | None:
    """The value of a secret, or None where it was not given."""
    if not served():
        return os.environ.get(name) or None
    return _read(name) or None


def served() -> bool:
    """Whether this process runs an attempt of a server, with the secrets that the server gives it and none else."""
    return FOLDER in os.environ


def may_see(name: str, url: str) -> bool:
    """Whether a secret may be sent to this URL. A secret without a list of hosts may be sent wherever its owner's
    recipe says."""
    listed = _read(name + HOSTS) if served() else None
    return listed is None or matches(listed.split(), url)


def matches(hosts: Collection[str], url: str) -> bool:
    """Whether a URL's host, scheme and port are among these hosts."""
    try:
        parts = urlsplit(url)
        host, port = (
            (parts.hostname or "").rstrip(".").lower(),
            parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0),
        )
    except ValueError:
        return False
    shown = f"[{host}]" if ":" in host else host
    return bool(host) and (f"{shown}:{port}" in hosts or (parts.scheme == "https" and port == 443 and shown in hosts))


def _read(name: str) -> str | None:
    if not name.replace(HOSTS, "").isidentifier():
        return None
    try:
        return (Path(os.environ[FOLDER]) / name).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None

"""Which server a command talks to, and with which token.

`--server` or `FINERY_URL`, `--token-file` or `FINERY_TOKEN`, else `~/.config/finery/config.toml`:

    server = "https://finery.example.org"
    token = "fin_…"              # or token_file = "~/.config/finery/token"

On the machine that `finery serve` runs on, the admin's token is in `HOME/admin.token`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipelines.errors import CommandError

CONFIG = Path("finery") / "config.toml"
KEYS = ("server", "token", "token_file")


@dataclass(frozen=True)
class Place:
    """A server and the token to show it."""

    url: str
    """Without a slash at its end."""
    token: str


def find(server: str | None, token_file: Path | None, environment: Mapping[str, str] | None = None) -> Place:
    """The place that the command, the environment or the config file names. Raises CommandError."""
    environment = os.environ if environment is None else environment
    config_path = config_file(environment)
    config = _read(config_path)
    url = server or environment.get("FINERY_URL") or config.get("server")
    if not url:
        raise CommandError(
            f"no server is named: give --server URL, set FINERY_URL, or write server = \"http://…\" into {config_path}; `finery serve` starts one"
        )
    return Place(_checked(url), _token(token_file, environment, config, config_path))


def config_file(environment: Mapping[str, str]) -> Path:
    """Where the user's settings lie."""
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path(environment.get("HOME", "~")).expanduser() / ".config") / CONFIG


def _read(path: Path) -> dict[str, str]:
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from None
    wrong = [key for key, value in data.items() if key not in KEYS or not isinstance(value, str)]
    if wrong:
        raise CommandError(f"{path} has '{wrong[0]}', but may hold the texts {', '.join(KEYS)} only")
    return data


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CommandError(f"'{url}' is no server's address; it looks like http://127.0.0.1:8321")
    if parts.username or parts.password:
        raise CommandError("the server's address holds a user or a password; give the token with --token-file or FINERY_TOKEN instead")
    return url.rstrip("/")


def _token(token_file: Path | None, environment: Mapping[str, str], config: Mapping[str, str], config_path: Path) -> str:
    if token_file is not None:
        return _token_in(token_file)
    if environment.get("FINERY_TOKEN"):
        return _plain(environment["FINERY_TOKEN"], "FINERY_TOKEN")
    if config.get("token"):
        return _plain(config["token"], str(config_path))
    if config.get("token_file"):
        return _token_in(Path(config["token_file"]).expanduser())
    raise CommandError(
        f"no token is given: name its file with --token-file, set FINERY_TOKEN, or write token_file = \"…\" into {config_path}; "
        "a new server's first token is in HOME/admin.token"
    )


def _token_in(path: Path) -> str:
    try:
        return _plain(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no text"
        raise CommandError(f"the token file {path} cannot be read: {reason}") from None


def _plain(text: str, where: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or any(letter.isspace() or not letter.isprintable() for letter in token):
        raise CommandError(f"{where} holds no token: a token is one line of letters and digits")
    return token

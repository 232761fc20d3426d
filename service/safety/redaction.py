"""Secrets in texts: told by their shape or by their value, refused in recipes and taken out of logs and events."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "[secret]"
SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{20,}"
    r"|fin_[A-Za-z0-9]{6,}_[A-Za-z0-9_-]{20,}"
    r"|sk-[A-Za-z0-9_-]{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|AIza[A-Za-z0-9_-]{35}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"
)
"""Tokens of the Hub, of this service, of OpenAI, GitHub, GitLab, AWS, Slack and Google, private keys, and logins
in URLs."""
NAMES = re.compile(r"(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)$|^FINERY_SECRET_")
"""Environment variables whose values are secrets."""
SHORTEST = 8
"""Values shorter than this are words, not secrets."""


def holds_secret(text: str) -> bool:
    """Whether something in the text has the shape of a secret."""
    return SHAPES.search(text) is not None


def of_environment(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The values of this process's secret variables."""
    environment = os.environ if environment is None else environment
    return tuple(value for name, value in environment.items() if NAMES.search(name) and len(value) >= SHORTEST)


def _relative(match: re.Match[str]) -> str:
    """Nothing in place of a folder that a path goes on behind; a dot for the folder itself."""
    return "" if match.group().endswith("/") else "."


class Redactor:
    """Takes secrets out of texts, what has the shape of one and the values it was told, and the server's folders
    out of paths."""

    def __init__(self, values: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
        secrets = sorted({value for value in values if len(value) >= SHORTEST}, key=len, reverse=True)
        parts = [*(re.escape(value) for value in secrets), SHAPES.pattern]
        self._pattern = re.compile("|".join(parts))
        places = sorted(
            {folder.rstrip("/") for folder in folders if folder.rstrip("/").count("/") > 1}, key=len, reverse=True
        )
        known_places = "|".join(map(re.escape, places))
        self._folders = re.compile(rf"(?:{known_places})(?:/jobs/job-[0-9a-z]+)?(?:/|(?![\w.-]))") if places else None

    def text(self, text: str) -> str:
        """The text without its secrets; paths below the server's folders are relative to them, those below a job's
        to the job's."""
        hidden = self._pattern.sub(HIDDEN, text)
        return hidden if self._folders is None else self._folders.sub(_relative, hidden)

    def plain(self, value: object) -> Any:
        """Plain data with every text in it redacted, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.plain(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(entry) for entry in value]
        return value
